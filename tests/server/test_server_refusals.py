"""What a server refuses: always OpenAI's shape, and the field's name."""

from __future__ import annotations

import asyncio

import pytest
from conftest import tiny_llama
from serving import VOCAB, letters, served, settings_of

pytest.importorskip("prometheus_client", reason="pip install 'ngramspec[serve]'")
pytest_plugins = ["server_fixtures"]


CHATS = {"messages": [{"role": "user", "content": "hi"}]}
REFUSED = [
    ({"prompt": ""}, "prompt"),
    ({"prompt": []}, "prompt"),
    ({"prompt": [[]]}, "prompt"),
    ({"prompt": ["a", 3]}, "prompt"),
    ({"prompt": [VOCAB]}, "prompt"),
    ({"prompt": [-1]}, "prompt"),
    ({"prompt": "x" * 600}, "prompt"),
    ({"prompt": None}, "prompt"),
    ({}, "prompt"),
    ({"prompt": "x", "max_tokens": 600}, "max_tokens"),
    ({"prompt": "x", "max_tokens": -1}, "max_tokens"),
    ({"prompt": "x", "max_tokens": 0}, "max_tokens"),
    ({"prompt": "x", "max_tokens": "many"}, "max_tokens"),
    ({"prompt": "x", "temperature": -1}, "temperature"),
    ({"prompt": "x", "top_p": -1}, "top_p"),
    ({"prompt": "x", "n": 0}, "n"),
    ({"prompt": "x", "n": 99}, "n"),
    ({"prompt": "x", "best_of": 4}, "best_of"),
    ({"prompt": "x", "stop": ["a"] * 400}, "stop"),
    ({"prompt": "x", "logprobs": 50}, "logprobs"),
    ({"prompt": "x", "logit_bias": {"many": 1}}, "logit_bias"),
    ({"prompt": "x", "logit_bias": {str(VOCAB): 1}}, "logit_bias"),
    ({"prompt": "x", "presence_penalty": 9}, "presence_penalty"),
    ({"prompt": "x", "echo": True, "suffix": "y"}, "echo"),
    ({"prompt": [1, 2], "suffix": "y"}, "suffix"),
    ({"prompt": "x", "ngramspec": {"stores": ["other"]}}, "ngramspec.stores"),
    ({"prompt": "x", "ngramspec": {"wrong": 1}}, "ngramspec.wrong"),
    ({"prompt": "x", "ngramspec": {"namespace": "mine"}}, "ngramspec.namespace"),
    ({"prompt": "x", "ngramspec": {"speculate": "maybe"}}, "ngramspec.speculate"),
    ({"prompt": "x", "prediction": "text"}, "prediction"),
    ({"prompt": "x", "prediction": {"type": "other", "content": "x"}}, "prediction"),
    ({"prompt": "x", "prediction": {"type": "content"}}, "prediction"),
    ({"prompt": "x", "prediction": {"type": "content", "content": "x" * (1 << 19)}}, "prediction"),
    ({"prompt": "x", "stream": True, "max_tokens": 600}, "max_tokens"),
    ({"messages": []}, "messages"),
    ({"messages": "hi"}, "messages"),
    ({**CHATS, "tools": [{"type": "function"}]}, "tools"),
    ({**CHATS, "max_tokens": 0}, "max_tokens"),
    ({**CHATS, "max_completion_tokens": 999}, "max_completion_tokens"),
    ({**CHATS, "response_format": {"type": "xml"}}, "response_format"),
    ({**CHATS, "response_format": {"type": "json_schema"}}, "response_format"),
    ({**CHATS, "top_logprobs": 2}, "top_logprobs"),
    ({**CHATS, "modalities": ["audio"]}, "modalities"),
    ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "messages"),
    ({"input_prefix": "x"}, "input_suffix"),
    ({"input_prefix": "x", "input_suffix": "y", "stream": True, "n_cmpl": 2}, "n_cmpl"),
    ({"input_prefix": "x", "input_suffix": "y", "grammar": "root"}, "grammar"),
    ({"input_prefix": "x", "input_suffix": "y", "n_predict": -2}, "n_predict"),
    ({"input_prefix": "x", "input_suffix": "y", "n_probs": 50}, "n_probs"),
    ({"input_prefix": "x", "input_suffix": "y", "logit_bias": [[VOCAB, 1]]}, "logit_bias"),
    ({"input_prefix": "x", "input_suffix": "y", "logit_bias": {"x": 1e9}}, "logit_bias"),
]


