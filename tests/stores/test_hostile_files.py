"""Whatever a store's file holds, opening or using it ends in an answer or in a clear error."""

from __future__ import annotations

import json
import os
import struct
from types import SimpleNamespace

import numpy as np
import pytest
from fuzz_stores import KINDS
from hostile_files import (
    SPECIAL,
    attack,
    first_section,
    laid_out,
    lines_of,
    made_right,
    parts_of,
    sealed,
    sections,
    with_number,
)

from ngramspec._native.value import Calibration, ValueEngine
from ngramspec.stores import Corpus, SharedStore, StoreFileError, corpus, shared

pytest.importorskip("pydivsufsort")
KINDS_OF_FILE = ("FIFO", "directory", "socket", "link to a device", "link to a directory")
OPEN = {"corpus": Corpus.open, "shared store": SharedStore.load}


@pytest.fixture(scope="module")
def contents(tmp_path_factory):
    """Of a sound file of each kind."""
    return {name: make(tmp_path_factory.mktemp("sound")) for name, (_, make, _) in KINDS.items()}


@pytest.fixture(params=KINDS)
def stored(request, contents):
    """A file of each kind: its content, and how it is opened and used."""
    name = request.param
    kind, _, use = KINDS[name]
    return SimpleNamespace(kind=kind, use=use, content=contents[name], open=OPEN[name])


def test_broken_files(stored, tmp_path):
    ends = attack(stored.content, stored.kind, stored.use, tmp_path / "broken", 500, seed=0)
    assert ends["refused"] > 100
    assert ends.get("found broken", 0) + ends.get("loaded", 0) > 20


@pytest.mark.parametrize("open_store", OPEN.values(), ids=OPEN)
@pytest.mark.parametrize("name", SPECIAL)
def test_only_regular_files_are_opened(tmp_path, monkeypatch, open_store, name):
    path = tmp_path / "special"
    SPECIAL[name](path)
    kind = {"link to a device": "a character device"}.get(name, f"a {name.split()[-1]}")
    says = f"not a regular file but {kind}" if name in KINDS_OF_FILE else "(?i)link|no such file"
    monkeypatch.setattr(os, "open", None)  # refused before it is opened
    with pytest.raises(OSError, match=says):
        open_store(path)


@pytest.mark.parametrize("open_store", OPEN.values(), ids=OPEN)
def test_a_path_that_becomes_a_fifo_before_it_is_opened(tmp_path, monkeypatch, open_store):
    path, other = tmp_path / "a", tmp_path / "regular"
    os.mkfifo(path)
    other.write_bytes(b"x")
    stat = os.stat
    monkeypatch.setattr(os, "stat", lambda name, **options: stat(other if name == path else name))
    with pytest.raises(OSError, match="not a regular file but a FIFO"):
        open_store(path)


@pytest.mark.parametrize(("seed", "attempts"), [(43, 12), (111, 5)])
def test_places_come_by_length_however_the_keys_are_broken(tmp_path, seed, attempts):
    """A search led astray by shuffled keys may find a longer match where it expects a shorter."""
    text = np.random.default_rng(0).integers(0, 3, 3000).astype(np.int32)
    path = tmp_path / "c.ngc"
    Corpus.build([text, text[100:900], np.zeros(300, np.int32)], path)
    rng = np.random.default_rng(seed)
    parts = parts_of(path.read_bytes(), corpus.KIND)
    keys = np.frombuffer(parts[2], np.uint8).reshape(-1, 16)
    parts[2] = rng.permutation(keys).tobytes()
    path.write_bytes(laid_out(path.read_bytes(), corpus.KIND, parts))
    index = Corpus.open(path).index
    for _ in range(attempts):
        engine = ValueEngine(Calibration(), True, True, True, 2, index)
        engine.extend(rng.integers(0, 3, 20).astype(np.int32))
        engine.draft_tree(8)
        engine.check_integrity()


def with_names(content, names):
    """The content with another last section, its checksums right."""
    last = sections(content, shared.KIND)[1]
    new = names if isinstance(names, bytes) else lines_of(names)
    broken = bytearray(content[: last.offset] + new)
    struct.pack_into("<Q", broken, first_section(shared.KIND) + 24 + 8, len(new))
    return made_right(broken, shared.KIND)


def with_codes(content, *codes):
    """The content with other first codes, its checksums right."""
    broken = bytearray(content)
    struct.pack_into(f"<{len(codes)}i", broken, sections(content, shared.KIND)[0].offset, *codes)
    return made_right(broken, shared.KIND)


def entries(content):
    return [
        json.loads(each)
        for each in content[sections(content, shared.KIND)[1].offset :].splitlines()
    ]


BROKEN = {  # of any kind
    "empty": lambda c, kind: b"",
    "text": lambda c, kind: b"def main(): ...\n" * 99,
    "ends in magic": lambda c, kind: c[:5],
    "ends in header": lambda c, kind: c[:100],
    "ends in sections": lambda c, kind: c[:-1],
    "goes on": lambda c, kind: c + b"\0",
    "other magic": lambda c, kind: c[:3] + b"X" + c[4:],
    "other version": lambda c, kind: with_number(c, kind, 8, "I", 9),
    "other byte order": lambda c, kind: c[:12] + c[12:16][::-1] + c[16:],
    "other header size": lambda c, kind: with_number(c, kind, 16, "I", 1 << 31),
    "broken header": lambda c, kind: c[:30] + b"?" + c[31:],
    "section before": lambda c, kind: with_number(c, kind, first_section(kind), "Q", 0),
    "section after": lambda c, kind: with_number(c, kind, first_section(kind), "Q", 2**64 - 64),
    "section past": lambda c, kind: with_number(c, kind, first_section(kind) + 8, "Q", 2**63),
    "odd section": lambda c, kind: with_number(c, kind, first_section(kind) + 8, "Q", 1),
}


