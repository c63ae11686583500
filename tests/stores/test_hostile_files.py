"""Whatever a corpus file holds, opening or using it ends in an answer or in a clear error."""

from __future__ import annotations

import os
import struct

import numpy as np
import pytest
from hostile_files import attack, first_section, made_right, sealed, sections, with_number

from ngramspec.stores import Corpus, StoreFileError
from ngramspec.stores.corpus import KIND
from ngramspec.stores.file_format import aligned, checksum

pytest.importorskip("pydivsufsort")
SECTIONS = first_section(KIND)


@pytest.fixture(scope="module")
def content(tmp_path_factory) -> bytes:
    """A file with three levels of keys and some wide intervals."""
    rng = np.random.default_rng(0)
    base = (rng.zipf(1.4, 6000) % 300).astype(np.int32)
    documents = [base, base[100:900], base[50:60], np.zeros(300, np.int32)]
    path = tmp_path_factory.mktemp("hostile") / "c.ngc"
    Corpus.build(documents, path)
    return path.read_bytes()


def use(path, rng) -> str:
    """Do all that can be done with a file; how it ended."""
    try:
        corpus = Corpus.open(path)
    except StoreFileError:
        return "refused"
    limit = corpus.index.limit
    for _ in range(12):
        context = rng.integers(0, 6, rng.integers(0, 70)).astype(np.int32)
        length, first, end = corpus.index.longest(context)
        assert 0 <= length <= 64
        assert 0 <= first <= end <= len(corpus.index)
        for token, count in corpus.continuations(context):
            assert 0 <= token < limit
            assert count > 0
        for place in (first, end - 1):
            if end > first and corpus.index.place(place) >= 0:
                read = corpus.index.tokens_at(corpus.index.place(place), 50)
                assert ((read >= 0) & (read < limit)).all()
    try:
        corpus.verify()
    except StoreFileError:
        return "found broken"
    return "unharmed"


def test_random_mutations_and_truncations(content, tmp_path):
    ends = attack(content, KIND, use, tmp_path / "broken.ngc", 600, seed=0)
    assert ends["refused"] > 100
    assert ends["found broken"] > 50


@pytest.mark.slow
def test_a_hundred_thousand_mutations(content, tmp_path):
    attack(content, KIND, use, tmp_path / "broken.ngc", 100_000, seed=1)


HAND_MADE = {
    "empty": lambda c: b"",
    "text": lambda c: b"def main(): ...\n" * 99,
    "ends in magic": lambda c: c[:5],
    "ends in header": lambda c: c[:100],
    "ends in sections": lambda c: c[:-1],
    "goes on": lambda c: c + b"\0",
    "other magic": lambda c: b"NGS" + c[3:],
    "other version": lambda c: with_number(c, KIND, 8, "I", 2),
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
    "section behind the file": lambda c: with_number(c, KIND, SECTIONS, "Q", 2**64 - 64),
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
        "other version": "has format 2, this is for format 1: build it again",
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


@pytest.mark.parametrize("section", range(6))
@pytest.mark.parametrize("value", [0, 0xFF])
def test_a_section_of_one_value(content, tmp_path, section, value):
    where = sections(content, KIND)[section]
    broken = bytearray(content)
    broken[where.offset : where.offset + where.size] = bytes([value]) * where.size
    path = tmp_path / "broken.ngc"
    path.write_bytes(made_right(broken, KIND))
    assert use(path, np.random.default_rng(0)) == "found broken"


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
