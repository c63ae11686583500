"""Under wrong input, foreign memory, a second thread and lack of memory, structures stay valid."""

from __future__ import annotations

import contextlib
import gc
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
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


@EACH
def test_extend_takes_nothing_of_what_it_refuses_and_reads_read_only_memory(kind):
    structure = kind.example()
    for tokens, said in (param.values for param in NOT_TOKENS):
        with pytest.raises(TypeError, match=rf"^tokens must .*int32 array, got {said}"):
            structure.extend(tokens)
    with pytest.raises(ValueError, match=r"token ids must be >= 0, got -5 at index 2"):
        structure.extend(int32([8, 9, -5, 8]))
    kind.assert_as_before(structure)
    frozen, structure = int32(SAMPLE), kind.make()
    frozen.flags.writeable = False
    structure.extend(frozen)
    kind.assert_as_before(structure)


LOOK_UPS = {
    "ngram": (KINDS["ngram"], lambda table, given: table.draft(2, given), "prefix"),
    "copy": (KINDS["copy"], lambda index, given: index.draft(2, given), "prefix"),
    "top_k": (KINDS["ngram"], lambda table, given: table.top_k(given, 1), "context"),
    "total": (KINDS["ngram"], lambda table, given: table.total(given), "context"),
}


@pytest.mark.parametrize(("kind", "look_up", "name"), LOOK_UPS.values(), ids=LOOK_UPS)
@pytest.mark.parametrize(("tokens", "said"), NOT_INT32_ARRAYS)
def test_a_look_up_refuses_what_is_no_int32_array(kind, look_up, name, tokens, said):
    structure = kind.example()
    with pytest.raises(TypeError, match=rf"^{name} must .*int32 array, got {said}"):
        look_up(structure, tokens)
    kind.assert_as_before(structure)


@EACH
def test_two_threads_are_kept_apart(kind):
    text = np.random.default_rng(5).integers(0, 50_000, kind.tokens, np.int32)

    def call(name: str) -> object:
        found = getattr(structure, name)
        return found(*ARGUMENTS.get(name, ())) if callable(found) else found

    calls = {name: lambda name=name: call(name) for name in kind.calls}
    refused = Counter()
    for _ in range(10):  # until the threads have met in each call
        structure = kind.make()
        refused += Counter(run_beside(partial(structure.extend, text), calls))
        if refused.keys() == calls.keys():
            break
    assert refused.keys() == calls.keys()
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


GAMMAS = [(-1, "gamma must be >= 0, got -1")]
GAMMAS += [(n, f"gamma must be <= 65536, got {n}") for n in (2**16 + 1, 2**31 - 1, 2**40)]
CONTEXTS = [(int32(range(n)), f"context must have 1..3 tokens, got {n}") for n in (0, 4)]
LEAST = [(n, f"min_match must be >= 1, got {n}") for n in (0, -2)]
REFUSED = {  # by structure: a method, its arguments, what is said of them
    "ngram": [
        *(("draft", (gamma,), said) for gamma, said in GAMMAS),
        *(("top_k", (int32([1]), k), f"k must be >= 1, got {k}") for k in (0, -2)),
        *(("top_k", (context, 1), said) for context, said in CONTEXTS),
        *(("total", (context,), said) for context, said in CONTEXTS),
    ],
    "copy": [
        *(("draft", (gamma,), said) for gamma, said in GAMMAS),
        *(("copies", (gamma, 2), said) for gamma, said in GAMMAS),
        ("copies", (2, 0), "most must be >= 1, got 0"),
        *(("draft", (1, None, n), said) for n, said in LEAST),
        *(("copies", (1, 2, n), said) for n, said in LEAST),
    ],
}


@pytest.mark.parametrize("name", REFUSED)
def test_numbers_out_of_their_bounds_are_named(name):
    structure = KINDS[name].example()
    for method, arguments, said in REFUSED[name]:
        with pytest.raises(ValueError, match=said):
            getattr(structure, method)(*arguments)
    assert len(structure.draft(2**16)[0]) == 2**16
    KINDS[name].assert_as_before(structure)


def test_orders_and_windows_out_of_their_bounds_are_named():
    for order in (9, 0, -3):
        with pytest.raises(ValueError, match=rf"order must be in 1..8, got {order}$"):
            NGramTable(order)
    for window in (3, 1, 0, -1, 2**30 + 1):
        with pytest.raises(ValueError, match=rf"window must be in 4 \(the order\).*, got {window}"):
            NGramTable(4, window)


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
