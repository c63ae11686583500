"""A shared store's file is whole, and does not decide how much memory and time loading takes."""

from __future__ import annotations

import multiprocessing
import os

import numpy as np
import pytest
from fuzz_stores import BYTES, filled_store, shared_file_content
from hostile_files import laid_out, lines_of, memory_below, with_number
from native_strategies import int32

from ngramspec._native import BORDER, StoreRing, StoreStream
from ngramspec.stores import SharedStore, StoreFileError, shared
from ngramspec.stores.shared import KIND


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


def test_text_that_does_not_fit_is_left_out_the_oldest_first(tmp_path, caplog):
    store = SharedStore(1 << 16, namespace_bytes=1 << 13)
    for i in range(8):
        store[f"n{i}"].add(np.arange(250, dtype=np.int32) + 1000 * i)
    store.save(tmp_path / "s.ngs")
    small = SharedStore.load(tmp_path / "s.ngs", 1 << 13, namespace_bytes=1 << 12)
    assert list(small) == ["n6", "n7"]
    kept = texts(small)["n7"]
    assert kept == [*range(7250 - len(kept), 7250)]
    assert f"does not fit into the store; tokens left out: {2000 - 2 * len(kept)}" in caplog.text
    small.check_integrity()


def test_a_file_does_not_decide_how_much_memory_is_taken(content, tmp_path):
    path = tmp_path / "huge.ngs"
    path.write_bytes(with_number(content, KIND, 20, "Q", 2**63))
    with memory_below(1 << 22):
        store = SharedStore.load(path, BYTES)
    assert store.sizeof() <= BYTES + 1024
    assert len(store) == 1


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


@pytest.mark.every(4)
@pytest.mark.skipif(not hasattr(os, "fork"), reason="forks")
@pytest.mark.parametrize(
    ("step", "count", "new"), [("write", 2, False), ("replace", 1, False), ("fsync", 2, True)]
)
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


MIB = 1 << 20
TOO_LARGE = {  # sections text and names of files that are loaded into a store of 1 MiB
    "text": (bytes(MIB + 4), [["a", MIB // 4 + 1, 0, 0, 0, 0]], "text must have at most"),
    "names": (b"", [[]] * 400_000, "names must have at most max_bytes=1048576"),
    "count": (
        *(b"", [[str(i), 0, 0, 0, 0, 0] for i in range(1793)]),
        "must have at most 1792 namespaces with max_bytes=1048576, got more",
    ),
    "no names": (b"", [["", 0, 0, 0, 0, 0]] * 40_000, "a name must be a string of 1"),
    "lists": (b"", [[]] * 200_000, "an element is no namespace"),
    "a long name": (b"", [["a" * (MIB // 2), 0, 0, 0, 0, 0]], "names is broken: a line"),
}


@pytest.mark.parametrize("name", TOO_LARGE)
def test_files_that_would_take_much_memory_are_refused(content, tmp_path, name):
    text, names, says = TOO_LARGE[name]
    path = tmp_path / "large.ngs"
    path.write_bytes(laid_out(content, KIND, [text, lines_of(names)]))
    with memory_below(5 << 20), pytest.raises(StoreFileError, match=says):
        SharedStore.load(path, 1 << 20)


def test_empty_documents_take_no_memory(content, tmp_path):
    count = 1 << 20
    codes = np.full(count, BORDER, np.int32)
    codes[-3:] = 7, BORDER, 8
    path = tmp_path / "borders.ngs"
    parts = [codes.tobytes(), lines_of([["a", count, 0, 0, 0, 0]])]
    path.write_bytes(laid_out(with_number(content, KIND, 20, "Q", 1 << 25), KIND, parts))
    with memory_below(6 << 20):  # the text of 4 MiB and a mask
        store = SharedStore.load(path, 1 << 25)
    assert texts(store) == {"a": [BORDER, 7, BORDER, 8]}


def test_a_file_that_is_truncated_while_it_is_read(tmp_path, monkeypatch):
    path, store = tmp_path / "s.ngs", SharedStore(1 << 20, namespace_bytes=1 << 20)
    store["a"].add(np.arange(20_000, dtype=np.int32))
    store.save(path)
    read = shared.read_section

    def truncated(*arguments):
        os.truncate(path, KIND.header_size + 100)
        return read(*arguments)

    monkeypatch.setattr(shared, "read_section", truncated)
    with pytest.raises(StoreFileError, match="was truncated while it was read"):
        SharedStore.load(path)


def test_any_store_can_be_loaded_with_the_memory_that_it_had(tmp_path):
    """The longest names, escaped as they are in the file, and as many of them as fit."""
    store = SharedStore(1 << 16, namespace_bytes=1 << 12)
    for i in range(16):
        store[chr(0x1F600 + i) * 256].add(np.arange(1000, dtype=np.int32) + i)
    store.save(tmp_path / "s.ngs")
    loaded = SharedStore.load(tmp_path / "s.ngs", 1 << 16)
    assert list(loaded) == list(store)
    assert texts(loaded) == texts(store)


class Growing:
    """A namespace's text to which others add more than is copied, each time some is copied."""

    def __init__(self, ring, tokens):
        self.ring, self.tokens, self.copies = ring, tokens, 0

    @property
    def written(self):
        return self.ring.written

    def codes(self, at, *most):
        self.copies += 1
        assert self.copies < 100, "the copy goes on as long as others write"
        copied = self.ring.codes(at, *most)
        StoreStream(self.ring).append(np.full(self.tokens, 5, np.int32))
        return copied


@pytest.mark.parametrize("added", [64, 4096, 20_000])
def test_a_copy_ends_where_the_text_ended_when_it_began(added):
    ring = StoreRing(30_000)
    stream = StoreStream(ring)
    stream.append(np.arange(10_000, dtype=np.int32) % 1000 + 10)
    stream.finish()
    copied = np.concatenate(list(shared.pieces_of(Growing(ring, added))))
    assert 5 not in copied
    if added < 20_000:
        assert copied.tolist() == [BORDER, *(np.arange(10_000) % 1000 + 10)]


def test_small_namespaces_take_little_more_than_their_text():
    store = SharedStore(4000 << 12, namespace_bytes=1 << 12)
    store.ring("first")
    with memory_below(1000 * 512):  # without the rings' text, which is native
        for i in range(1000):
            store.ring(str(i))
