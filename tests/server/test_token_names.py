"""The tokens of ``logprobs`` join to the answer's text, and are told apart by their names."""

from __future__ import annotations

import pytest
import torch
from conftest import tiny_llama
from hypothesis import given
from hypothesis import strategies as st
from serving import ask, events, served
from tiny_tokenizers import over_bytes, with_fallback

from ngramspec.server.sampling import TokenLogprobs
from ngramspec.server.token_bytes import TokenBytes
from ngramspec.server.token_names import TokenNames

pytest.importorskip("prometheus_client", reason="pip install 'ngramspec[serve]'")

OVER_BYTES, FALLBACK = over_bytes(), with_fallback()
FALLBACK.chat_template = "{% for m in messages %}{{ m.content }}{% endfor %}"
PROMPT = "日 be"
TEXTS = st.text(alphabet="aé日😀 漢\n", max_size=12)


def names_of(tokenizer, prompt=(), **more):
    return TokenNames(tokenizer, TokenBytes(tokenizer), prompt, **more)


@pytest.mark.parametrize("tokenizer", [OVER_BYTES, FALLBACK], ids=["bytes", "fallback"])
@given(prompt=TEXTS, answer=TEXTS, data=st.data())
def test_names_join_to_the_text_and_offsets_are_where_they_begin(tokenizer, prompt, answer, data):
    ids = tokenizer(prompt + answer)["input_ids"]
    lead = int(ids[:1] == [tokenizer.bos_token_id])
    at = data.draw(st.integers(lead, len(ids)))
    text = tokenizer.decode(ids, skip_special_tokens=True)
    if "�" in tokenizer.decode(ids[:at]):
        return
    names, found, offsets = names_of(tokenizer, ids[:at], echoed=True, framing=lead), [], []
    for number, each in enumerate(ids):
        offsets.append(names.offset)
        found.append(names.add(each, last=number == len(ids) - 1))
    assert "".join(found[lead:]) == text
    for offset, name in zip(offsets[lead:], found[lead:], strict=True):
        assert text[offset : offset + len(name)] == name


def test_a_word_keeps_its_space_and_a_part_of_a_character_has_no_text():
    space, word, *parts = FALLBACK.convert_tokens_to_ids(["▁", "a", "<0xC3>", "<0xA9>"])
    names = names_of(FALLBACK, [word])
    assert [names.add(each) for each in (space, word, *parts, word)] == [" ", "a", "", "", "éa"]
    assert [names.alone(each) for each in (space, parts[0])] == [" ", "bytes:\\xc3"]
    assert [names.add(parts[0]), names.add(parts[1], last=True)] == ["", "é"]


def test_hidden_tokens_have_their_names_but_no_place_in_the_text():
    end = OVER_BYTES.eos_token_id
    for hidden in (None, frozenset({end})):
        names = names_of(OVER_BYTES, OVER_BYTES("b")["input_ids"], hidden=hidden)
        assert names.add(OVER_BYTES.convert_tokens_to_ids("a")) == "a"
        assert names.add(end) == "<|end|>"
        assert names.offset == 1


def test_probable_tokens_with_one_name_are_all_reported():
    first, second, byte, letter = FALLBACK.convert_tokens_to_ids(
        ["<0xC3>", "<0xE6>", "<0x61>", "a"]
    )
    names = names_of(FALLBACK)
    top = ((first, -1.0), (second, -2.0), (letter, -3.0), (byte, -4.0))
    assert names.of(TokenLogprobs(first, -1.0, top), "") == {
        "": -1.0,
        "bytes:\\xe6": -2.0,
        "a": -3.0,
        f"token_id:{byte}": -4.0,
    }
    assert names.of(TokenLogprobs(letter, -5.0, ((byte, -4.0),)), "a") == {
        f"token_id:{byte}": -4.0,
        "a": -5.0,
    }
    assert names.of(TokenLogprobs(letter, -5.0), "a") == {"a": -5.0}


@pytest.fixture(scope="module")
def client():
    with served(tiny_llama(vocab=len(FALLBACK)), FALLBACK) as client:
        yield client


