"""Variables of chat templates, and a template's text by itself."""

from __future__ import annotations

import pytest
from serving import ask, letters, plain, served

pytest.importorskip("prometheus_client", reason="pip install 'ngramspec[serve]'")
pytest_plugins = ["server_fixtures"]
THINKER = (
    "{% for m in messages %}{{ m.role }}:{{ m.content }};{% endfor %}assistant:"
    "{% if enable_thinking is defined and enable_thinking is false %}<think></think>{% endif %}"
    "{% if reasoning_effort %}effort {{ reasoning_effort }};{% endif %}"
)


@pytest.fixture(scope="module")
def thinker(model):
    tokenizer = letters()
    tokenizer.chat_template = THINKER
    with served(model, tokenizer) as client:
        yield client


HI = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 8, "temperature": 0}


@pytest.mark.parametrize(
    ("fields", "end"),
    [
        ({}, ""),
        ({"chat_template_kwargs": {"enable_thinking": False}}, "<think></think>"),
        ({"chat_template_kwargs": {"enable_thinking": True, "other": None}}, ""),
        ({"reasoning_effort": "high"}, "effort high;"),
        (
            {"reasoning_effort": "high", "chat_template_kwargs": {"reasoning_effort": "low"}},
            "effort low;",
        ),
    ],
    ids=str,
)
def test_a_template_gets_its_variables(thinker, model, tokenizer, fields, end):
    prompt = f"user:hi;assistant:{end}"
    answer = ask(thinker, "/v1/chat/completions", **HI, **fields)
    assert answer["choices"][0]["message"]["content"] == plain(model, tokenizer, prompt, 8)
    assert ask(thinker, "/apply-template", **HI, **fields) == {"prompt": prompt}


def test_arguments_of_the_template_function_are_no_variables(thinker):
    for name in ("chat_template", "tools", "messages", "tokenize", "add_generation_prompt"):
        for route in ("/v1/chat/completions", "/apply-template"):
            answer = thinker.post(route, json=HI | {"chat_template_kwargs": {name: "x"}})
            error = answer.json()["error"]
            assert (answer.status_code, error["param"]) == (400, "chat_template_kwargs")
            assert repr(name) in error["message"]


def test_a_field_that_the_template_does_not_use_is_treated_as_unknown(thinker, model):
    answer = thinker.post("/v1/chat/completions", json=HI | {"verbosity": "low"})
    error = answer.json()["error"]
    assert (answer.status_code, error["param"]) == (400, "verbosity")
    assert error["code"] == "unknown_parameter"
    assert "template does not use it" in error["message"]
    with served(model, letters(), unknown_fields="warn") as lenient:
        body = HI | {"verbosity": "low", "reasoning_effort": "low"}
        answer = lenient.post("/v1/chat/completions", json=body)
        assert answer.status_code == 200
        named = set(answer.headers["x-ignored-fields"].split(", "))
        assert named == {"verbosity", "reasoning_effort"}


def test_a_template_that_fails_is_named_by_apply_template_too(thinker):
    answer = thinker.post("/apply-template", json={"messages": []})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "messages")
    image = [{"type": "image_url", "image_url": {"url": "x"}}]
    answer = thinker.post(
        "/apply-template", json={"messages": [{"role": "user", "content": image}]}
    )
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "messages")