SAYS = {  # of the others only that an error comes
    "text": "is no ngramspec (corpus|shared store): it begins with b'def main'",
    "other version": "has format 9, this is for format ",
    "other byte order": "was written on a machine of the other byte order",
    "section past": "section text of 9223372036854775808 bytes at",
}


@pytest.mark.parametrize("name", BROKEN)
def test_broken_parts_of_any_file_are_refused(stored, tmp_path, name):
    path = tmp_path / "file"
    path.write_bytes(BROKEN[name](stored.content, stored.kind))
    with pytest.raises(StoreFileError, match=SAYS.get(name)):
        stored.open(path)


OWN = {  # parts that one kind has
    "corpus": {
        "empty sections": lambda c: laid_out(c, corpus.KIND, [b""] * len(corpus.KIND.sections)),
        "width 0": lambda c: with_number(c, corpus.KIND, 20, "I", 0),
        "width 2**32 - 1": lambda c: with_number(c, corpus.KIND, 20, "I", 2**32 - 1),
        "largest id 2**32 - 1": lambda c: with_number(c, corpus.KIND, 24, "I", 2**32 - 1),
        "no documents": lambda c: with_number(c, corpus.KIND, 52, "Q", 0),
        "2**64 - 1 tokens": lambda c: with_number(c, corpus.KIND, 44, "Q", 2**64 - 1),
        "2**64 - 1 codes": lambda c: with_number(c, corpus.KIND, 36, "Q", 2**64 - 1),
    },
    "shared store": {
        "no bytes": lambda c: with_number(c, shared.KIND, 20, "Q", 0),
        "another write": lambda c: with_number(c, shared.KIND, 28, "I", 3),
        "another live": lambda c: with_number(c, shared.KIND, 32, "I", 2),
        "a negative code": lambda c: with_codes(c, 5, -1),
        "no JSON": lambda c: with_names(c, b"{\n"),
        "no end": lambda c: with_names(c, lines_of(entries(c))[:-1]),
        "deep JSON": lambda c: with_names(c, b"[" * 4000 + b"\n"),
        "a long number": lambda c: with_names(c, b'["a",' + b"9" * 4050 + b",0,0,0,0]\n"),
        "another JSON": lambda c: with_names(c, [{"a": 1}]),
        "a name that is none": lambda c: with_names(c, [[3, *each[1:]] for each in entries(c)]),
        "an empty name": lambda c: with_names(c, [["", *each[1:]] for each in entries(c)]),
        "a name twice": lambda c: with_names(c, [["a", *each[1:]] for each in entries(c)]),
        "codes that are missing": lambda c: with_names(c, entries(c)[:-1]),
        "codes beyond the text": lambda c: with_names(c, [*entries(c), ["z", 2**61, 0, 0, 0, 0]]),
        "codes of less than none": lambda c: with_names(c, [*entries(c), ["z", -1, 0, 0, 0, 0]]),
        "a count that is none": lambda c: with_names(c, [[*each[:-1], 0.5] for each in entries(c)]),
        "a count too large": lambda c: with_names(c, [[*each[:-1], 2**63] for each in entries(c)]),
    },
}


@pytest.mark.parametrize(("kind", "name"), [(kind, name) for kind in OWN for name in OWN[kind]])
def test_broken_parts_of_one_kind_are_refused(contents, tmp_path, kind, name):
    path = tmp_path / "broken"
    path.write_bytes(OWN[kind][name](contents[kind]))
    with pytest.raises(StoreFileError, match="broken"):
        OPEN[kind](path)


def test_another_byte_in_a_section_is_found(stored, tmp_path):
    path = tmp_path / "broken"
    for name, where in zip(
        stored.kind.sections, sections(stored.content, stored.kind), strict=True
    ):
        broken = bytearray(stored.content)
        broken[where.offset + where.size // 2] ^= 0x11
        path.write_bytes(sealed(broken, stored.kind))
        with pytest.raises(StoreFileError, match=f"section {name} is broken: its checksum"):
            stored.open(path).verify()  # a shared store is read whole when it is opened


@pytest.mark.parametrize("section", range(3))
@pytest.mark.parametrize("value", [0, 0xFF])
def test_a_section_of_one_value(contents, tmp_path, section, value):
    kind, _, use = KINDS["corpus"]
    broken = bytearray(contents["corpus"])
    where = sections(bytes(broken), kind)[section]
    broken[where.offset : where.offset + where.size] = bytes([value]) * where.size
    path = tmp_path / "broken.ngc"
    path.write_bytes(made_right(broken, kind))
    assert use(path, np.random.default_rng(0)) == "found broken"


@pytest.mark.skipif(not os.path.exists("/proc/self/smaps_rollup"), reason="reads /proc")
def test_opening_reads_no_more_than_the_header(tmp_path):
    path = tmp_path / "c.ngc"
    Corpus.build([np.arange(3_000_000, dtype=np.int32) % 60_000], path)
    before = _resident()
    opened = Corpus.open(path)
    # The kernel may map a few more pages than the header.
    assert _resident() - before < 4 << 20 < opened.info().bytes


def _resident() -> int:
    with open("/proc/self/statm") as numbers:
        return int(numbers.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