@pytest.mark.parametrize(("body", "param"), REFUSED, ids=str)
def test_what_cannot_be_answered_is_refused_by_the_fields_name(client, body, param):
    routes = {"messages": "/v1/chat/completions", "input_prefix": "/infill"}
    route = next((to for name, to in routes.items() if name in body), "/v1/completions")
    answer = client.post(route, json=body)
    error = answer.json()["error"]
    assert answer.status_code == 400
    assert error["param"] == param
    assert error["type"] == "invalid_request_error"
    assert set(error) == {"message", "type", "param", "code"}


MODELED = [
    ("/v1/completions", {"prompt": "x", "max_tokens": 1}),
    ("/v1/chat/completions", CHATS | {"max_tokens": 1}),
    ("/infill", {"input_prefix": "x", "input_suffix": "y", "n_predict": 1}),
    ("/completion", {"prompt": "x", "n_predict": 1}),
]


def test_another_models_name_is_answered_by_the_served_model_or_refused(client, model):
    for route, body in MODELED:
        answer = client.post(route, json=body | {"model": "gpt-4"})
        assert answer.status_code == 200
        assert answer.json()["model"] == "tiny", "it tells which model answered"
    assert client.get("/v1/models/gpt-4").status_code == 404
    with served(model, other_models="refuse") as strict:
        for route, body in MODELED:
            for name, status in (("gpt-4", 404), ("tiny", 200), ("", 200), (None, 200)):
                answer = strict.post(route, json=body | {"model": name})
                assert answer.status_code == status
            error = strict.post(route, json=body | {"model": "gpt-4"}).json()["error"]
            assert (error["param"], error["code"]) == ("model", "model_not_found")
    with pytest.raises(ValueError, match="other_models"):
        settings_of(other_models="maybe")


def test_what_is_no_request_is_refused_in_the_same_shape(client):
    def error(answer, status):
        assert answer.status_code == status, answer.text
        return answer.json()["error"]["message"]

    headers = {"content-type": "application/json"}
    broken = client.post("/v1/completions", content='{"prompt": "x', headers=headers)
    assert "not valid JSON" in error(broken, 400)
    assert "object" in error(client.post("/v1/completions", json=[1]), 400)
    large = client.post("/v1/completions", content=b"x" * (5 << 20), headers=headers)
    assert "4194304 bytes" in error(large, 413)
    pieces = (b"x" * (1 << 20) for _ in range(5))
    assert "4194304 bytes" in error(
        client.post("/v1/completions", content=pieces, headers=headers), 413
    )
    assert error(client.get("/nothing"), 404)
    assert error(client.get("/v1/completions"), 405)


def test_a_model_without_special_tokens_or_template_refuses_by_name(model):
    bare = letters(fim=False)
    bare.chat_template = None
    with served(model, bare) as client:
        for route, body, param in (
            ("/v1/completions", {"prompt": "x", "suffix": "y"}, "suffix"),
            ("/infill", {"input_prefix": "x", "input_suffix": "y"}, "input_suffix"),
            ("/v1/chat/completions", CHATS, "messages"),
        ):
            answer = client.post(route, json=body)
            assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)


def test_a_client_that_leaves_while_it_sends_its_body_is_no_fault_of_the_server():
    """As ASGI reports it; the answer is not read, but its status is logged and counted."""
    from ngramspec.server.app import make_app

    app = make_app(tiny_llama(vocab=VOCAB), letters(), settings_of())
    headers = [(b"host", b"localhost"), (b"content-type", b"application/json")]
    scope = {"type": "http", "method": "POST", "path": "/v1/completions", "query_string": b""}
    scope |= {"headers": headers, "asgi": {"version": "3.0"}, "http_version": "1.1"}
    sent = []

    async def receive():
        return {"type": "http.disconnect"}

    async def send(message):
        sent.append(message)

    asyncio.run(app(scope, receive, send))
    assert [each["status"] for each in sent if "status" in each] == [400]
