"""What of an answer's tokens is shown and when, their bytes, and their names."""

from __future__ import annotations

import random
from itertools import pairwise

import pytest
from conftest import tiny_llama
from hypothesis import given
from hypothesis import strategies as st
from serving import HI, ask, parts_of, served
from tiny_tokenizers import over_bytes, with_fallback
from tokenizers import Tokenizer, decoders, models
from transformers import PreTrainedTokenizerFast

from ngramspec.server.text import (
    MAX_HELD_BYTES,
    Detokenizer,
    StopText,
    TokenBytes,
    TokenLogprobs,
    hidden_ids,
)

pytest.importorskip("prometheus_client", reason="pip install 'ngramspec[serve]'")


OVER_BYTES, FALLBACK = over_bytes(), with_fallback()
FALLBACK.chat_template = "{% for m in messages %}{{ m.content }}{% endfor %}"
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
    for hidden in (hidden_ids(tokenizer), (), frozenset({1, 5})):
        shown = Detokenizer(tokenizer, (), hidden)
        visible = [each for each in tokens if each not in hidden]
        assert "".join(pieces_of(shown, tokens, cuts)) == tokenizer.decode(visible)
    skipped = tokenizer.decode(tokens, skip_special_tokens=True)
    assert "".join(pieces_of(Detokenizer(tokenizer, (), hidden_ids(tokenizer)), tokens)) == skipped


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
        # The characters that were shown remain: all but the last 49 bytes of them.
        (byte_tokens("日" * 100 + "\n") + byte_tokens(b"\xff" * 999), "日" * 84 + "�" * (49 + 999)),
        ([1] * 2000, ""),  # hidden
        ([BYTE + 128, 0, BYTE], "�<unk>\x00"),
    ],
    ids=["wrong", "begun", "valid", "wrong later", "special", "wrong before another run"],
)
def test_little_is_held_back_and_each_token_takes_constant_time(tokens, text):
    counted = Counted(FALLBACK)
    pieces = pieces_of(Detokenizer(counted, (), hidden=(1,)), tokens)
    assert "".join(pieces) == text
    assert len(pieces[-1]) <= MAX_HELD_BYTES
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
    held = [(shown.add([each]), shown.held) for each in byte_tokens("a日")]
    assert held == [("", "a"), ("", ""), ("", ""), ("", "a日")]
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


TEXTS = [
    "plain text,  with spaces\n\tand lines",
    "漢字とかな、한국어, العربية, हिन्दी",
    "😀🏳️‍🌈👩‍👩‍👧‍👦 and e\u0301, \u00ad\u00a0\u200b, \U0001d518",
    "\x00\x01\x7f\x80\xff",
]


def random_text(rng):
    kinds = [(0, 0x80), (0x80, 0x800), (0x800, 0xD800), (0xE000, 0x10000), (0x10000, 0x20000)]
    return "".join(chr(rng.randrange(*rng.choice(kinds))) for _ in range(rng.randrange(1, 40)))


def test_an_unknown_decoders_tokens_and_special_ones_have_the_bytes_of_their_text():
    words = Tokenizer(models.WordPiece({"a": 0, "##b": 1, "[UNK]": 2}, unk_token="[UNK]"))
    words.decoder = decoders.WordPiece()
    bytes_of = TokenBytes(PreTrainedTokenizerFast(tokenizer_object=words))
    assert [bytes_of(1), bytes_of(0), bytes_of(10**6)] == [b"b", b" a", b""]
    end, bytes_of = OVER_BYTES.eos_token_id, TokenBytes(OVER_BYTES)
    assert bytes_of(end) == b"<|end|>"
    row = bytes_of.row(TokenLogprobs(end, -1.0), {end})
    shown = {"id": end, "token": "<|end|>", "bytes": [], "logprob": -1.0, "top_logprobs": []}
    assert row == shown


@pytest.mark.parametrize("tokenizer", [OVER_BYTES, FALLBACK], ids=["bytes", "fallback"])
def test_a_token_is_named_by_its_text_with_spaces_or_its_bytes(tokenizer):
    ids = tokenizer(" é", add_special_tokens=False)["input_ids"][-3:]
    assert [*map(TokenBytes(tokenizer).name, ids)] == [" ", "bytes:\\xc3", "bytes:\\xa9"]


def joined(tokenizer, text):
    ids, bytes_of = tokenizer(text, add_special_tokens=False)["input_ids"], TokenBytes(tokenizer)
    return b"".join(bytes_of(each) for each in ids)


@pytest.mark.parametrize("make", [over_bytes, with_fallback])
def test_the_bytes_of_all_tokens_are_the_texts(make):
    tokenizer, rng = make(), random.Random(5)
    space = b" " if make is with_fallback else b""  # such tokenizers put one before a text
    for text in (*TEXTS, *(random_text(rng) for _ in range(200))):
        assert joined(tokenizer, text) == space + text.encode()


def test_the_embedded_models_tokens_have_their_bytes(smollm2):
    tokenizer, rng = smollm2.tokenizer, random.Random(6)
    parts = 0
    for text in (*TEXTS, *(random_text(rng) for _ in range(200))):
        ids = tokenizer(text)["input_ids"]
        if tokenizer.decode(ids) != text:
            continue  # the vocabulary of this tokenizer has no tokens for some bytes
        parts += any("\ufffd" in tokenizer.decode([id]) for id in ids)
        assert joined(tokenizer, text) == text.encode()
    assert parts > 100


@pytest.mark.parametrize("stream", [False, True])
def test_a_chats_log_probabilities_have_the_bytes_of_its_text(stream):
    tokenizer = over_bytes()
    letters = tokenizer.get_vocab()
    bias = {str(letters[each]): 100 for each in "Ã©a"}  # the bytes of é and of a
    body = HI | {"max_tokens": 60, "seed": 4, "logit_bias": bias, "temperature": 20}
    body |= {"logprobs": True, "top_logprobs": 3}
    with served(tiny_llama(vocab=len(tokenizer)), tokenizer) as client:
        parts = parts_of(client, "/v1/chat/completions", **body | {"stream": stream})
    choices = [part["choices"][0] for part in parts if part["choices"]]
    said = [choice["delta" if stream else "message"].get("content") or "" for choice in choices]
    text, rows = "".join(said), [choice["logprobs"] for choice in choices]
    tokens = [token for row in rows if row for token in row["content"]]
    assert "é" in text
    whole = bytes(each for token in tokens for each in token["bytes"])
    assert whole.decode(errors="replace") == text
    assert all(len(each["bytes"]) == 1 for token in tokens for each in token["top_logprobs"])


PROMPT = "日 be"


@pytest.fixture(scope="module")
def client():
    with served(tiny_llama(vocab=len(FALLBACK)), FALLBACK) as client:
        yield client


def test_a_stop_string_in_bytes_that_are_held_back_ends_the_answer_at_once(client):
    biased = FALLBACK.convert_tokens_to_ids(["<0x0A>", "<0x61>"])
    body = {"prompt": PROMPT, "max_tokens": 40, "seed": 3, "stop": "\n"}
    answer = ask(client, **body, logit_bias={str(n): 100 for n in biased})
    text = answer["choices"][0]["text"]
    assert answer["choices"][0]["finish_reason"] == "stop"
    assert set(text) == {"a"}
    assert answer["usage"]["completion_tokens"] == len(text) + 1
