"""Under wrong input, foreign memory, a second thread and lack of memory, structures stay valid."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from native_strategies import (
    NOT_INT32_ARRAYS,
    NOT_TOKENS,
    copy_index,
    int32,
    needs_rlimit,
    run_beside,
    run_short_of_memory,
)

from ngramspec._native import Calibration, CopyIndex, NGramTable, ValueEngine

SAMPLE = [1, 2, 3, 4, 1, 2, 3, 5, 1, 2]


@dataclass
class Kind:
    """A structure, what it answers, and the calls that another thread may not make."""

    make: Callable[[], Any]
    answers: Callable[[Any], object]
    calls: tuple[str, ...]
    tokens: int = 400_000  # that another thread reads meanwhile

    def example(self):
        structure = self.make()
        structure.extend(int32(SAMPLE))
        return structure

    def assert_as_before(self, structure):
        """It is what the example is, and still open for more."""
        structure.check_integrity()
        same = self.example()
        assert len(structure) == len(same)
        for _ in range(2):
            assert str(self.answers(structure)) == str(self.answers(same))
            structure.extend(int32([3]))
            same.extend(int32([3]))


KINDS = {
    "ngram": Kind(
        lambda: NGramTable(4, window=8),
        lambda table: (table.draft(5), table.top_k(int32([2]), 9)),
        ("draft", "check_integrity", "top_k", "total"),
    ),
    "copy": Kind(
        CopyIndex,
        lambda index: (index.draft(7), index.draft(7, int32([3, 4])), index.copies(3, 9)),
        ("draft", "copies", "check_integrity"),
    ),
    "unigrams": Kind(
        lambda: NGramTable(1),
        lambda counts: counts.top_k(int32([]), 9),
        ("draft", "check_integrity"),
        tokens=3_000_000,
    ),
    "value": Kind(
        lambda: ValueEngine(Calibration()),
        lambda engine: (engine.draft(5), engine.draft_tree(5)),
        ("draft", "draft_tree", "check_integrity"),
    ),
}
ARGUMENTS = {"draft": (4,), "draft_tree": (4,), "top_k": (int32([1, 2]), 4)}
ARGUMENTS |= {"total": (int32([1, 2]),), "copies": (4, 4)}
EACH = pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
DRAFTING = pytest.mark.parametrize("kind", [KINDS["ngram"], KINDS["copy"]], ids=["ngram", "copy"])


@EACH
@pytest.mark.parametrize(("tokens", "said"), NOT_TOKENS)
def test_extend_refuses_what_is_no_int32_array(kind, tokens, said):
    structure = kind.example()
    with pytest.raises(TypeError, match=rf"^tokens must .*int32 array, got {said}"):
        structure.extend(tokens)
    kind.assert_as_before(structure)


@EACH
def test_extend_refuses_negative_ids_and_takes_nothing(kind):
    structure = kind.example()
    with pytest.raises(ValueError, match=r"token ids must be >= 0, got -5 at index 2"):
        structure.extend(int32([8, 9, -5, 8]))
    kind.assert_as_before(structure)


@DRAFTING
@pytest.mark.parametrize(("prefix", "said"), NOT_INT32_ARRAYS)
def test_draft_refuses_what_is_no_int32_array(kind, prefix, said):
    structure = kind.example()
    with pytest.raises(TypeError, match=rf"^prefix must .*int32 array, got {said}"):
        structure.draft(2, prefix)
    kind.assert_as_before(structure)


@pytest.mark.parametrize(("context", "said"), NOT_TOKENS)
def test_look_up_refuses_what_is_no_int32_array(context, said):
    table = KINDS["ngram"].example()
    for look_up in (lambda: table.top_k(context, 1), lambda: table.total(context)):
        with pytest.raises(TypeError, match=rf"^context must .*int32 array, got {said}"):
            look_up()
    KINDS["ngram"].assert_as_before(table)


@EACH
def test_read_only_memory_is_read(kind):
    frozen, structure = int32(SAMPLE), kind.make()
    frozen.flags.writeable = False
    structure.extend(frozen)
    kind.assert_as_before(structure)


@EACH
def test_two_threads_are_kept_apart(kind):
    text = np.random.default_rng(5).integers(0, 50_000, kind.tokens, np.int32)
    structure = kind.make()

    def call(name: str) -> object:
        found = getattr(structure, name)
        return found(*ARGUMENTS.get(name, ())) if callable(found) else found

    calls = {name: lambda name=name: call(name) for name in kind.calls}
    refused = run_beside(lambda: structure.extend(text), calls)
    assert min(refused.values()) > 0, refused
    structure.extend(text[:5])
    structure.check_integrity()


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


# Numbers out of their bounds.


def test_numbers_that_no_table_takes_are_named():
    for order in (9, 0, -3):
        with pytest.raises(ValueError, match=rf"order must be in 1..8, got {order}$"):
            NGramTable(order)
    for window in (3, 1, 0, -1):
        with pytest.raises(ValueError, match=rf"window must be .* 4 \(the order\).*, got {window}"):
            NGramTable(4, window)
    with pytest.raises(ValueError, match=rf"window must be in 4 .*, got {2**30 + 1}"):
        NGramTable(4, 2**30 + 1)
    table = NGramTable(4)
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
    for context in ([], [1, 2, 3, 4]):
        said = rf"context must have 1..3 tokens, got {len(context)}"
        for look_up in (table.total, lambda context: table.top_k(context, 1)):
            with pytest.raises(ValueError, match=said):
                look_up(int32(context))
    table.check_integrity()
    assert table.top_k(int32([1]), 1) == [(2, 2)]


def test_numbers_that_no_index_takes_are_named():
    index = copy_index(SAMPLE)
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
        for draft in (lambda n: index.draft(1, None, n), lambda n: index.copies(1, 2, n)):
            with pytest.raises(ValueError, match=rf"min_match must be >= 1, got {min_match}"):
                draft(min_match)
    index.check_integrity()
    assert index.draft(1)[1] == 2


# Memory is limited to several sizes, so that each array in turn fails to grow.

SAME_INDEX = """
def assert_same(index, text):
    fresh = CopyIndex()
    fresh.extend(text)
    index.check_integrity()
    assert len(index) == len(text)
    for at in range(0, len(text), len(text) // 50):
        for prefix in (text[at : at + 1], text[at : at + 30]):
            (ours, matched), (theirs, expected) = index.draft(8, prefix), fresh.draft(8, prefix)
            assert matched == expected
            assert np.array_equal(ours, theirs)
"""


@needs_rlimit
def test_lack_of_memory_leaves_a_valid_index():
    run_short_of_memory(
        SAME_INDEX
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
        SAME_INDEX
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
