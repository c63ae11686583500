"""The twins by definition and by hand, and the stubs of the native modules."""

from __future__ import annotations

import ast
import inspect
from pathlib import Path

import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st
from native_strategies import QUICK, TEXTS, int32

from ngramspec import _native
from ngramspec._native import NGramTable
from tests import twins as reference

STUBS = ast.parse(Path(_native.__file__).with_suffix(".pyi").read_text()).body


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
    native, twin = (each(2, window=len(text)) for each in (NGramTable, reference.NGramTable))
    for table, place in ((native, native_place), (twin, others)):
        table.extend(int32(text))
        assert table.top_k(int32([500]), 1) == [(1, 2)]
        table.extend(int32([3, 3]))
        native.check_integrity()
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
