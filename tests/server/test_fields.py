"""Fields of requests that the server does not know, and bodies that it cannot read."""

from __future__ import annotations

import gzip

import pytest
from serving import BODIES, JSON, ask, error_of, events, letters, refused, served, text_of

pytest.importorskip("prometheus_client", reason="pip install 'ngramspec[serve]'")
pytest_plugins = ["server_fixtures"]

CODING = "Content-Encoding"
CHAT = BODIES["/v1/chat/completions"]


@pytest.mark.parametrize("route", BODIES)
def test_an_unknown_field_is_refused_by_its_name(client, route):
    error = refused(client, route, BODIES[route] | {"max_tokenz": 3}, "max_tokenz")
    assert error["code"] == "unknown_parameter"
    assert client.post(route, json=BODIES[route] | {"max_tokenz": None}).status_code == 200
    long = client.post(route, json=BODIES[route] | {"x" * 9999: 3})
    assert len(long.text) < 1000


def test_fields_without_effect_on_the_text_are_ignored(client):
    plain = text_of(ask(client, temperature=0, **BODIES["/v1/completions"]))
    more = {"store": True, "metadata": {"a": "b"}, "service_tier": "auto", "id_slot": 1}
    answer = client.post("/v1/completions", json=BODIES["/v1/completions"] | more | {"seed": 1})
    assert answer.status_code == 200
    assert "x-ignored-fields" not in answer.headers
    again = ask(client, temperature=0, cache_prompt=True, **BODIES["/v1/completions"])
    assert text_of(again) == plain


@pytest.mark.parametrize("stream", [False, True])
def test_a_warning_names_unknown_fields_instead(model, stream):
    odd = {"max_tokenz": 3, "a b\r\nX: ü": 4, "known": None, "store": True, "ngramspec": {"x": 1}}
    with served(model, unknown_fields="warn") as client:
        for route in ("/v1/completions", "/v1/chat/completions", "/completion"):
            answer = client.post(route, json=BODIES[route] | odd | {"stream": stream})
            assert answer.status_code == 200
            named = answer.headers["x-ignored-fields"].split(", ")
            assert named == ["max_tokenz", "a%20b%0D%0AX%3A%20%C3%BC", "ngramspec.x"]
            assert "x" not in answer.headers
            assert not stream or events(answer.text)
        many = {f"field{n}": n for n in range(100)}
        answer = client.post("/v1/completions", json=BODIES["/v1/completions"] | many)
        assert len(answer.headers["x-ignored-fields"]) < 200
        assert "x-ignored-fields" not in client.get("/health").headers
        route = client.get("/openapi.json").json()["paths"]["/completion"]["post"]
        assert "X-Ignored-Fields" in route["requestBody"]["description"]


UNREADABLE = [b"", b"null", b'"prompt"', b'["[[[', b"[" * 100_000, b'{"prompt": "\xff"}']
LONG = b'{"prompt": "x", "max_tokens": %s}' % (b"1" * 300)
UNREADABLE += [b'{"prompt": "x', b'{"prompt": "\\', LONG]


@pytest.mark.parametrize("body", UNREADABLE, ids=lambda body: str(body[:20]))
def test_a_body_that_cannot_be_read_is_refused_with_the_reason(client, body):
    error = error_of(client.post("/v1/completions", content=body, headers=JSON))
    assert "JSON" in error["message"] or error["param"] == "max_tokens"
    for words in ("error parsing the body", "dictionary", "Traceback", ".py"):
        assert words not in error["message"]


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", None])
def test_a_body_that_is_not_declared_as_json_is_refused_with_the_reason(client, kind):
    headers = {} if kind is None else {"Content-Type": kind}
    answer = client.post("/v1/completions", content=b'{"prompt": "x"}', headers=headers)
    assert "application/json" in error_of(answer)["message"]
    headers = {"Content-Type": "Application/Vnd.x+JSON; charset=utf-8"}
    answer = client.post("/v1/completions", content=b'{"prompt": "x"}', headers=headers)
    assert answer.status_code == 200


