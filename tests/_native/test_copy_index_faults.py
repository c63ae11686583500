"""The copy index under wrong input, in two threads and without memory stays what it was."""

from __future__ import annotations

import contextlib
import gc

import numpy as np
import pytest
from native_strategies import (
    NOT_INT32_ARRAYS,
    NOT_TOKENS,
    assert_same_draft,
    copy_index,
    int32,
    needs_rlimit,
    run_beside,
    run_short_of_memory,
)

from ngramspec._native.copyindex import CopyIndex
from tests import twins as reference

BOTH = pytest.mark.parametrize("index_type", [CopyIndex, reference.CopyIndex])


SAMPLE = [1, 2, 3, 4, 1, 2, 3, 5, 1, 2]


def assert_as_before(index: CopyIndex) -> None:
    index.check_integrity()
    assert len(index) == len(SAMPLE)
    twin = copy_index(SAMPLE, reference.CopyIndex)
    assert index.longest_match() == twin.longest_match() == (2, 6)
    assert_same_draft(index.draft(7), twin.draft(7))
    assert_same_draft(index.draft(7, int32([3, 4])), twin.draft(7, int32([3, 4])))
    index.extend(int32([3]))  # still open for more
    assert index.longest_match() == (3, 7)


@pytest.mark.parametrize(("tokens", "said"), NOT_TOKENS)
def test_extend_refuses_what_is_no_int32_array(tokens, said):
    index = copy_index(SAMPLE)
    with pytest.raises(TypeError, match=rf"^tokens must .*int32 array, got {said}"):
        index.extend(tokens)
    assert_as_before(index)


def test_extend_refuses_negative_ids_and_appends_nothing():
    index = copy_index(SAMPLE)
    with pytest.raises(ValueError, match=r"token ids must be >= 0, got -5 at index 2"):
        index.extend(int32([8, 9, -5, 8]))
    assert_as_before(index)


@pytest.mark.parametrize(("prefix", "said"), NOT_INT32_ARRAYS)
def test_draft_refuses_what_is_no_int32_array(prefix, said):
    index = copy_index(SAMPLE)
    with pytest.raises(TypeError, match=rf"^prefix must .*int32 array, got {said}"):
        index.draft(2, prefix)
    assert_as_before(index)


@BOTH
def test_out_of_range_numbers_are_named(index_type):
    index = copy_index(SAMPLE, index_type)
    for draft in (index.draft, lambda gamma: index.copies(gamma, 2)):
        with pytest.raises(ValueError, match=r"gamma must be >= 0, got -1"):
            draft(-1)
        for gamma in (2**16 + 1, 2**31 - 1, 2**40):
            with pytest.raises(ValueError, match=rf"gamma must be <= 65536, got {gamma}"):
                draft(gamma)
    assert len(index.draft(2**16)[0]) == 2**16
    with pytest.raises(ValueError, match=r"most must be >= 1, got 0"):
        index.copies(2, 0)
    for min_match in (0, -2):
        with pytest.raises(ValueError, match=rf"min_match must be >= 1, got {min_match}"):
            index.draft(1, None, min_match)
        with pytest.raises(ValueError, match=rf"min_match must be >= 1, got {min_match}"):
            index.copies(1, 2, min_match)
    index.check_integrity()
    assert index.longest_match() == (2, 6)


def test_read_only_arrays_are_taken():
    text = int32([1, 2, 1, 2])
    text.flags.writeable = False
    index = copy_index(text)
    assert index.draft(2, text)[0].tolist() == [1, 2]


def test_drafts_stay_what_they_were():
    index = copy_index([1, 2, 3, 1])
    tokens, _ = index.draft(3)
    index.extend(int32([5, 1, 5, 1]))
    index.draft(3)
    assert tokens.tolist() == [2, 3, 1]


def test_two_threads_are_kept_apart():
    text = np.random.default_rng(5).integers(0, 50_000, 400_000, np.int32)
    index = CopyIndex()
    refused = run_beside(
        lambda: index.extend(text),
        {
            "draft": lambda: index.draft(4),
            "longest_match": index.longest_match,
            "check_integrity": index.check_integrity,
        },
    )
    assert min(refused.values()) > 0, refused
    assert len(index) == len(text)
    index.extend(text[:5])
    index.check_integrity()


def test_copies_lets_nobody_in_while_it_makes_arrays():
    """Making them may collect garbage, and that may run anything: here, what commits."""
    index = copy_index([7, 1, 1, 7, 2, 7, 3, 7] * 3)
    expected = [each.tolist() for each in index.copies(40, 8)]
    inside = False

    def commit(phase, info):
        if inside:
            with contextlib.suppress(RuntimeError):
                index.extend(int32([9, 7]))

    thresholds = gc.get_threshold()
    gc.callbacks.append(commit)
    gc.set_threshold(1)
    try:
        inside = True
        found = index.copies(40, 8)
        inside = False
    finally:
        gc.callbacks.remove(commit)
        gc.set_threshold(*thresholds)
    assert [each.tolist() for each in found] == expected
    index.check_integrity()


SAME = """
def assert_same(index, text):
    fresh = CopyIndex()
    fresh.extend(text)
    index.check_integrity()
    assert len(index) == len(text)
    assert index.longest_match() == fresh.longest_match()
    for at in range(0, len(text), len(text) // 50):
        for prefix in (text[at : at + 1], text[at : at + 30]):
            (ours, matched), (theirs, expected) = index.draft(8, prefix), fresh.draft(8, prefix)
            assert matched == expected
            assert np.array_equal(ours, theirs)
"""


@needs_rlimit
def test_lack_of_memory_leaves_a_valid_index():
    """At several limits, so that different arrays are the ones that cannot grow."""
    run_short_of_memory(
        SAME
        + """
for vocabulary in (2, 40, 3000, 2**31 - 1):
    for headroom in (2 * MB, 3.1 * MB, 4.7 * MB, 7 * MB):
        stream = rng.integers(0, vocabulary, 400_000, np.int32)
        index = CopyIndex()
        n = fill(index, stream, headroom)
        assert len(index) == n
        assert_same(index, stream[:n])
        index.extend(stream[n : n + 20_000])
        assert_same(index, stream[: n + 20_000])
"""
    )


@needs_rlimit
def test_lack_of_memory_undoes_a_half_added_token():
    """After a long run of equals, one other token adds an edge to each state of the run.

    Its arrays and their index grow several times before memory ends, and all edges are undone.
    """
    run_short_of_memory(
        SAME
        + """
for headroom in (0.4 * MB, 1 * MB, 1.5 * MB, 2.2 * MB):
    run = np.zeros(150_000, np.int32)
    index = CopyIndex()
    index.extend(run)
    before = index.sizeof()
    with memory(headroom):
        try:
            index.extend(np.array([1], np.int32))
        except MemoryError as error:
            assert str(len(run)) in str(error)
        else:
            raise AssertionError("memory did not end")
    assert index.sizeof() > before + headroom / 4  # it had grown: the undo spans resizes
    assert_same(index, run)
    text = np.concatenate([run, np.array([1, 0, 0, 1, 0, 0, 0], np.int32)])
    index.extend(text[len(run) :])
    assert_same(index, text)
"""
    )
