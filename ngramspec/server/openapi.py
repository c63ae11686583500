"""The OpenAPI document of the routes, without a page that shows it."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from ngramspec.server.settings import ServerSettings

REFERENCE = "#/components/schemas/{model}"
BODY = (
    "A member that is null counts as absent, as does a field of llama.cpp whose value has no"
    " effect."
)
UNKNOWN = {
    "refuse": "Unknown fields that might change the answer are refused with 400.",
    "warn": "Unknown fields are ignored and named in the header X-Ignored-Fields.",
}
ABOUT = (
    "Completions with speculative decoding, by OpenAI's and llama.cpp's interfaces. Every response"
    " has the header X-Request-Id."
)
TEXT = {"type": "string"}
NULLABLE = {"type": ["string", "null"]}
ERROR = {
    "type": "object",
    "required": ["error"],
    "properties": {
        "error": {
            "type": "object",
            "required": ["message", "type", "param", "code"],
            "properties": {"message": TEXT, "type": TEXT, "param": NULLABLE, "code": NULLABLE},
        }
    },
}
_ERRORS = {"application/json": {"schema": {"$ref": REFERENCE.format(model="Error")}}}
RESPONSES: dict[int | str, dict[str, Any]] = {  # of every route
    "4XX": {"description": "The request is refused; `param` names the field", "content": _ERRORS},
    "5XX": {"description": "The server failed or is shutting down", "content": _ERRORS},
}


def described(kind: type[BaseModel], streams: bool, unknown_fields: str) -> dict[str, Any]:
    """An operation's body of type ``kind``, and its response."""
    schema = {"$ref": REFERENCE.format(model=kind.__name__)}
    content: dict[str, Any] = {"application/json": {"schema": {}}}
    response: dict[str, Any] = {"description": "The answer", "content": content}
    if streams:
        response["description"] = "The answer; with `stream`, events with parts of it"
        content["text/event-stream"] = {"schema": TEXT}
    body = {
        "description": f"{BODY} {UNKNOWN[unknown_fields]}",
        "required": True,
        "content": {"application/json": {"schema": schema}},
    }
    return {"requestBody": body, "responses": {"200": response}}


def document(
    app: FastAPI, kinds: set[type[BaseModel]], settings: ServerSettings, public: tuple[str, ...]
) -> dict[str, Any]:
    """The document of an application whose routes have bodies of the given kinds.

    ``public`` are the paths that need no key.
    """
    found = get_openapi(title=app.title, version=app.version, description=ABOUT, routes=app.routes)
    inputs: Any = [(kind, "validation") for kind in sorted(kinds, key=lambda each: each.__name__)]
    _, schemas = models_json_schema(inputs, ref_template=REFERENCE)
    components = found.setdefault("components", {})
    components.setdefault("schemas", {}).update(schemas["$defs"], Error=ERROR)
    if settings.keys:
        components["securitySchemes"] = {
            "bearer": {"type": "http", "scheme": "bearer"},
            "key": {"type": "apiKey", "in": "header", "name": "X-Api-Key"},
        }
        found["security"] = [{"bearer": []}, {"key": []}]
        for path in public:
            found["paths"][path]["get"]["security"] = []
    return found
