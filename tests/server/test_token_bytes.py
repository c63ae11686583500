"""The bytes of an answer's tokens join to its text, also where a token is a part of a character."""

from __future__ import annotations

import random

import pytest
from conftest import tiny_llama
from serving import ask, events, letters, served
from tiny_tokenizers import over_bytes, with_fallback
from tokenizers import Tokenizer, decoders, models
from transformers import PreTrainedTokenizerFast

from ngramspec.server.token_bytes import TokenBytes

pytest.importorskip("prometheus_client", reason="pip install 'ngramspec[serve]'")

TEXTS = [
    "plain text,  with spaces\n\tand lines",
    "漢字とかな、한국어, العربية, हिन्दी",
    "😀🏳️‍🌈👩‍👩‍👧‍👦 and e\u0301, \u00ad\u00a0\u200b, \U0001d518",
    "\x00\x01\x7f\x80\xff",
]


def random_text(rng):
    kinds = [(0, 0x80), (0x80, 0x800), (0x800, 0xD800), (0xE000, 0x10000), (0x10000, 0x20000)]
    return "".join(chr(rng.randrange(*rng.choice(kinds))) for _ in range(rng.randrange(1, 40)))


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


def test_special_tokens_add_no_bytes_unless_they_are_shown():
    tokenizer = over_bytes()
    bytes_of = TokenBytes(tokenizer)
    end, tool = tokenizer.convert_tokens_to_ids(["<|end|>", "<tool>é"])
    assert bytes_of(end) == b""
    assert bytes_of(end, hidden=frozenset()) == b"<|end|>"
    assert bytes_of(tool) == "<tool>é".encode()
    assert bytes_of(tool, hidden={tool}) == b""


def test_a_tokenizer_whose_bytes_are_not_known_has_none():
    words = Tokenizer(models.WordPiece({"a": 0, "##b": 1, "[UNK]": 2}, unk_token="[UNK]"))
    words.decoder = decoders.WordPiece()
    assert TokenBytes(PreTrainedTokenizerFast(tokenizer_object=words))(1) is None
    without = Tokenizer(models.BPE({"a": 0}, []))
    assert TokenBytes(PreTrainedTokenizerFast(tokenizer_object=without))(0) is None
    assert TokenBytes(letters())(33) == b"A"
    assert TokenBytes(over_bytes())(10**6) is None


@pytest.mark.parametrize("stream", [False, True])
def test_a_chats_log_probabilities_have_the_bytes_of_its_text(stream):
    tokenizer = over_bytes()
    letters = tokenizer.get_vocab()
    bias = {str(letters[each]): 100 for each in "Ã©a"}  # the bytes of é and of a
    body = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 60, "seed": 4}
    body |= {"logprobs": True, "top_logprobs": 3, "logit_bias": bias, "temperature": 20}
    with served(tiny_llama(vocab=len(tokenizer)), tokenizer) as client:
        if stream:
            answer = client.post("/v1/chat/completions", json=body | {"stream": True})
            choices = [part["choices"][0] for part in events(answer.text)]
            text = "".join(each["delta"].get("content") or "" for each in choices)
            parts = [each["logprobs"]["content"] for each in choices if each.get("logprobs")]
            tokens = [each for part in parts for each in part]
        else:
            choice = ask(client, "/v1/chat/completions", **body)["choices"][0]
            text, tokens = choice["message"]["content"], choice["logprobs"]["content"]
    assert "é" in text
    whole = bytes(each for token in tokens for each in token["bytes"])
    assert whole.decode(errors="replace") == text
    assert all(len(each["bytes"]) == 1 for token in tokens for each in token["top_logprobs"])
