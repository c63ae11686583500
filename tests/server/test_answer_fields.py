"""The fields of OpenAI's answers: which there are, and which are null."""

from __future__ import annotations

import pytest
from serving import ask, events

pytest.importorskip("prometheus_client", reason="pip install 'ngramspec[serve]'")
pytest_plugins = ["server_fixtures"]
GREEDY = {"max_tokens": 24, "temperature": 0}
# The fields that OpenAI's API reference shows.
FIELDS = {"id", "object", "created", "model", "system_fingerprint", "choices"}
DETAILS = {"prompt_tokens_details", "completion_tokens_details"}
COUNTS = {"prompt_tokens", "completion_tokens", "total_tokens"} | DETAILS


def nulls(value, path=""):
    """The paths of what is null in a JSON value."""
    if value is None:
        return {path}
    entries = value.items() if isinstance(value, dict) else ()
    if isinstance(value, list):
        entries = [("", each) for each in value]
    return {found for name, each in entries for found in nulls(each, f"{path}.{name}".strip("."))}


@pytest.mark.parametrize("route", ["/v1/completions", "/v1/chat/completions"])
def test_an_answer_has_the_fields_of_openais_and_null_only_where_theirs_has_it(client, route):
    chat = "chat" in route
    body = {"messages": [{"role": "user", "content": "hi"}]} if chat else {"prompt": "x"}
    answer = ask(client, route, **body, **GREEDY)
    assert set(answer) == FIELDS | {"usage", "timings"}
    assert set(answer["usage"]) == COUNTS
    (choice,) = answer["choices"]
    expected = {"choices.logprobs", *(["choices.message.refusal"] if chat else [])}
    assert nulls(answer) == expected
    if chat:
        assert set(choice) == {"index", "message", "logprobs", "finish_reason"}
        assert set(choice["message"]) == {"role", "content", "refusal", "annotations"}
        assert choice["message"]["annotations"] == []
    else:
        assert set(choice) == {"index", "text", "logprobs", "finish_reason"}
    body |= {"stream": True, "stream_options": {"include_usage": True}, **GREEDY}
    *parts, last = events(client.post(route, json=body).text)
    for part in parts:
        assert set(part) == FIELDS | {"usage"}
        assert set(part["choices"][0]) == set(choice) - {"message"} | ({"delta"} if chat else set())
        assert nulls(part) <= {"choices.logprobs", "choices.finish_reason", "usage"}
    assert set(last["usage"]) == COUNTS
    assert nulls(last) == set()
    logprobs = {"logprobs": True} if chat else {"logprobs": 1}
    answer = ask(client, route, **body | logprobs | {"stream": False, "stream_options": None})
    extra = {"choices.logprobs.refusal", "choices.message.refusal"} if chat else set()
    assert nulls(answer) - {"choices.logprobs.content.bytes"} == extra
