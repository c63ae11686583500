"""Large requests and responses, and the fields of OpenAI's answers."""

from __future__ import annotations

import json

import pytest
from serving import HI, JSON, ROUTES, ask, events, letters, refused, served

pytest.importorskip("prometheus_client", reason="pip install 'ngramspec[serve]'")
pytest_plugins = ["server_fixtures"]


def test_large_texts_are_translated_in_pieces(monkeypatch):
    """Each piece is one operation that holds the GIL."""
    from ngramspec.server import prompts

    class Text(str):
        __slots__ = ()

        def translate(self, table):
            pytest.fail("the whole text was translated at once")

    text, veil = "<|fim|> of" * 9, str.maketrans({"f": prompts.VEIL})
    for size in (1, 2, 5, 40):
        monkeypatch.setattr(prompts, "PIECE_CHARACTERS", size)
        assert prompts.veiled([Text(text)], veil) == [text.translate(veil)]


def test_responses_are_written_in_pieces(client, monkeypatch):
    """The encoder in C would write a whole response in one operation that holds the GIL."""
    monkeypatch.setattr(json.encoder, "c_make_encoder", lambda *given: pytest.fail("at once"))
    sent = {route: json.JSONEncoder(sort_keys=True).iterencode(ROUTES[route]) for route in ROUTES}
    for route, body in sent.items():
        found = client.post(route, content="".join(body), headers=JSON)
        assert found.status_code == 200
    found = client.post("/tokenize", content='{"content": "xxxx"}', headers=JSON)
    assert found.json() == {"tokens": [88] * 4}


def test_a_response_is_compact_json():
    from ngramspec.server.responses import json_response

    value = [1.5, {"a": [None, True, '"\n\x00']}] * 9999
    assert json_response(value).body == json.dumps(value, separators=(",", ":")).encode()
    assert json_response("😀").body.decode() == '"😀"'


def test_a_large_schema_is_not_written_to_its_end():
    from ngramspec.server.grammars import MAX_SCHEMA_CHARACTERS, bounded_json
    from ngramspec.server.responses import ApiError

    class Endless(list):
        def __iter__(self):
            yield from ["x"] * 2 * MAX_SCHEMA_CHARACTERS
            pytest.fail("all of it was written")

    with pytest.raises(ApiError, match=f"at most {MAX_SCHEMA_CHARACTERS} characters"):
        bounded_json("response_format", {"enum": Endless(["x"])})
    with pytest.raises(ApiError, match="float64"):
        bounded_json("response_format", {"enum": [float("inf")]})


def test_long_prompts_are_decoded_in_pieces_after_they_were_checked(model, monkeypatch):
    from ngramspec.server import service as services

    tokenizer = letters()
    with served(model, tokenizer) as client:
        service = client.app.state.service
        sizes, decode = [], tokenizer.decode
        monkeypatch.setattr(
            tokenizer, "decode", lambda ids, **more: sizes.append(len(ids)) or decode(ids, **more)
        )
        body = {"echo": True, "max_tokens": 0}
        refused(client, "/v1/completions", {"prompt": [1] * 600, **body}, "prompt")
        assert sizes == []
        monkeypatch.setattr(services, "DECODED_TOKENS", 16)
        ids = service.encode("def f(x):\n    return x + 1\n" * 5 + "<|fim_prefix|>")
        found = client.post("/v1/completions", json={"prompt": ids, **body}).json()
        assert found["choices"][0]["text"] == decode(ids)
        assert max(sizes) <= 16 + 16 + 8


def test_the_log_probabilities_of_a_response_are_bounded(client, monkeypatch):
    from ngramspec.server import service

    monkeypatch.setattr(service, "MAX_LOGPROBS", 24)
    chat = HI | {"max_tokens": 24, "logprobs": True}
    short = {"prompt": "xxxx", "max_tokens": 4, "logprobs": 2}
    for route, body, more, param in (
        ("/v1/completions", short, {"n": 3}, "logprobs"),
        ("/v1/completions", short, {"max_tokens": 9}, "logprobs"),
        ("/v1/chat/completions", chat, {"top_logprobs": 1}, "top_logprobs"),
    ):
        ask(client, route, **body)
        error = refused(client, route, body | more, param)
        assert "at most 24 log-probabilities" in error["message"]


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
    body = HI if chat else {"prompt": "x"}
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
    streamed = client.post(route, json=body)
    assert streamed.headers["content-type"].startswith("text/event-stream")
    *parts, last = events(streamed.text)
    for part in parts:
        assert set(part) == FIELDS | {"usage"}
        assert set(part["choices"][0]) == set(choice) - {"message"} | ({"delta"} if chat else set())
        assert "usage" in nulls(part) <= {"choices.logprobs", "choices.finish_reason", "usage"}
    assert set(last["usage"]) == COUNTS
    assert last["choices"] == []
    assert last["usage"]["completion_tokens"] == 24
    assert nulls(last) == set()
    logprobs = {"logprobs": True} if chat else {"logprobs": 1}
    answer = ask(client, route, **body | logprobs | {"stream": False, "stream_options": None})
    extra = {"choices.logprobs.refusal", "choices.message.refusal"} if chat else set()
    assert nulls(answer) - {"choices.logprobs.content.bytes"} == extra
