"""The n-gram table under wrong input, in two threads and without memory stays what it was."""

from __future__ import annotations

import numpy as np
import pytest
from native_strategies import (
    NOT_INT32_ARRAYS,
    NOT_TOKENS,
    assert_same_counts,
    assert_same_draft,
    int32,
    needs_rlimit,
    run_beside,
    run_short_of_memory,
)

from ngramspec._native.ngram import NGramTable
from tests import twins as reference

BOTH = pytest.mark.parametrize("table_type", [NGramTable, reference.NGramTable])


def example() -> NGramTable:
    table = NGramTable(4, window=8)
    table.extend(int32([1, 2, 3, 1, 2, 3, 1, 2, 4, 1]))
    return table


def assert_as_before(table: NGramTable) -> None:
    table.check_integrity()
    assert len(table) == 8
    assert_same_counts(table, example(), [3, 1, 2, 3, 1, 2, 4, 1])
    assert_same_draft(table.draft(5), example().draft(5))
    table.extend(int32([2]))  # still open for more
    assert table.draft(1)[0].tolist() == [4]


@pytest.mark.parametrize(("tokens", "said"), NOT_TOKENS)
def test_extend_refuses_what_is_no_int32_array(tokens, said):
    table = example()
    with pytest.raises(TypeError, match=rf"^tokens must .*int32 array, got {said}"):
        table.extend(tokens)
    assert_as_before(table)


def test_extend_refuses_negative_ids_and_counts_nothing():
    table = example()
    with pytest.raises(ValueError, match=r"token ids must be >= 0, got -5 at index 2"):
        table.extend(int32([8, 9, -5, 8]))
    assert_as_before(table)


@pytest.mark.parametrize(("prefix", "said"), NOT_INT32_ARRAYS)
def test_draft_refuses_what_is_no_int32_array(prefix, said):
    table = example()
    with pytest.raises(TypeError, match=rf"^prefix must .*int32 array, got {said}"):
        table.draft(2, prefix)
    assert_as_before(table)


@pytest.mark.parametrize(("context", "said"), NOT_TOKENS)
def test_look_up_refuses_what_is_no_int32_array(context, said):
    table = example()
    for look_up in (
        lambda: table.top_k(context, 1),
        lambda: table.total(context),
    ):
        with pytest.raises(TypeError, match=rf"^context must .*int32 array, got {said}"):
            look_up()
    assert_as_before(table)


@BOTH
@pytest.mark.parametrize("context", [[], [1, 2, 3, 4]])
def test_look_up_refuses_contexts_of_a_wrong_length(table_type, context):
    table = table_type(4)
    table.extend(int32([1, 2, 3, 4, 5]))
    said = rf"context must have 1..3 tokens, got {len(context)}"
    with pytest.raises(ValueError, match=said):
        table.total(int32(context))
    with pytest.raises(ValueError, match=said):
        table.top_k(int32(context), 1)
    table.check_integrity()


@BOTH
def test_out_of_range_numbers_are_named(table_type):
    for order in (1, 9, 0, -3):
        with pytest.raises(ValueError, match=rf"order must be in 2..8, got {order}$"):
            table_type(order)
    for window in (3, 1, 0, -1):
        with pytest.raises(ValueError, match=rf"window must be .* 4 \(the order\).*, got {window}"):
            table_type(4, window)
    table = table_type(4)
    table.extend(int32([1, 2, 1, 2]))
    with pytest.raises(ValueError, match=r"gamma must be >= 0, got -1"):
        table.draft(-1)
    for gamma in (2**16 + 1, 2**31 - 1, 2**40):
        with pytest.raises(ValueError, match=rf"gamma must be <= 65536, got {gamma}"):
            table.draft(gamma)
    assert table.draft(2**16)[0].tolist() == [1, 2] * 2**15
    for k in (0, -2):
        with pytest.raises(ValueError, match=rf"k must be >= 1, got {k}"):
            table.top_k(int32([1]), k)
    table.check_integrity()
    assert table.top_k(int32([1]), 1) == [(2, 2)]


def test_a_window_beyond_the_longest_text_is_refused():
    with pytest.raises(ValueError, match=rf"window must be in 4 .*, got {2**30 + 1}"):
        NGramTable(4, 2**30 + 1)


def test_read_only_arrays_are_taken():
    text = int32([1, 2, 1, 2])
    text.flags.writeable = False
    table = NGramTable(3)
    table.extend(text)
    assert table.draft(2, text)[0].tolist() == [1, 2]
    assert table.top_k(text[:1], 1) == [(2, 2)]


def test_drafts_stay_what_they_were():
    table = NGramTable(3)
    table.extend(int32([1, 2, 3, 1]))
    tokens, orders = table.draft(3)
    table.extend(int32([5, 1, 5, 1]))
    table.draft(3)
    assert (tokens.tolist(), orders.tolist()) == ([2, 3, 1], [2, 3, 3])


def test_two_threads_are_kept_apart():
    text = np.random.default_rng(5).integers(0, 50_000, 400_000, np.int32)
    table, context, more = NGramTable(4), text[:2], int32([1])
    refused = run_beside(
        lambda: table.extend(text),
        {
            "draft": lambda: table.draft(4),
            "top_k": lambda: table.top_k(context, 4),
            "total": lambda: table.total(context),
            "contexts": table.contexts,
            "check_integrity": table.check_integrity,
        },
    )
    assert min(refused.values()) > 0, refused
    assert len(table) == len(text)
    table.extend(more)
    table.check_integrity()


@needs_rlimit
def test_lack_of_memory_leaves_a_valid_table():
    run_short_of_memory("""
for window in (None, 100_000):
    for vocabulary, headroom in ((2**31 - 1, 8 * MB), (300, 8 * MB), (300, 3 * MB)):
        stream = rng.integers(0, vocabulary, 400_000, np.int32)
        if window is not None:
            stream[: window + 10_000] = 5  # the table grows when it already forgets
        table, fresh = NGramTable(5, window), NGramTable(5, window)
        n = fill(table, stream, headroom)
        assert len(table) == (n if window is None else window)
        fresh.extend(stream[:n])
        for step in range(2):
            assert np.array_equal(np.sort(table.contexts()), np.sort(fresh.contexts()))
            for at in range(0, n, n // 50):
                for ours, theirs in zip(
                    table.draft(8, stream[at : at + 4]), fresh.draft(8, stream[at : at + 4])
                ):
                    assert np.array_equal(ours, theirs)
            table.extend(stream[n : n + 50_000])
            fresh.extend(stream[n : n + 50_000])
            table.check_integrity()
with memory(64 * MB):
    try:
        NGramTable(4, window=2**30)
    except MemoryError:
        pass
    else:
        raise AssertionError("a window of 4 GB was granted")
""")
