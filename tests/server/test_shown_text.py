"""What of an answer's tokens may be shown, and when."""

from __future__ import annotations

from itertools import pairwise

import pytest
from byte_model import ByteTokenizer
from hypothesis import given
from hypothesis import strategies as st

from ngramspec.server.text import Detokenizer, StopText


@given(st.text(alphabet="aé日😀\n", max_size=30), st.lists(st.integers(0, 60), max_size=6))
def test_pieces_join_to_the_text_and_show_whole_characters(text, cuts):
    tokens = list(text.encode())
    places = sorted({0, len(tokens), *(cut for cut in cuts if cut < len(tokens))})
    shown = Detokenizer(ByteTokenizer(), list(b"before"))
    pieces = [shown.add(tokens[a:b], last=b == len(tokens)) for a, b in pairwise(places)]
    assert "".join(pieces) == text
    assert not any("�" in piece for piece in pieces)


def test_an_unfinished_character_is_shown_at_the_end_only():
    shown = Detokenizer(ByteTokenizer(), [])
    assert shown.add([0xE6, 0x97]) == ""
    assert shown.add((), last=True) == "�"


@given(
    st.text(alphabet="ab\n ", max_size=30),
    st.lists(st.text(alphabet="ab\n", min_size=1, max_size=4), max_size=3),
    st.lists(st.integers(1, 29), max_size=5),
)
def test_text_ends_before_the_first_stop_string_however_it_comes(text, stops, cuts):
    ends = [(text.index(stop) + len(stop), text.index(stop)) for stop in stops if stop in text]
    first = min(ends, default=(0, len(text)))[1]
    places = sorted({0, len(text), *(cut for cut in cuts if cut < len(text))})
    stop = StopText(stops)
    pieces = [stop.add(text[a:b], last=b == len(text)) for a, b in pairwise(places)]
    assert "".join(pieces) == text[:first]
    assert (stop.found is not None) == (first < len(text))
    assert stop.add("more") == "" or stop.found is None


def test_what_may_be_a_stop_string_is_held_back():
    stop = StopText(["end."])
    assert stop.add("the e") == "the "
    assert stop.add("n") == ""
    assert stop.add("ough") == "enough"
    assert stop.add(" end") == " "
    assert stop.add(".") == ""
    assert stop.found == "end."


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("x\n    y\n    z", "x\n    y\n    z"),
        ("x\n    y\n  z\n    w", "x\n    y"),
        ("x\n\n    y\nend", "x\n\n    y"),
        ("x\n\ty", "x"),
    ],
)
def test_a_line_with_too_little_indentation_ends_it(text, shown):
    stop = StopText([], indent=4)
    pieces = [stop.add(each) for each in text]
    assert "".join(pieces) + stop.add("", last=True) == shown
