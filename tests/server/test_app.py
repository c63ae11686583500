"""The application: its document, hosts, keys, and what it refuses by the field's name."""

from __future__ import annotations

import pytest
from serving import HI, JSON, ROUTES, VOCAB, ask, error_of, letters, refused, served, settings_of

from ngramspec.cli import main
from ngramspec.server.app import AllowedHosts
from ngramspec.server.settings import MIB, SharedText

pytest.importorskip("prometheus_client", reason="pip install 'ngramspec[serve]'")
pytest_plugins = ["server_fixtures"]


@pytest.fixture(scope="module")
def found(client):
    answer = client.get("/openapi.json")
    assert answer.status_code == 200
    return answer.json()


def values(value):
    """All objects of a JSON value."""
    if isinstance(value, dict):
        yield value
    for each in value.values() if isinstance(value, dict) else value:
        if isinstance(each, dict | list):
            yield from values(each)


def test_every_route_is_described_once(client, found):
    from fastapi.routing import APIRoute

    given = {
        (route.path_format, method)
        for route in client.app.routes
        if isinstance(route, APIRoute) and route.path != "/openapi.json"
        for method in route.methods - {"HEAD"}
    }
    assert given == {(path, way.upper()) for path, ways in found["paths"].items() for way in ways}
    operations = [each for ways in found["paths"].values() for each in ways.values()]
    names = [each["operationId"] for each in operations]
    assert len(set(names)) == len(names)
    for operation in operations:
        assert set(operation["responses"]) == {"200", "4XX", "5XX"}, "422 is never an answer"


def test_every_reference_can_be_followed(found):
    schemas = found["components"]["schemas"]
    names = [each["$ref"] for each in values(found) if "$ref" in each]
    assert len(names) > 20
    for name in names:
        assert name.removeprefix("#/components/schemas/") in schemas


def test_a_body_is_described_by_the_type_that_reads_it(client, found):
    from ngramspec.server.app import BODY_ROUTES

    assert set(BODY_ROUTES) == {path for path, ways in found["paths"].items() if "post" in ways}
    for path, route in BODY_ROUTES.items():
        operation = found["paths"][path]["post"]
        schema = operation["requestBody"]["content"]["application/json"]["schema"]
        name = schema["$ref"].rpartition("/")[2]
        assert set(found["components"]["schemas"][name]["properties"]) == set(
            route.kind.model_fields
        )
        streams = "server-sent events" in operation["responses"]["200"]["description"]
        assert streams == ("stream" in route.kind.model_fields and path != "/apply-template")
        assert "refused with 400" in operation["requestBody"]["description"]


def test_types_of_contents_are_those_of_the_answers(client, found):
    for path in ("/health", "/v1/models", "/models", "/props", "/metrics"):
        (kind,) = found["paths"][path]["get"]["responses"]["200"]["content"]
        assert client.get(path).headers["content-type"].startswith(kind)


def test_an_error_has_the_described_form(client, found):
    schemas = found["components"]["schemas"]
    (name,) = (
        each["$ref"].rpartition("/")[2] for each in values(schemas["Error"]) if "$ref" in each
    )
    schema = schemas[name]
    error = client.post("/v1/completions", json={}).json()["error"]
    assert set(error) == set(schema["properties"]) == set(schema["required"])


def test_there_is_no_page_that_loads_scripts(client):
    for path in ("/docs", "/redoc", "/docs/oauth2-redirect"):
        assert client.get(path).status_code == 404


LOCAL = ["localhost", "LocalHost.:8012", "app.localhost:80", "127.0.0.1", "127.0.0.1:8012"]
LOCAL += ["127.8.9.1:1", "[::1]", "[::1]:8012", "[::ffff:127.0.0.1]:8012", "[0:0:0:0:0:0:0:1]:"]
OTHER = ["evil.example", "evil.example:8012", "localhost.evil.example", "127.0.0.1.evil.example"]
OTHER += ["10.0.0.7:8012", "[fe80::7]:8012", "0.0.0.0:8012", "[::]", "notlocalhost"]
WRONG = ["", ":8012", "localhost:x", "localhost:80:80", "::1", "[::1", "[localhost]"]
WRONG += ["127.1", "0x7f000001", "2130706433", "a b", "localhost,evil.example", "user@localhost"]


