"""Names of special tokens in a text, and the token before every text."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from serving import ask, letters, served
from tokenizers.processors import TemplateProcessing

from ngramspec.server.encoding import TextEncoder, TooManyTokensError, finder_of, leading_tokens

pytest_plugins = ["server_fixtures"]

NAMES = st.lists(st.text("<|ab>", min_size=1, max_size=5), max_size=8, unique=True)


@given(NAMES, st.text("<|ab>.", max_size=40))
def test_the_longest_name_at_each_place_is_found(names, text):
    longest_first = sorted(names, key=len, reverse=True)
    plain = re.compile("|".join(map(re.escape, longest_first)) or r"(?!)")
    assert finder_of(names)(text) == [each.span() for each in plain.finditer(text)]


def begun(bos="#", adds=True):
    """A tokenizer with a BOS token, which it adds before every text."""
    tokenizer = letters()
    tokenizer.bos_token = bos
    if adds:
        template = TemplateProcessing(
            single=f"{bos} $A", special_tokens=[(bos, tokenizer.bos_token_id)]
        )
        tokenizer.backend_tokenizer.post_processor = template
    return tokenizer


def test_a_beginning_of_sequence_token_leads():
    tokenizer = begun()
    assert leading_tokens(tokenizer) == [tokenizer.bos_token_id]
    assert leading_tokens(begun(adds=False)) == leading_tokens(letters()) == []


def test_a_text_that_begins_with_the_bos_token_gets_no_second_one():
    tokenizer = begun()
    bos, a = tokenizer.bos_token_id, tokenizer("a")["input_ids"][-1]
    encode = TextEncoder(tokenizer).encode_prompt
    assert encode("a", True, None) == encode("#a", True, None) == encode("#a", False, None)
    assert encode("#a", True, None) == [bos, a]
    assert encode("##a", True, None) == [bos, bos, a], "the text has two itself"
    assert encode("#a", True, 2) == [bos, a], "it fits"
    with pytest.raises(TooManyTokensError):
        encode("#aa", True, 2)
    assert TextEncoder(begun(adds=False)).encode_prompt("##a", True, None) == [bos, bos, a]


def test_the_framing_of_a_prompt_is_what_its_text_does_not_have():
    encoder = TextEncoder(begun())
    assert [encoder.framing(each) for each in ("a", "#a", [1, 2])] == [1, 0, 0]
    assert TextEncoder(letters()).framing("a") == 0


def test_every_route_reads_a_prompt_with_its_bos_token_as_one_without(model):
    pytest.importorskip("prometheus_client", reason="pip install 'ngramspec[serve]'")
    tokenizer = begun()
    tokenizer.chat_template = "#{% for m in messages %}{{ m.content }}{% endfor %}"
    with served(model, tokenizer) as client:
        for prompt in ("[INST]hi[/INST]", "#[INST]hi[/INST]"):
            answer = ask(client, prompt=[prompt], max_tokens=1)
            assert answer["usage"]["prompt_tokens"] == 16
            answer = ask(client, "/completion", prompt=prompt, n_predict=1)
            assert answer["tokens_evaluated"] == 16
            found = ask(client, "/tokenize", content=prompt, add_special=True)
            assert len(found["tokens"]) == 16
        chat = {"messages": [{"role": "user", "content": "[INST]hi[/INST]"}], "max_tokens": 1}
        assert ask(client, "/v1/chat/completions", **chat)["usage"]["prompt_tokens"] == 16
