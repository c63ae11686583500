"""Bounds of a JSON text's values: what a parser finds in it is never more."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ngramspec.server.reading import json_shape

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(alphabet='ab"\\[{,\n€'),
    lambda each: st.lists(each) | st.dictionaries(st.text(alphabet='k"\\[{,'), each),
)


def counted(value):
    """How many values, and arrays and objects among them, a value is."""
    if not isinstance(value, list | dict):
        return 1, 0
    found = [counted(each) for each in (value.values() if isinstance(value, dict) else value)]
    return 1 + sum(each[0] for each in found), 1 + sum(each[1] for each in found)


def members(value):
    """How many members the objects of a value have."""
    if not isinstance(value, list | dict):
        return 0
    entries = value.values() if isinstance(value, dict) else value
    return sum(map(members, entries)) + (len(value) if isinstance(value, dict) else 0)


def longest(value):
    """The most digits of a number in a value."""
    if isinstance(value, bool) or value is None or isinstance(value, str):
        return 0
    if isinstance(value, int):
        return len(str(abs(value)))
    entries = value.values() if isinstance(value, dict) else value
    return max(map(longest, entries), default=0)


@settings(deadline=None)
@given(VALUES, st.booleans())
def test_the_counts_bound_what_is_parsed(value, ascii):
    values, containers, names, digits = json_shape(json.dumps(value, ensure_ascii=ascii).encode())
    most, exactly = counted(value)
    assert containers == exactly
    assert names == members(value)
    assert digits == longest(value)
    assert most <= values <= most + containers  # an empty one counts as if it had an entry


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (b"", (1, 0, 0, 0)),
        (b"[]", (2, 1, 0, 0)),
        (b'{"a": [1, 22, {}]}', (6, 3, 1, 2)),
        (rb'["\",[{", 1]', (3, 1, 0, 1)),
        (rb'["\\", [", ["]]', (4, 2, 0, 0)),
        (b'["[[[', (2, 1, 0, 0)),  # not closed
        (b'"\\', (1, 0, 0, 0)),  # nothing is escaped
        (b'[-123.4567e12, "12345"]', (3, 1, 0, 4)),
    ],
)
def test_worked_examples(text, expected):
    assert json_shape(text) == expected
