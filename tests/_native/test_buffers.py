"""Tokens in memory that is not NumPy's: read, held while it is read, refused if misaligned."""

from __future__ import annotations

import ctypes
import threading
from array import array

import numpy as np
import pytest
from native_strategies import LAST_ID, MISALIGNED, int32

from ngramspec._native.copyindex import CopyIndex
from ngramspec._native.ngram import NGramTable
from ngramspec._native.unigram import UnigramCounts
from ngramspec._native.value import Calibration, ValueEngine

STRUCTURES = pytest.mark.parametrize(
    ("make", "ask"),
    [
        (lambda: NGramTable(3), lambda table: table.draft(1)),
        (CopyIndex, lambda index: index.draft(1)),
        (UnigramCounts, lambda counts: counts.best()),
        (lambda: ValueEngine(Calibration()), lambda engine: engine.draft(1)),
    ],
    ids=["ngram", "copy", "unigram", "value"],
)


@STRUCTURES
def test_any_buffer_of_int32_is_read(make, ask):
    text = [5, 6, 7, 5, 6] * 20
    expected = make()
    expected.extend(int32(text))
    for tokens in (array("i", text), (ctypes.c_int * 100)(*text), memoryview(int32(text))):
        structure = make()
        structure.extend(tokens)
        structure.check_integrity()
        assert len(structure) == 100
        assert str(ask(structure)) == str(ask(expected))


@STRUCTURES
def test_memory_is_held_while_it_is_read_without_the_gil(make, ask):
    """An array that another thread is about to resize must not be freed under the reader."""
    text = np.random.default_rng(5).integers(0, LAST_ID, 400_000, np.int32)
    tokens, structure = array("i", text.tobytes()), make()

    def is_read() -> bool:
        try:
            ask(structure)
        except RuntimeError:
            return True
        return False

    reader = threading.Thread(target=structure.extend, args=(tokens,))
    reader.start()
    refused = 0
    while reader.is_alive():
        before = is_read()
        try:
            tokens.append(1)
        except BufferError:
            refused += before
        else:
            assert not (before and is_read()), "resized while it was read"
    reader.join()
    assert refused > 0
    tokens.append(1)  # let go of afterwards
    structure.check_integrity()


@STRUCTURES
def test_misaligned_tokens_are_refused(make, ask):
    structure = make()
    structure.extend(int32([1, 2, 1, 2]))
    before = str(ask(structure))
    for tokens in (MISALIGNED, memoryview(MISALIGNED)):
        with pytest.raises(TypeError, match=r"tokens must be an aligned int32 array.*pass a copy"):
            structure.extend(tokens)
    assert str(ask(structure)) == before
    structure.extend(MISALIGNED.copy())
    structure.check_integrity()
    assert len(structure) == 6
