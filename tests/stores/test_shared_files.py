"""A shared store's file is whole or refused, and whatever it holds, nothing else happens."""

from __future__ import annotations

import json
import multiprocessing
import os
import struct
import tracemalloc

import numpy as np
import pytest
from fuzz_stores import BYTES, filled_store, shared_file_content, use_shared
from hostile_files import attack, first_section, made_right, sealed, sections, with_number
from native_strategies import int32

from ngramspec._native.store_ring import BORDER
from ngramspec.stores import SharedStore, StoreFileError
from ngramspec.stores.shared import KIND

SECTIONS = first_section(KIND)


def texts(store):
    return {name: ring.codes(0)[1].tolist() for name, ring in store.rings().items()}


@pytest.fixture(scope="module")
def content(tmp_path_factory):
    return shared_file_content(tmp_path_factory.mktemp("shared"))


def test_what_was_saved_is_loaded(tmp_path):
    store = filled_store(write="all", live=False)
    store["b"].request().index.find(int32([1, 2]))
    store.save(tmp_path / "s.ngs")
    again = SharedStore.load(tmp_path / "s.ngs")
    assert texts(again) == texts(store)
    assert list(again) == list(store)
    assert again.statistics() == store.statistics()
    assert (again.write, again.live, again.namespace_bytes) == ("all", False, 1 << 15)
    context = int32(texts(store)["b"][1:9])
    assert again["b"].index.find(context) == store["b"].index.find(context)
    assert [each.name for each in tmp_path.iterdir()] == ["s.ngs"]
    again.check_integrity()


def test_an_empty_store(tmp_path):
    store = SharedStore()
    store.save(tmp_path / "s.ngs")
    assert list(SharedStore.load(tmp_path / "s.ngs")) == []


def test_text_that_does_not_fit_is_left_out_the_oldest_first(tmp_path, caplog):
    store = SharedStore(1 << 16, namespace_bytes=1 << 13)
    for i in range(8):
        store[f"n{i}"].add(np.arange(250, dtype=np.int32) + 1000 * i)
    store.save(tmp_path / "s.ngs")
    small = SharedStore.load(tmp_path / "s.ngs", 1 << 13, namespace_bytes=1 << 12)
    assert list(small) == ["n6", "n7"]
    kept = texts(small)["n7"]
    assert kept == [BORDER, *range(7250 - len(kept) + 1, 7250)]
    assert "does not fit into the store; tokens left out: 1720" in caplog.text
    small.check_integrity()


def test_broken_files(content, tmp_path):
    ends = attack(content, KIND, use_shared, tmp_path / "broken.ngs", 400, seed=0)
    assert ends["refused"] > 200
    assert ends["loaded"] > 20


def with_names(content, names):
    """The content with another last section, its checksums right."""
    last = sections(content, KIND)[1]
    new = names if isinstance(names, bytes) else lines_of(names)
    broken = bytearray(content[: last.offset] + new)
    struct.pack_into("<Q", broken, SECTIONS + 24 + 8, len(new))
    return made_right(broken, KIND)


def lines_of(names):
    return b"".join(json.dumps(each).encode() + b"\n" for each in names)


def with_codes(content, *codes):
    """The content with other first codes, its checksums right."""
    broken = bytearray(content)
    struct.pack_into(f"<{len(codes)}i", broken, sections(content, KIND)[0].offset, *codes)
    return made_right(broken, KIND)


def entries(content):
    return [json.loads(each) for each in content[sections(content, KIND)[1].offset :].splitlines()]


