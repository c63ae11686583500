"""A shared store's file does not decide how much memory is taken, nor how long loading takes."""

from __future__ import annotations

import json
import os
import struct
import tracemalloc

import numpy as np
import pytest
from fuzz_stores import shared_file_content
from hostile_files import first_section, laid_out, sealed, with_number

from ngramspec._native.store_ring import BORDER, StoreRing, StoreStream
from ngramspec.stores import SharedStore, StoreFileError, shared
from ngramspec.stores.shared import KIND


@pytest.fixture(scope="module")
def content(tmp_path_factory):
    return shared_file_content(tmp_path_factory.mktemp("shared"))


def texts(store):
    return {name: ring.codes(0)[1].tolist() for name, ring in store.rings().items()}


def names_of(*entries):
    return b"".join(json.dumps(each).encode() + b"\n" for each in entries)


MIB = 1 << 20
TOO_LARGE = {  # sections text and names of files that are loaded into a store of 1 MiB
    "text": ([bytes(MIB + 4), names_of(["a", MIB // 4 + 1, 0, 0, 0, 0])], "text must have at most"),
    "names": ([b"", b"[]\n" * 400_000], "names must have at most max_bytes=1048576"),
    "count": (
        [b"", names_of(*([str(i), 0, 0, 0, 0, 0] for i in range(1793)))],
        "must have at most 1792 namespaces with max_bytes=1048576, got more",
    ),
    "no names": ([b"", names_of(*[["", 0, 0, 0, 0, 0]] * 40_000)], "a name must be a string of 1"),
    "lists": ([b"", b"[]\n" * 200_000], "an element is no namespace"),
    "a long name": ([b"", names_of(["a" * (MIB // 2), 0, 0, 0, 0, 0])], "names is broken: a line"),
    "deep lists": ([b"", b"[" * 4000 + b"\n"], "names is broken: maximum recursion"),
}


@pytest.mark.parametrize("name", TOO_LARGE)
def test_files_that_would_take_much_memory_are_refused(content, tmp_path, name):
    parts, says = TOO_LARGE[name]
    path = tmp_path / "large.ngs"
    path.write_bytes(laid_out(content, KIND, parts))
    tracemalloc.start()
    with pytest.raises(StoreFileError, match=says):
        SharedStore.load(path, 1 << 20)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 5 << 20


def test_empty_documents_take_no_memory(content, tmp_path):
    count = 1 << 20
    codes = np.full(count, BORDER, np.int32)
    codes[-3:] = 7, BORDER, 8
    path = tmp_path / "borders.ngs"
    parts = [codes.tobytes(), names_of(["a", count, 0, 0, 0, 0])]
    path.write_bytes(laid_out(with_number(content, KIND, 20, "Q", 1 << 25), KIND, parts))
    tracemalloc.start()
    store = SharedStore.load(path, 1 << 25)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 3 << 20
    assert texts(store) == {"a": [BORDER, 7, BORDER, 8]}


def test_a_sparse_file_of_16_gib_is_refused_before_it_is_read(content, tmp_path, monkeypatch):
    header = bytearray(content[: KIND.header_size])
    begin, size, names = KIND.header_size, 16 << 30, b"\n"
    numbers = (begin, size, 0, begin + size, len(names), 0)
    struct.pack_into("<QQQQQQ", header, first_section(KIND), *numbers)
    path = tmp_path / "sparse.ngs"
    with open(path, "wb") as file:
        file.write(sealed(header, KIND))
        file.seek(begin + size)
        file.write(names)

    def read(*_):
        raise AssertionError("a section is read")

    monkeypatch.setattr(shared, "chunks_of", read)
    with pytest.raises(StoreFileError, match="at most max_bytes=67108864 bytes, got 17179869184"):
        SharedStore.load(path)


def test_any_store_can_be_loaded_with_the_memory_that_it_had(tmp_path):
    """The longest names, escaped as they are in the file, and as many of them as fit."""
    store = SharedStore(1 << 16, namespace_bytes=1 << 12)
    for i in range(16):
        store[chr(0x1F600 + i) * 256].add(np.arange(1000, dtype=np.int32) + i)
    store.save(tmp_path / "s.ngs")
    loaded = SharedStore.load(tmp_path / "s.ngs", 1 << 16)
    assert list(loaded) == list(store)
    for name, codes in texts(loaded).items():
        assert codes == [BORDER, *texts(store)[name][1:]]


def test_a_file_that_is_truncated_while_it_is_read(content, tmp_path, monkeypatch):
    path = tmp_path / "s.ngs"
    path.write_bytes(content)
    check = shared.check_checksums

    def then_truncate(*arguments):
        check(*arguments)
        os.truncate(path, KIND.header_size + 100)

    monkeypatch.setattr(shared, "check_checksums", then_truncate)
    with pytest.raises(StoreFileError, match="names is broken: a line"):
        SharedStore.load(path)


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
    tracemalloc.start()
    for i in range(1000):
        store.ring(str(i))
    taken = tracemalloc.get_traced_memory()[0]  # not the rings' text, which is native
    tracemalloc.stop()
    assert taken < 1000 * 512
