"""The twins themselves: by definition, by hand, and in step with the native signatures."""

from __future__ import annotations

import ast
import doctest
import inspect
import sys
from pathlib import Path

import numpy as np
import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st
from native_strategies import QUICK, TEXTS, int32

from ngramspec import _native
from ngramspec._native import NGramTable
from tests import twins as reference

STUBS = ast.parse(Path(_native.__file__).with_suffix(".pyi").read_text()).body
TWINS = [
    (getattr(_native, name), getattr(reference, name))
    for name in ("NGramTable", "CopyIndex", "UnigramCounts")
]


def public(owner: type) -> dict[str, object]:
    return {name: getattr(owner, name) for name in dir(owner) if not name.startswith("_")}


@pytest.mark.parametrize(("native", "twin"), TWINS)
def test_twins_have_the_native_surface(native, twin):
    ours, theirs = public(native), public(twin)
    methods = {name for name in ours if callable(ours[name])} - {"sizeof", "longest_probe"}
    assert methods == {name for name in theirs if callable(theirs[name])}
    for name in methods:
        mine, its = (inspect.signature(each[name]).parameters.values() for each in (ours, theirs))
        assert [(p.name, p.default) for p in mine] == [(p.name, p.default) for p in its]


def test_stubs_name_what_is_there():
    checked = 0
    for node in STUBS:
        owner = getattr(_native, node.name) if hasattr(node, "name") else None
        inside = node.body if isinstance(node, ast.ClassDef) else [node]
        for each in inside:
            if not isinstance(each, ast.FunctionDef) or each.name == "__init__":
                continue
            found = owner if each is node else getattr(owner, each.name)
            if each.decorator_list or each.name.startswith("__"):
                continue
            parameters = inspect.signature(found).parameters.values()
            assert [p.name for p in parameters] == [arg.arg for arg in each.args.args], each.name
            assert sum(p.default is not p.empty for p in parameters) == len(each.args.defaults)
            checked += 1
    assert checked > 40


@pytest.mark.parametrize("make", [list, tuple, int32, lambda tokens: np.array(tokens, np.int64)])
def test_any_sequence_of_ints_is_taken(make):
    table, index, counts = reference.NGramTable(3), reference.CopyIndex(), reference.UnigramCounts()
    for structure in (table, index, counts):
        structure.extend(make([1, 2, 3, 1, 2]))
        structure.check_integrity()
        assert len(structure) == 5
    assert table.draft(2, make([3]))[0].tolist() == [1, 2]
    assert table.top_k(make([1]), 1) == [(2, 2)]
    assert index.draft(2, make([3]))[0].tolist() == [1, 2]
    assert counts.best() == (2, 2)


@pytest.mark.parametrize(
    "twin", [reference.NGramTable, reference.CopyIndex, reference.UnigramCounts]
)
def test_what_is_no_token_is_refused(twin):
    structure = twin()
    structure.extend([1, 2])
    with pytest.raises(ValueError, match="token ids must be >= 0, got -5 at index 1"):
        structure.extend([1, -5])
    with pytest.raises(TypeError):
        structure.extend([1.0])
    assert len(structure) == 2


# The n-gram table, by definition.


@QUICK
@given(TEXTS, st.integers(2, 8), st.one_of(st.none(), st.integers(0, 30)))
def test_counts_by_definition(text, order, beyond):
    text = text[:80]
    window = None if beyond is None else order + beyond
    table = reference.NGramTable(order, window)
    table.extend(text)
    text = text if window is None else text[-window:]
    for n in range(1, order):
        for context in {tuple(text[i : i + n]) for i in range(len(text) - n + 1)}:
            ends = [i + n for i in range(len(text) - n) if tuple(text[i : i + n]) == context]
            after = [text[end] for end in ends]
            assert table.total(context) == len(after)
            ranked = table.top_k(context, 99)
            assert sorted(ranked) == sorted((token, after.count(token)) for token in set(after))
            last = dict(zip(after, ends, strict=True))
            order_of = [(count, last[token]) for token, count in ranked]
            assert order_of == sorted(order_of, reverse=True)


@pytest.mark.parametrize(("others", "native_place"), [(60, 60), (64, 64), (65, 64), (90, 64)])
def test_ties_after_forgetting(others, native_place):
    """Token 1 loses a count to ``others`` newer equals: last here, after 64 at most natively."""
    text = [500, 1, 500, 1] + [token for other in range(others) for token in (500, 100 + other)]
    for table_type, place in ((reference.NGramTable, others), (NGramTable, native_place)):
        table = table_type(2, window=len(text))
        table.extend(int32(text))
        assert table.top_k(int32([500]), 1) == [(1, 2)]
        table.extend(int32([3, 3]))
        table.check_integrity()
        ranked = [token for token, _ in table.top_k(int32([500]), 999)]
        assert ranked.index(1) == place
        ranked.remove(1)
        assert ranked == list(range(99 + others, 99, -1))


def test_context_key_by_hand():
    context = (1, 2**31 - 1, 5)
    assert reference.context_key(context, 0) == xxhash.xxh64_intdigest(
        b"\x01\x00\x00\x00\xff\xff\xff\x7f\x05\x00\x00\x00", seed=4
    )
    assert reference.context_key(context, 0x8000_0000_0000_0102) == xxhash.xxh64_intdigest(
        b"\x03\x01\x00\x00\xff\xff\xff\xff\x07\x01\x00\x00", seed=0x8000_0000_0000_0106
    )


# Brute force, by hand.


@pytest.mark.parametrize(
    ("tokens", "prefix", "expected"),
    [
        ([], [], (0, [])),
        ([1], [], (0, [])),
        ([1], [1], (0, [])),  # nothing follows the 1
        ([1, 1], [], (1, [1])),
        ([1, 1, 1], [], (2, [2])),  # occurrences may overlap
        ([1, 2, 1], [], (1, [1])),
        ([1, 2, 3, 1, 2, 4, 1, 2], [], (2, [2, 5])),
        ([1, 2, 3, 1, 2, 4, 1, 2], [3], (3, [3])),
        ([1, 2, 3, 1, 2, 4, 1, 2], [9], (0, [])),
        ([1, 2, 3, 1, 2, 4, 1, 2], [9, 4], (1, [6])),
        ([1, 2, 3], [2, 3], (0, [])),  # only at the very end
        ([1, 2, 3], [1, 2], (2, [2])),
    ],
)
def test_longest_repeated_suffix(tokens, prefix, expected):
    assert reference.longest_repeated_suffix(tokens, prefix) == expected
    assert reference.longest_repeated_suffix(int32(tokens), int32(prefix)) == expected


@QUICK
@given(TEXTS, st.lists(st.integers(0, 2), max_size=4))
def test_longest_repeated_suffix_by_definition(text, prefix):
    text = text[:60]
    whole = text + prefix
    length, ends = reference.longest_repeated_suffix(text, prefix)
    for n in (length, length + 1):
        suffix = whole[len(whole) - n :]
        found = [end for end in range(n, len(text)) if text[end - n : end] == suffix]
        assert found == (ends if 0 < n == length else found if n == 0 else [])


def test_examples_in_docstrings():
    done = doctest.testmod(sys.modules["tests.twins.copyindex"])
    assert done.attempted > 0
    assert done.failed == 0
