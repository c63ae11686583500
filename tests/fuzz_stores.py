"""Broken store files, used in every way: ``python -m fuzz_stores --cases 10000``.

Opening or using a file ends in an answer or in a StoreFileError, and takes a bounded memory. A case
is made from its seed alone, which a finding names.
"""

from __future__ import annotations

import argparse
import contextlib
import logging
import tempfile
from pathlib import Path

import numpy as np
from hostile_files import SPECIAL, Use, attack, memory_below

from ngramspec._native.value import Calibration, ValueEngine
from ngramspec.stores import Corpus, SharedStore, StoreFileError, shared
from ngramspec.stores import corpus as corpus_module
from ngramspec.stores.files import FileKind

BYTES = 1 << 16  # of the shared stores that files are loaded into
OVERHEAD = 6 << 20  # traced bytes of a load: pieces of the file, and how they are read
VERIFIED = 1 << 24  # bytes of files that are read whole


def corpus_file(folder: Path) -> bytes:
    """A corpus with three levels of keys."""
    rng = np.random.default_rng(0)
    base = (rng.zipf(1.4, 6000) % 300).astype(np.int32)
    few = rng.integers(0, 3, 1500).astype(np.int32)
    documents = [base, base[100:900], base[50:60], np.zeros(300, np.int32), few]
    Corpus.build(documents, folder / "c.ngc")
    return (folder / "c.ngc").read_bytes()


def filled_store(**options: object) -> SharedStore:
    """A shared store with three namespaces."""
    store = SharedStore(1 << 18, namespace_bytes=1 << 15, **options)
    rng = np.random.default_rng(0)
    for name in ("a", "b", "ünï"):
        for n in rng.integers(1, 200, 4):
            store[name].add(rng.integers(0, 60, n).astype(np.int32))
    return store


def shared_file_content(folder: Path) -> bytes:
    filled_store().save(folder / "s.ngs")
    return (folder / "s.ngs").read_bytes()


def use_corpus(path: Path, rng: np.random.Generator) -> str:
    """Do all that can be done with a corpus; how it ended."""
    try:
        corpus = Corpus.open(path)
    except StoreFileError:
        return "refused"
    limit = corpus.index.limit
    for _ in range(12):
        context = rng.integers(0, 6, rng.integers(0, 70)).astype(np.int32)
        for at, length in corpus.index.find(context):
            assert 0 < length <= 64
            read = corpus.index.tokens_at(at, 50)
            assert ((read >= 0) & (read < limit)).all()
    draft_from(corpus, rng)
    with contextlib.suppress(StoreFileError):
        corpus.recipe()
    if path.stat().st_size > VERIFIED:
        return "not verified"
    try:
        corpus.verify()
    except StoreFileError:
        return "found broken"
    return "unharmed"


def draft_from(corpus: Corpus, rng: np.random.Generator) -> None:
    """Draft along a text, and check the engine's invariants after each step."""
    engine = ValueEngine(Calibration(), True, True, True, 2, corpus.index)
    most = int(rng.choice([3, 6, 300]))
    engine.extend(rng.integers(0, most, 20).astype(np.int32))
    for _ in range(8):
        for token in engine.draft_tree(int(rng.integers(1, 12)))[0].tolist():
            assert 0 <= token < max(corpus.index.limit, most)
        engine.check_integrity()
        engine.extend(rng.integers(0, most, rng.integers(1, 4)).astype(np.int32))
        engine.check_integrity()


def use_shared(path: Path, rng: np.random.Generator) -> str:
    """Do all that can be done with a shared store's file; how it ended."""
    try:
        with memory_below(OVERHEAD):
            store = SharedStore.load(path, BYTES)
    except StoreFileError:
        return "refused"
    assert store.sizeof() <= BYTES + 4096
    store.check_integrity()
    for name in store:
        reader = store[name].index
        for at, _ in reader.find(rng.integers(0, 60, 9).astype(np.int32)):
            assert (reader.tokens_at(at, 20) >= 0).all()
    return "loaded"


def check_special(use: Use, folder: Path) -> int:
    """Open everything that is not a regular file; how many there were."""
    for name, make in SPECIAL.items():
        path = folder / name
        make(path)
        try:
            use(path, np.random.default_rng(0))
        except OSError:
            continue
        raise AssertionError(f"a {name} was opened")
    return len(SPECIAL)


KINDS: dict[str, tuple[FileKind, object, Use]] = {
    "corpus": (corpus_module.KIND, corpus_file, use_corpus),
    "shared store": (shared.KIND, shared_file_content, use_shared),
}


def main() -> None:
    """Attack each kind of file, and print how its files ended."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--cases", type=int, default=10_000, help="files of each kind")
    parser.add_argument("--seed", type=int, default=0, help="of the first file")
    given = parser.parse_args()
    logging.getLogger("ngramspec").setLevel(logging.ERROR)  # text that does not fit
    for name, (kind, make, use) in KINDS.items():
        with tempfile.TemporaryDirectory() as folder:
            content = make(Path(folder))
            special = check_special(use, Path(folder))
            path = Path(folder) / "broken.ngc"
            ends = attack(content, kind, use, path, given.cases, given.seed)
        told = ", ".join(f"{count} {end}" for end, count in sorted(ends.items()))
        print(f"{name}: {sum(ends.values())} files, {told}; {special} special files refused")


if __name__ == "__main__":
    main()
