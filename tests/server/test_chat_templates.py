"""What a request tells a chat's template: its variables, and how the chat ends."""

from __future__ import annotations

import pytest
from serving import CHAT, HI, ask, letters, plain, refused, served

from ngramspec.server.prompts import TextEncoder

pytest.importorskip("prometheus_client", reason="pip install 'ngramspec[serve]'")
pytest_plugins = ["server_fixtures"]


THINKER = CHAT + (
    "{% if enable_thinking is defined and enable_thinking is false %}<think></think>{% endif %}"
    "{% if reasoning_effort %}effort {{ reasoning_effort }};{% endif %}"
)


@pytest.fixture(scope="module")
def thinker(model):
    with served(model, letters(chat=THINKER)) as client:
        yield client


HI = HI | {"max_tokens": 8, "temperature": 0}


@pytest.mark.parametrize(
    ("variables", "fields", "end"),
    [
        ({}, {}, ""),
        ({"enable_thinking": False}, {}, "<think></think>"),
        ({"enable_thinking": True, "other": None}, {}, ""),
        ({}, {"reasoning_effort": "high"}, "effort high;"),
        ({"reasoning_effort": "low"}, {"reasoning_effort": "high"}, "effort low;"),
    ],
    ids=str,
)
def test_a_template_gets_its_variables(thinker, model, tokenizer, variables, fields, end):
    prompt, fields = f"user:hi;assistant:{end}", fields | {"chat_template_kwargs": variables}
    answer = ask(thinker, "/v1/chat/completions", **HI, **fields)
    assert answer["choices"][0]["message"]["content"] == plain(model, tokenizer, prompt, 8)
    assert ask(thinker, "/apply-template", **HI, **fields) == {"prompt": prompt}


@pytest.mark.parametrize(
    ("text", "fields", "prompt", "of_template"),
    [
        ("so", {}, "user:hi;assistant:so;assistant:", "user:hi;assistant:so"),
        ("so", {"continue_final_message": True}, "user:hi;assistant:so", None),
        ("a<|fim_suffix|> ", {"continue_final_message": "content"}, "user:hi;assistant:{}", None),
        ("so", {"add_generation_prompt": False}, "user:hi;assistant:so;", "user:hi;assistant:so"),
        ("so", {"continue_final_message": False}, "user:hi;assistant:so;assistant:", None),
        ("", {}, "user:hi;assistant:;assistant:", None),
    ],
    ids=str,
)
def test_a_chat_ends_as_asked_and_apply_template_continues_the_assistant(
    model, tokenizer, text, fields, prompt, of_template
):
    chat = CHAT.replace("assistant:", "{% if add_generation_prompt %}assistant:{% endif %}")
    messages = [*HI["messages"], {"role": "assistant", "content": text}]
    prompt = prompt.format(text)
    with served(model, letters(chat=chat)) as client:
        body = HI | {"messages": messages} | fields
        answer = ask(client, "/v1/chat/completions", **body)
        ids = TextEncoder(tokenizer).encode(prompt)
        assert answer["usage"]["prompt_tokens"] == len(ids)
        assert answer["choices"][0]["message"]["content"] == plain(model, tokenizer, ids, 8)
        assert ask(client, "/apply-template", **body) == {"prompt": of_template or prompt}
        both = {"continue_final_message": True, "add_generation_prompt": True}
        refused(client, "/v1/chat/completions", body | both, "continue_final_message")


def test_arguments_of_the_template_function_are_no_variables(thinker):
    for name in ("chat_template", "tools", "messages", "tokenize", "add_generation_prompt"):
        body = HI | {"chat_template_kwargs": {name: "x"}}
        for route in ("/v1/chat/completions", "/apply-template"):
            error = refused(thinker, route, body, "chat_template_kwargs")
            assert repr(name) in error["message"]


def test_a_field_that_the_template_does_not_use_is_treated_as_unknown(thinker, model):
    error = refused(thinker, "/v1/chat/completions", HI | {"verbosity": "low"}, "verbosity")
    assert error["code"] == "unknown_parameter"
    assert "template does not use it" in error["message"]
    with served(model, letters(), unknown_fields="warn") as lenient:
        body = HI | {"verbosity": "low", "reasoning_effort": "low"}
        answer = lenient.post("/v1/chat/completions", json=body)
        assert answer.status_code == 200
        named = set(answer.headers["x-ignored-fields"].split(", "))
        assert named == {"verbosity", "reasoning_effort"}


def test_a_template_that_fails_is_named_by_apply_template_too(thinker):
    refused(thinker, "/apply-template", {"messages": []}, "messages")
    image = {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}
    refused(thinker, "/apply-template", {"messages": [image]}, "messages")
