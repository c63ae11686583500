"""What of an answer's tokens may be shown, and when."""

from __future__ import annotations

from itertools import pairwise

import pytest
from byte_model import ByteTokenizer
from hypothesis import given
from hypothesis import strategies as st

from ngramspec.server.text import BegunStop, Detokenizer, StopText


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


@given(st.text(alphabet="ab", min_size=1, max_size=6), st.text(alphabet="ab", max_size=20))
def test_the_begun_part_of_a_stop_string_is_the_longest_end_that_begins_it(stop, text):
    begun = BegunStop(stop)
    for at in range(len(text)):
        begun.add(text[at])
        sizes = range(min(len(stop), at + 1) + 1)
        assert begun.count == max(n for n in sizes if text[at + 1 - n : at + 1] == stop[:n])


def test_a_long_stop_string_is_not_compared_at_every_character():
    class Watched(str):
        __slots__ = ()
        read = 0

        def __getitem__(self, at):
            Watched.read += 1
            return super().__getitem__(at)

    stop, text = Watched("z" * 999 + "!"), "z" * 500 + "y" + "z" * 500
    shown = StopText([stop])
    for letter in text:
        shown.add(letter)
    assert shown.add("", last=True) == text[-500:]
    assert Watched.read < 4 * (len(stop) + len(text))


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
