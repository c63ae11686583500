"""The names of special tokens are found in a text, the longest where several begin alike."""

from __future__ import annotations

import re

from hypothesis import given
from hypothesis import strategies as st

from ngramspec.server.encoding import pattern_of

NAMES = st.lists(st.text("<|ab>", min_size=1, max_size=5), max_size=8, unique=True)


@given(NAMES, st.text("<|ab>.", max_size=40))
def test_the_pattern_finds_what_all_names_one_after_another_find(names, text):
    longest_first = sorted(names, key=len, reverse=True)
    plain = re.compile("|".join(map(re.escape, longest_first)) or r"(?!)")
    found = re.compile(pattern_of(names))
    assert [each.span() for each in found.finditer(text)] == [
        each.span() for each in plain.finditer(text)
    ]


def test_names_share_what_they_begin_with():
    """So that the search does not try every name at every place of a text."""
    names = [f"<|reserved_{each}|>" for each in range(100)]
    assert pattern_of(names).count("reserved") == 1