OWN = ["code.example", "CODE.example.:80", "10.0.0.7:8012", "[fe80::7]:8012"]
ADDRESSES = ["10.0.0.7:8012", "[fe80::7]:8012", "0.0.0.0:8012"]
HOSTS = [
    ([], LOCAL, [*OTHER, *WRONG]),
    (["Code.Example.", "10.0.0.7", "fe80::7"], [*OWN, *LOCAL], ["sub.code.example", *OTHER[:4]]),
    (["10.0.0.7"], ["10.0.0.7"], ["10.0.0.8", "[fe80::8]", *WRONG]),
    (["0.0.0.0"], [*ADDRESSES, *LOCAL], ["evil.example", *WRONG]),  # a name can be rebound
    (["::"], [*ADDRESSES, *LOCAL], ["evil.example", *WRONG]),
    (["*"], [*LOCAL, *OTHER, *WRONG], []),
]


@pytest.mark.parametrize(("allowed", "known", "others"), HOSTS, ids=str)
def test_hosts_are_this_machines_and_those_that_are_allowed(allowed, known, others):
    hosts = AllowedHosts(allowed)
    assert [each for each in known if not hosts.allow(each)] == []
    assert [each for each in others if hosts.allow(each)] == []


@pytest.mark.parametrize("wrong", ["example.com:80", "http://example.com", "", "[::1]:80", "a/b"])
def test_what_is_no_host_is_refused(wrong, capsys):
    with pytest.raises(ValueError, match="without a port"):
        AllowedHosts([wrong])
    assert main(["serve", "--port", "0", "--allowed-hosts", f"one.example,{wrong}"]) == 2
    assert "--allowed-hosts" in capsys.readouterr().err


def test_a_rebound_name_reads_nothing(client, model):
    for path in ("/metrics", "/v1/models", "/health", "/props", "/none"):
        error = error_of(client.get(path, headers={"Host": "evil.example:8012"}), 421)
        assert error["code"] == "host_not_allowed", path
        assert "--allowed-hosts" in error["message"]
    error_of(client.post("/v1/completions", json=PROMPT, headers={"Host": "evil.example"}), 421)
    two = [("Host", "localhost"), ("Host", "evil.example")]
    assert client.get("/health", headers=two).status_code == 421
    for host in ("127.0.0.1:8012", "[::1]:8012", "localhost:8012"):
        assert client.get("/v1/models", headers={"Host": host}).status_code == 200
    with served(model, allowed_hosts=["code.example"]) as other:
        assert other.get("/health", headers={"Host": "code.example:99"}).status_code == 200
        assert other.get("/health", headers={"Host": "evil.example"}).status_code == 421


def test_the_bound_host_is_allowed():
    from types import SimpleNamespace

    from ngramspec.cli import build_parser
    from ngramspec.cli.serve import settings_of

    command = ["serve", "--host", "10.0.0.7", "--allowed-hosts", "a.example, b.example"]
    command += ["--allowed-hosts", "c.example"]
    command += ["--shared", "0", "--unknown-fields", "warn", "--grammar-seconds", "3"]
    arguments = build_parser().parse_args(command)
    found = settings_of(arguments, SimpleNamespace(name="tiny"), {"ann": "key"}, {})
    assert (found.unknown_fields, found.limits.grammar_seconds) == ("warn", 3)
    assert found.allowed_hosts == ["10.0.0.7", "a.example", "b.example", "c.example"]