@pytest.fixture(scope="module")
def whole(client):
    """The text of a prompt and the answer that plain ``generate`` gives."""
    ids = torch.tensor([FALLBACK(PROMPT)["input_ids"]])
    model = client.app.state.service.model
    settings = {"do_sample": False, "max_new_tokens": 40, "attention_mask": torch.ones_like(ids)}
    return FALLBACK.decode(model.generate(ids, **settings)[0], skip_special_tokens=True)


@pytest.mark.parametrize("top", [0, 3])
@pytest.mark.parametrize("echo", [False, True])
@pytest.mark.parametrize("stream", [False, True])
def test_log_probabilities_have_the_answers_text(client, whole, stream, echo, top):
    body = {"prompt": PROMPT, "max_tokens": 40, "temperature": 0, "logprobs": top, "echo": echo}
    if stream:
        answer = client.post("/v1/completions", json=body | {"stream": True})
        choices = [part["choices"][0] for part in events(answer.text)]
    else:
        choices = ask(client, **body)["choices"]
    text = "".join(each["text"] for each in choices)
    assert text == whole[0 if echo else len(PROMPT) :]
    found = [each["logprobs"] for each in choices]
    tokens = [each for part in found for each in part["tokens"]]
    offsets = [each for part in found for each in part["text_offset"]]
    tops = [each for part in found for each in part["top_logprobs"]]
    own = [each for part in found for each in part["token_logprobs"]]
    shown = [each.replace("<s>", "").replace("<unk>", "") for each in tokens]
    assert "".join(shown) == text
    for token, own_text, offset, named, value in zip(
        tokens, shown, offsets, tops, own, strict=True
    ):
        assert text[offset : offset + len(own_text)] == own_text
        assert (named is None) == (value is None)
        assert named is None or (named[token] == value and max(top, 1) <= len(named) <= top + 1)


@pytest.mark.parametrize("stream", [False, True])
def test_a_chats_names_join_to_its_text_with_spaces(client, stream):
    biased = FALLBACK.convert_tokens_to_ids(["▁", "a", "b", "<0xC3>", "<0xA9>"])
    body = {"messages": [{"role": "user", "content": "be"}], "max_tokens": 40, "seed": 4}
    body |= {"logprobs": True, "top_logprobs": 3, "logit_bias": {str(n): 100 for n in biased}}
    if stream:
        answer = client.post("/v1/chat/completions", json=body | {"stream": True})
        choices = [part["choices"][0] for part in events(answer.text)]
        text = "".join(each["delta"].get("content") or "" for each in choices)
        parts = [each["logprobs"]["content"] for each in choices if each.get("logprobs")]
        tokens = [each for part in parts for each in part]
    else:
        choice = ask(client, "/v1/chat/completions", **body)["choices"][0]
        text, tokens = choice["message"]["content"], choice["logprobs"]["content"]
    assert " " in text
    assert "".join(each["token"] for each in tokens) == text


def test_a_stop_string_in_bytes_that_are_held_back_ends_the_answer_at_once(client):
    biased = FALLBACK.convert_tokens_to_ids(["<0x0A>", "<0x61>"])
    body = {"prompt": PROMPT, "max_tokens": 40, "seed": 3, "stop": "\n"}
    answer = ask(client, **body, logit_bias={str(n): 100 for n in biased})
    text = answer["choices"][0]["text"]
    assert answer["choices"][0]["finish_reason"] == "stop"
    assert set(text) == {"a"}
    assert answer["usage"]["completion_tokens"] == len(text) + 1


@pytest.mark.parametrize("size", [7, 10, 11])
def test_long_token_lists_are_decoded_in_pieces_to_the_same_text(client, monkeypatch, size):
    from ngramspec.server import service

    monkeypatch.setattr(service, "DECODED_TOKENS", size)
    for text in ("日本é漢😀\n" * 9, "a日b 日日 b" * 9, "日日日日日" * 9, "日日日日日b" * 9):
        ids = FALLBACK(text)["input_ids"]
        assert client.app.state.service.decode(ids) == FALLBACK.decode(ids)
