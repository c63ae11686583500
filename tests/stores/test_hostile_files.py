"""Whatever a corpus file holds, opening or using it ends in an answer or in a clear error."""

from __future__ import annotations

import os
import struct

import numpy as np
import pytest
from fuzz_stores import corpus_file, use_corpus
from hostile_files import (
    SPECIAL,
    attack,
    first_section,
    laid_out,
    made_right,
    parts_of,
    sealed,
    sections,
    with_number,
)

from ngramspec._native.value import Calibration, ValueEngine
from ngramspec.stores import Corpus, SharedStore, StoreFileError
from ngramspec.stores.corpus import KIND
from ngramspec.stores.files import aligned, checksum

pytest.importorskip("pydivsufsort")
SECTIONS = first_section(KIND)
KINDS_OF_FILE = ("FIFO", "directory", "socket", "link to a device", "link to a directory")


@pytest.fixture(scope="module")
def content(tmp_path_factory) -> bytes:
    return corpus_file(tmp_path_factory.mktemp("hostile"))


def test_broken_files(content, tmp_path):
    ends = attack(content, KIND, use_corpus, tmp_path / "broken.ngc", 600, seed=0)
    assert ends["refused"] > 100
    assert ends["found broken"] > 50


@pytest.mark.parametrize("open_store", [Corpus.open, SharedStore.load])
@pytest.mark.parametrize("name", SPECIAL)
def test_only_regular_files_are_opened(tmp_path, monkeypatch, open_store, name):
    path = tmp_path / "special"
    SPECIAL[name](path)
    kind = {"link to a device": "a character device"}.get(name, f"a {name.split()[-1]}")
    says = f"not a regular file but {kind}" if name in KINDS_OF_FILE else "(?i)link|no such file"
    monkeypatch.setattr(os, "open", None)  # refused before it is opened
    with pytest.raises(OSError, match=says):
        open_store(path)


@pytest.mark.parametrize("open_store", [Corpus.open, SharedStore.load])
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
    parts = parts_of(path.read_bytes(), KIND)
    keys = np.frombuffer(parts[2], np.uint8).reshape(-1, 16)
    parts[2] = rng.permutation(keys).tobytes()
    path.write_bytes(laid_out(path.read_bytes(), KIND, parts))
    corpus = Corpus.open(path)
    for _ in range(attempts):
        engine = ValueEngine(Calibration(), True, True, True, 2, corpus.index)
        engine.extend(rng.integers(0, 3, 20).astype(np.int32))
        engine.draft_tree(8)
        engine.check_integrity()


HAND_MADE = {
    "empty": lambda c: b"",
    "text": lambda c: b"def main(): ...\n" * 99,
    "ends in magic": lambda c: c[:5],
    "ends in header": lambda c: c[:100],
    "ends in sections": lambda c: c[:-1],
    "goes on": lambda c: c + b"\0",
    "other magic": lambda c: b"NGS" + c[3:],
    "other version": lambda c: with_number(c, KIND, 8, "I", 3),
    "other byte order": lambda c: c[:12] + c[12:16][::-1] + c[16:],
    "other header size": lambda c: with_number(c, KIND, 16, "I", 1 << 31),
    "broken header": lambda c: c[:30] + b"?" + c[31:],
    "width 0": lambda c: with_number(c, KIND, 20, "I", 0),
    "width 2**32 - 1": lambda c: with_number(c, KIND, 20, "I", 2**32 - 1),
    "largest id 2**32 - 1": lambda c: with_number(c, KIND, 24, "I", 2**32 - 1),
    "no documents": lambda c: with_number(c, KIND, 52, "Q", 0),
    "2**64 - 1 tokens": lambda c: with_number(c, KIND, 44, "Q", 2**64 - 1),
    "2**64 - 1 codes": lambda c: with_number(c, KIND, 36, "Q", 2**64 - 1),
    "section before the file": lambda c: with_number(c, KIND, SECTIONS, "Q", 0),
    "section after the file": lambda c: with_number(c, KIND, SECTIONS, "Q", 2**64 - 64),
    "section past the end": lambda c: with_number(c, KIND, SECTIONS + 8, "Q", 2**63),
    "section of an odd size": lambda c: with_number(c, KIND, SECTIONS + 8, "Q", 1),
}


@pytest.mark.parametrize("name", HAND_MADE)
def test_hand_made_files_are_refused(content, tmp_path, name):
    path = tmp_path / "broken.ngc"
    path.write_bytes(HAND_MADE[name](content))
    with pytest.raises(StoreFileError, match=r"broken\.ngc"):
        Corpus.open(path)


def test_what_the_messages_say(content, tmp_path):
    path = tmp_path / "broken.ngc"
    for name, says in {
        "text": "is no ngramspec corpus: it begins with b'def main'",
        "other version": "has format 3, this is for format 2: build it again",
        "other byte order": "was written on a machine of the other byte order",
        "section past the end": "section text of 9223372036854775808 bytes at",
    }.items():
        path.write_bytes(HAND_MADE[name](content))
        with pytest.raises(StoreFileError, match=says):
            Corpus.open(path)
    with pytest.raises(FileNotFoundError):
        Corpus.open(tmp_path / "nothing.ngc")
    with pytest.raises(OSError, match="directory"):
        Corpus.open(tmp_path)


@pytest.mark.parametrize("section", range(len(KIND.sections)))
def test_verify_finds_a_byte_in_each_section(content, tmp_path, section):
    where = sections(content, KIND)[section]
    broken = bytearray(content)
    broken[where.offset + where.size // 2] ^= 0x11
    path = tmp_path / "broken.ngc"
    path.write_bytes(broken)
    name = KIND.sections[section]
    with pytest.raises(StoreFileError, match=f"section {name} is broken: its checksum"):
        Corpus.open(path).verify()


@pytest.mark.parametrize("section", range(3))
@pytest.mark.parametrize("value", [0, 0xFF])
def test_a_section_of_one_value(content, tmp_path, section, value):
    where = sections(content, KIND)[section]
    broken = bytearray(content)
    broken[where.offset : where.offset + where.size] = bytes([value]) * where.size
    path = tmp_path / "broken.ngc"
    path.write_bytes(made_right(broken, KIND))
    assert use_corpus(path, np.random.default_rng(0)) == "found broken"


def test_a_corpus_of_nothing_but_its_header(content, tmp_path):
    broken = bytearray(content[: KIND.header_size])
    for i in range(len(KIND.sections)):
        struct.pack_into(
            "<QQQ", broken, SECTIONS + 24 * i, aligned(KIND.header_size), 0, checksum(b"")
        )
    path = tmp_path / "broken.ngc"
    path.write_bytes(sealed(broken, KIND))
    with pytest.raises(StoreFileError, match="is broken"):
        Corpus.open(path)


@pytest.mark.skipif(not os.path.exists("/proc/self/smaps_rollup"), reason="reads /proc")
def test_opening_reads_no_more_than_the_header(tmp_path):
    path = tmp_path / "c.ngc"
    Corpus.build([np.arange(3_000_000, dtype=np.int32) % 60_000], path)
    before = _resident()
    corpus = Corpus.open(path)
    assert _resident() - before < 4 << 20 < corpus.info().bytes  # the kernel maps some beside it


def _resident() -> int:
    with open("/proc/self/statm") as numbers:
        return int(numbers.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