PROMPT = {"prompt": "x"}
INFILL = {"input_prefix": "x", "input_suffix": "y"}
LONG = {"type": "content", "content": "x" * (1 << 19)}
VALUES = [  # of single fields, which are refused by their names
    (PROMPT, {"prompt": ["", [], [[]], ["a", 3], [VOCAB], [-1], "x" * 600, None]}),
    (PROMPT, {"max_tokens": [-1, 0, "many"], "n": [0, 99], "best_of": [4], "logprobs": [50]}),
    (PROMPT, {"temperature": [-1, "hot"], "top_p": [-1], "presence_penalty": [9]}),
    (PROMPT, {"logit_bias": [{"many": 1}, {str(VOCAB): 1}]}),
    (PROMPT, {"stop": [["a"] * 400, [[]], ["a" * 999] * 5]}),  # the last is too much to look for
    (PROMPT, {"prediction": ["text", {"type": "x", "content": "x"}, {"type": "content"}, LONG]}),
    (HI, {"messages": [[], "hi", [{"role": "user", "content": [{"type": "image_url"}]}]]}),
    (HI, {"response_format": [{"type": "xml"}, {"type": "json_schema"}], "top_logprobs": [2]}),
    (HI, {"tools": [[{"type": "function"}]], "max_tokens": [0], "max_completion_tokens": [0]}),
    (HI, {"continue_final_message": [True], "modalities": [["audio"]]}),
    (INFILL, {"logit_bias": [[[VOCAB, 1]], {"x": 1e9}], "grammar": ["root"], "n_probs": [50]}),
    (INFILL, {"n_predict": [-2], "max_tokens": [-2], "t_max_predict_ms": [-2]}),
]
EXTRAS = {"stores": ["other"], "no-such": 1, "0": 1, "namespace": "mine", "speculate": "maybe"}
REFUSED = [
    *(
        (base | {name: each}, name)
        for base, fields in VALUES
        for name, values in fields.items()
        for each in values
    ),
    *((PROMPT | {"ngramspec": {name: each}}, f"ngramspec.{name}") for name, each in EXTRAS.items()),
    ({}, "prompt"),
    (PROMPT | {"echo": True, "suffix": "y"}, "echo"),
    (PROMPT | {"echo": True, "logprobs": 1}, "echo"),
    ({"prompt": [1, 2], "suffix": "y"}, "suffix"),
    (PROMPT | {"stream": True, "max_tokens": -1}, "max_tokens"),
    (PROMPT | {"stream": True, "stream_options": {"include_obfuscation": True}}, "stream_options"),
    (HI | {"response_format": {"type": "text", "schema": {}}}, "response_format.schema"),
    # Only a field of the request may have llama.cpp's default.
    (HI | {"prediction": LONG | {"content": "x", "mirostat": 0}}, "prediction.mirostat"),
    ({"input_prefix": "x"}, "input_suffix"),
    (INFILL | {"stream": True, "n_cmpl": 2}, "n_cmpl"),
]


@pytest.mark.parametrize(("body", "param"), REFUSED, ids=str)
def test_what_cannot_be_answered_is_refused_by_the_fields_name(client, body, param):
    routes = {"messages": "/v1/chat/completions", "input_prefix": "/infill"}
    route = next((to for name, to in routes.items() if name in body), "/v1/completions")
    assert refused(client, route, body, param)["type"] == "invalid_request_error"


def test_another_models_name_is_answered_by_the_served_model_or_refused(client, model):
    for route, body in ROUTES.items():
        answer = ask(client, route, **body, model="gpt-4")
        assert answer["model"] == "tiny", "it tells which model answered"
    assert client.get("/v1/models/gpt-4").status_code == 404
    with served(model, drafter="none", shared=SharedText(MIB, (), None)) as plain:  # no stores
        ask(plain, **PROMPT, n=2)
    with served(model, other_models="refuse") as strict:
        for route, body in ROUTES.items():
            for name in ("tiny", "", None):
                ask(strict, route, **body, model=name)
            error = refused(strict, route, body | {"model": "gpt-4"}, "model", status=404)
            assert error["code"] == "model_not_found"
    with pytest.raises(ValueError, match="other_models"):
        settings_of(other_models="maybe")


def test_what_is_no_request_is_refused_in_the_same_shape(client):
    for large in (b"x" * (5 << 20), (b"x" * (1 << 20) for _ in range(5))):
        found = client.post("/v1/completions", content=large, headers=JSON)
        assert "4194304 bytes" in error_of(found, 413)["message"]
    named = client.post("/v1/completions", json=PROMPT, headers={"X-Session": "x" * 201})
    assert "at most 200" in error_of(named)["message"]
    assert error_of(named)["param"] == "x-session"
    error_of(client.get("/nothing"), 404)
    error_of(client.get("/v1/completions"), 405)


def test_a_model_without_special_tokens_or_template_refuses_by_name(model):
    bare = letters(fim=False)
    bare.chat_template = None
    with served(model, bare) as client:
        for route, body, param in (
            ("/v1/completions", {"prompt": "x", "suffix": "y"}, "suffix"),
            ("/infill", {"input_prefix": "x", "input_suffix": "y"}, "input_suffix"),
            ("/v1/chat/completions", HI, "messages"),
        ):
            refused(client, route, body, param)