HAND_MADE = {
    "empty": lambda c: b"",
    "text": lambda c: b"def main(): ...\n" * 99,
    "ends in header": lambda c: c[:100],
    "ends in sections": lambda c: c[:-1],
    "goes on": lambda c: c + b"\0",
    "a corpus": lambda c: c[:3] + b"C" + c[4:],
    "other version": lambda c: with_number(c, KIND, 8, "I", 1),
    "other byte order": lambda c: c[:12] + c[12:16][::-1] + c[16:],
    "no bytes": lambda c: with_number(c, KIND, 20, "Q", 0),
    "another write": lambda c: with_number(c, KIND, 28, "I", 3),
    "another live": lambda c: with_number(c, KIND, 32, "I", 2),
    "section after the file": lambda c: with_number(c, KIND, SECTIONS, "Q", 2**64 - 64),
    "section past the end": lambda c: with_number(c, KIND, SECTIONS + 8, "Q", 2**63),
    "section of an odd size": lambda c: with_number(c, KIND, SECTIONS + 8, "Q", 1),
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
}


@pytest.mark.parametrize("name", HAND_MADE)
def test_hand_made_files_are_refused(content, tmp_path, name):
    path = tmp_path / "broken.ngs"
    path.write_bytes(HAND_MADE[name](content))
    with pytest.raises(StoreFileError, match=r"broken\.ngs"):
        SharedStore.load(path)


def test_a_file_does_not_decide_how_much_memory_is_taken(content, tmp_path):
    path = tmp_path / "huge.ngs"
    path.write_bytes(with_number(content, KIND, 20, "Q", 2**63))
    tracemalloc.start()
    store = SharedStore.load(path, BYTES)
    assert tracemalloc.get_traced_memory()[1] < 1 << 22
    tracemalloc.stop()
    assert store.sizeof() <= BYTES + 1024
    assert len(store) == 1


@pytest.mark.parametrize("section", [0, 1])
def test_another_byte_in_a_section_is_found(content, tmp_path, section):
    where = sections(content, KIND)[section]
    broken = bytearray(content)
    broken[where.offset + where.size // 2] ^= 1
    path = tmp_path / "broken.ngs"
    path.write_bytes(broken)
    with pytest.raises(StoreFileError, match=f"section {KIND.sections[section]} is broken"):
        SharedStore.load(path)
    path.write_bytes(sealed(broken, KIND))
    with pytest.raises(StoreFileError, match="its checksum is another"):
        SharedStore.load(path)


def test_a_failed_save_leaves_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "s.ngs"
    filled_store().save(path)
    old = path.read_bytes()

    def full(*_):
        raise OSError("no space left")

    monkeypatch.setattr(os, "fsync", full)
    store = filled_store()
    store["c"].add(int32([1, 2, 3]))
    with pytest.raises(OSError, match="no space left"):
        store.save(path)
    assert path.read_bytes() == old
    assert [each.name for each in tmp_path.iterdir()] == ["s.ngs"]


def save_and_die(path, step, count):
    """Save, and end the process at the ``count``-th call of a step, as a kill would."""
    import pathlib

    from ngramspec.stores import files

    calls = 0

    def dying(then):
        def call(*arguments, **options):
            nonlocal calls
            calls += 1
            if calls == count:
                os._exit(9)
            return then(*arguments, **options)

        return call

    if step == "fsync":
        os.fsync = dying(os.fsync)
    elif step == "replace":
        pathlib.Path.replace = dying(pathlib.Path.replace)
    else:
        files._write_section = dying(files._write_section)
    store = filled_store()
    store["c"].add(int32([1, 2, 3]))
    store.save(path)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="forks")
@pytest.mark.parametrize(
    ("step", "count", "new"),
    [("write", 1, False), ("write", 2, False), ("fsync", 1, False), ("replace", 1, False),
     ("fsync", 2, True)],
)  # fmt: skip
def test_a_kill_leaves_the_old_file_or_the_new_one(tmp_path, step, count, new):
    path = tmp_path / "s.ngs"
    filled_store().save(path)
    process = multiprocessing.get_context("spawn").Process(
        target=save_and_die, args=(path, step, count)
    )
    process.start()
    process.join()
    assert process.exitcode == 9
    assert ("c" in SharedStore.load(path)) is new
    assert len(list(tmp_path.iterdir())) == (1 if new else 2)
    filled_store().save(path)
    assert [each.name for each in tmp_path.iterdir()] == ["s.ngs"]