@pytest.mark.parametrize("coding", ["gzip", "br, gzip", "x" * 500])
def test_a_compressed_body_is_refused_as_such(client, coding):
    body = gzip.compress(b'{"prompt": "x"}')
    answer = client.post("/v1/completions", content=body, headers=JSON | {CODING: coding})
    error = error_of(answer, 415)
    assert (error["type"], error["code"]) == ("invalid_request_error", "unsupported_encoding")
    assert coding[:50] in error["message"]
    assert answer.headers["accept-encoding"] == "identity"
    plain = {"content": b'{"prompt": "x", "max_tokens": 1}', "headers": JSON | {CODING: "Identity"}}
    assert client.post("/v1/completions", **plain).status_code == 200


def test_every_answer_has_an_id_of_its_own(client):
    body = BODIES["/v1/completions"]
    answers = [
        client.post("/v1/completions", json=each) for each in (body, body | {"stream": True}, {})
    ]
    answers.append(client.post("/v1/completions", headers={"Host": "evil.example"}))
    answers += [client.get(path) for path in ("/nothing", "/health")]
    assert len({answer.headers["x-request-id"] for answer in answers}) == 6


def test_without_a_key_nothing_is_read_or_told_of_a_body(model, monkeypatch):
    from ngramspec.server import bodies

    parsed = []
    monkeypatch.setattr(bodies, "from_json", lambda raw, **_: parsed.append(raw))
    with served(model, keys={"ann": "key"}) as client:
        for body in (*UNREADABLE, b'{"prompt": "x", "max_tokenz": 3}', b"x" * (5 << 20)):
            for key in ({}, {"Authorization": "Bearer other"}, {"X-Api-Key": "other"}):
                answer = client.post("/v1/completions", content=body, headers=JSON | key)
                assert error_of(answer, 401)["code"] == "invalid_api_key"
                assert answer.headers["www-authenticate"] == "Bearer"
        assert not parsed
        assert client.get("/none").status_code == 401
        right = JSON | {"Authorization": "Bearer key"}
        assert client.post("/v1/completions", content=b"{", headers=right).status_code == 400
        assert parsed == [b"{"]


def test_a_key_is_a_bearer_token_or_comes_as_x_api_key(model):
    with served(model, keys={"ann": "key of ann", "bob": "key-of-bob"}) as client:

        def status(**headers):
            given = {name.replace("_", "-"): value for name, value in headers.items()}
            return client.get("/v1/models", headers=given).status_code

        assert status(X_Api_Key="key of ann") == 200
        assert status(X_Api_Key="Bearer key-of-bob") == 401
        assert status(X_Api_Key="") == 401
        for wrong in ("Bearer", "Bearer key", "Basic key-of-bob", "key-of-bob"):
            assert status(Authorization=wrong) == 401
        assert status(Authorization="Bearer key-of-bob", X_Api_Key="wrong") == 200
        assert status(Authorization="Bearer wrong", X_Api_Key="key-of-bob") == 401


TEMPLATES = [
    ("{{ raise_exception('No robots.') }}", "No robots."),
    ("{{ messages[0].x.y }}", "no attribute 'x'"),
    ("{{ messages[0].content + 1 }}", "TypeError"),
    ("{{ 1 / 0 }}", "ZeroDivisionError"),
    ("{% for m in messages %}\n{{ m. }}{% endfor %}", "expected name"),
]


@pytest.mark.parametrize(("template", "reason"), TEMPLATES, ids=str)
def test_a_templates_error_says_why_without_the_words_of_python(model, template, reason):
    with served(model, letters(chat=template)) as client:
        error = refused(client, "/v1/chat/completions", CHAT, "messages")
    assert reason in error["message"]
    assert "concatenate" not in error["message"]
    assert "{{" not in error["message"]


def test_the_other_apis_name_of_a_field_is_suggested(client):
    def suggestion(route, name, value=3):
        answer = client.post(route, json=BODIES[route] | {"stream": True, name: value})
        return answer.json()["error"]["message"].partition("the field")[2]

    assert suggestion("/v1/completions", "max_tokenz") == "; did you mean 'max_tokens'?"
    assert suggestion("/completion", "max_new_tokens") == "; did you mean 'n_predict'?"
    assert suggestion("/v1/completions", "n_predict") == "; did you mean 'max_tokens'?"
    assert suggestion("/v1/chat/completions", "reasoning_effort") == ""
    wrong = "stream_options", {"include_usag": True, "include_obfuscation": False}
    for route in ("/v1/completions", "/v1/chat/completions"):
        assert suggestion(route, *wrong) == "; did you mean 'include_usage'?"
