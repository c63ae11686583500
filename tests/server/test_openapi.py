"""``/openapi.json`` describes the routes as they are."""

from __future__ import annotations

import pytest
from serving import ask, served

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

    for path, route in BODY_ROUTES.items():
        operation = found["paths"][path]["post"]
        schema = operation["requestBody"]["content"]["application/json"]["schema"]
        name = schema["$ref"].rpartition("/")[2]
        assert set(found["components"]["schemas"][name]["properties"]) == set(
            route.kind.model_fields
        )
        streams = "text/event-stream" in operation["responses"]["200"]["content"]
        assert streams == ("stream" in route.kind.model_fields and path != "/apply-template")
        assert "refused with 400" in operation["requestBody"]["description"]


def test_types_of_contents_are_those_of_the_answers(client, found):
    def types(path, way):
        return set(found["paths"][path][way]["responses"]["200"]["content"])

    for path in ("/health", "/v1/models", "/models", "/props", "/metrics"):
        (kind,) = types(path, "get")
        assert client.get(path).headers["content-type"].startswith(kind)
    body = {"prompt": "x", "max_tokens": 1}
    for stream in (False, True):
        answer = client.post("/v1/completions", json=body | {"stream": stream})
        kind = answer.headers["content-type"].partition(";")[0]
        assert kind in types("/v1/completions", "post")
    assert ask(client, "/tokenize", content="x")


def test_an_error_has_the_described_form(client, found):
    schema = found["components"]["schemas"]["Error"]["properties"]["error"]
    error = client.post("/v1/completions", json={}).json()["error"]
    assert set(error) == set(schema["properties"]) == set(schema["required"])


def test_keys_are_described_and_needed_for_the_document_too(model, found):
    assert "security" not in found
    with served(model, keys={"ann": "key"}, unknown_fields="warn") as client:
        assert client.get("/openapi.json").status_code == 401
        document = client.get("/openapi.json", headers={"X-Api-Key": "key"}).json()
    schemes = document["components"]["securitySchemes"]
    assert document["security"] == [{name: []} for name in schemes]
    assert document["paths"]["/health"]["get"]["security"] == []
    body = document["paths"]["/completion"]["post"]["requestBody"]
    assert "X-Ignored-Fields" in body["description"]


def test_there_is_no_page_that_loads_scripts(client):
    for path in ("/docs", "/redoc", "/docs/oauth2-redirect"):
        assert client.get(path).status_code == 404
