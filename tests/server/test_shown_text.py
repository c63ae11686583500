"""What of an answer's tokens may be shown, and when."""

from __future__ import annotations

from itertools import pairwise

import pytest
from byte_model import ByteTokenizer
from hypothesis import given
from hypothesis import strategies as st
from tiny_tokenizers import over_bytes, with_fallback

from ngramspec.server.text import MAX_HELD_BYTES, Detokenizer, StopText


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


OVER_BYTES, FALLBACK = over_bytes(), with_fallback()
BYTE = FALLBACK.convert_tokens_to_ids("<0x00>")


def byte_tokens(text):
    """The tokens of byte fallback for a text or bytes."""
    return [BYTE + byte for byte in (text.encode() if isinstance(text, str) else text)]


def pieces_of(shown, tokens, cuts=()):
    """The pieces in which tokens are shown that come one at a time, or in parts cut at ``cuts``."""
    places = sorted({0, len(tokens), *(cut for cut in cuts if cut < len(tokens))})
    parts = [tokens[a:b] for a, b in pairwise(places)] if cuts else [[each] for each in tokens]
    return [*(shown.add(part) for part in parts), shown.add((), last=True)]


def tokens_of(tokenizer):
    """Sequences of any tokens, most of them parts of characters, and valid texts."""
    known = st.integers(0, len(tokenizer) - 1)
    texts = st.text(alphabet="aé日😀 漢\n", max_size=4)  # at most ``MAX_HELD_BYTES`` in all
    if tokenizer is FALLBACK:
        bits = st.sampled_from([*byte_tokens(b"\xe6\x97\xa5a \xf0\x9f\xff"), 258, 259, 1])
        spelled = texts.map(byte_tokens)
    else:
        bits = st.sampled_from(tokenizer.convert_tokens_to_ids(list("æĹ¥aĠðŁÿ")))
        spelled = texts.map(lambda text: tokenizer(text)["input_ids"])
    parts = st.lists(known | bits, max_size=6) | spelled
    return st.lists(parts, max_size=4).map(lambda found: [each for part in found for each in part])


@pytest.mark.parametrize("tokenizer", [OVER_BYTES, FALLBACK], ids=["bytes", "fallback"])
@given(data=st.data())
def test_any_tokens_in_any_pieces_join_to_the_decode_of_all(tokenizer, data):
    tokens = data.draw(tokens_of(tokenizer))
    cuts = data.draw(st.lists(st.integers(1, 60), max_size=6))
    for hidden in (None, (), frozenset({1, 5})):
        shown = Detokenizer(tokenizer, (), hidden=hidden)
        visible = [each for each in tokens if each not in (hidden or ())]
        whole = tokenizer.decode(visible, skip_special_tokens=hidden is None)
        assert "".join(pieces_of(shown, tokens, cuts)) == whole


@pytest.mark.parametrize("tokenizer", [OVER_BYTES, FALLBACK], ids=["bytes", "fallback"])
@given(st.text(alphabet="aé日😀 漢\n", max_size=30), st.text(alphabet="aé日😀 漢\n", max_size=30))
def test_an_answer_continues_the_text_of_its_prompt(tokenizer, prompt, answer):
    ids = tokenizer(prompt + answer)["input_ids"]
    for at in range(len(ids)):
        before = tokenizer.decode(ids[:at])
        if "�" not in before:
            shown = Detokenizer(tokenizer, ids[:at])
            assert before + "".join(pieces_of(shown, ids[at:])) == tokenizer.decode(ids)


def test_an_answer_completes_the_last_character_of_its_prompt():
    for tokenizer in (OVER_BYTES, FALLBACK):
        ids = tokenizer("a日b")["input_ids"]
        at = len(ids) - 3
        assert "".join(pieces_of(Detokenizer(tokenizer, ids[:at]), ids[at:])) == "日b"
    ids = OVER_BYTES("a�")["input_ids"]
    assert "".join(pieces_of(Detokenizer(OVER_BYTES, ids), OVER_BYTES("b")["input_ids"])) == "b"


class Counted:
    """A tokenizer that counts the tokens that it decodes."""

    def __init__(self, tokenizer):
        self.tokenizer, self.most, self.count = tokenizer, 0, 0
        self.convert_tokens_to_ids = tokenizer.convert_tokens_to_ids
        self.convert_ids_to_tokens = tokenizer.convert_ids_to_tokens

    def decode(self, tokens, skip_special_tokens=False):
        self.most, self.count = max(self.most, len(tokens)), self.count + len(tokens)
        return self.tokenizer.decode(tokens, skip_special_tokens=skip_special_tokens)


@pytest.mark.parametrize(
    ("tokens", "text"),
    [
        (byte_tokens(b"\x80" * 2000), "�" * 2000),
        (byte_tokens(b"\xe6" * 2000), "�" * 2000),
        (byte_tokens("日" * 700), "日" * 700),
        # The characters that were shown remain.
        (
            byte_tokens("日" * 100 + "\n") + byte_tokens(b"\xff" * 999),
            "日" * 100 + "\n" + "�" * 999,
        ),
        ([1] * 2000, ""),
    ],
    ids=["wrong", "begun", "valid", "wrong later", "special"],
)
def test_little_is_held_back_and_each_token_takes_constant_time(tokens, text):
    counted = Counted(FALLBACK)
    pieces = pieces_of(Detokenizer(counted, ()), tokens)
    assert "".join(pieces) == text
    assert len(pieces[-1]) <= 1
    assert counted.most < 2 * MAX_HELD_BYTES
    assert counted.count < 2 * MAX_HELD_BYTES * len(tokens)


def test_bytes_that_are_no_character_are_shown_before_the_end():
    ids = OVER_BYTES.convert_tokens_to_ids(["ÿ", "æ"]) * 1000
    counted = Counted(OVER_BYTES)
    pieces = pieces_of(Detokenizer(counted, ()), ids)
    assert "".join(pieces) == OVER_BYTES.decode(ids) == "�" * 2000
    assert len(pieces[-1]) <= 3
    assert counted.most < 32


def test_whole_characters_that_are_held_back_are_known():
    shown = Detokenizer(FALLBACK, ())
    assert [(shown.add([each]), shown.held) for each in byte_tokens("a日")] == [
        ("", "a"),
        ("", ""),
        ("", ""),
        ("", "a日"),
    ]
    assert shown.peek(byte_tokens("b")) == "b"
    assert shown.peek(byte_tokens(b"\xff")) == "�" * 5
    assert shown.add(FALLBACK.convert_tokens_to_ids(["b"])) == "a日b"


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
def test_the_longest_end_that_begins_a_stop_string_is_held_back(stop, text):
    cut, shown = StopText([stop]), ""
    for at in range(len(text)):
        shown += cut.add(text[at])
        if cut.found is not None:
            return
        sizes = range(min(len(stop), at + 1) + 1)
        held = max(n for n in sizes if text[at + 1 - n : at + 1] == stop[:n])
        assert shown == text[: at + 1 - held]


def test_a_long_stop_string_is_not_compared_at_every_character():
    class Watched(str):
        __slots__ = ()
        compared = 0

        def startswith(self, *given):
            Watched.compared += 1
            return super().startswith(*given)

    stop, text = Watched("z" * 999 + "!"), "z" * 500 + "y" + "z" * 500
    shown = StopText([stop])
    for letter in text:
        shown.add(letter)
    assert shown.add("", last=True) == text[-500:]
    assert Watched.compared < 3 * len(text)


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
