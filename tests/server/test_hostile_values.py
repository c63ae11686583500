"""Hostile values in every field of every route: refused by name or answered, never an error 5xx.

The fields are those of the schemas, so a new field is covered without a change here.
"""

from __future__ import annotations

import json

import pytest
from conftest import tiny_llama
from fuzz.server import parsed, wrong_error
from serving import BODIES, END, JSON, TOOLS_CHAT, VOCAB, letters, served

pytest.importorskip("prometheus_client", reason="pip install 'ngramspec[serve]'")

DEEP = 150  # the parser's own bound is 200
LONG_NAME = '{"%s": 1}' % ("9" * 5000)
NESTED = '{"a": ' * DEEP + "1" + "}" * DEEP
NASTIEST = [  # as JSON text
    *("null", "-1", "0.5", str(2**64), "1e-38", "1e400", '""', r'"\ud800"'),
    *('"%s"' % ("9" * 5000), "[]", "[null]", "[[]]", r'["\ud800"]', "{}", '{"$ref": "#"}'),
    *(LONG_NAME, NESTED),
]
PLACE = "<the value>"
STRICT = {"name": "f", "strict": True, "parameters": PLACE}
INSIDE = [  # of a chat's objects that may have any members
    {"response_format": {"type": "json_schema", "json_schema": {"schema": PLACE}}},
    {"tools": [{"type": "function", "function": STRICT}]},
    {"tools": [{"type": "function", "function": STRICT | {"parameters": {"type": PLACE}}}]},
]


class Schema:
    """A JSON schema of pydantic, as far as it says where values are."""

    def __init__(self, kind):
        self.whole = kind.model_json_schema()

    def forms(self, schema):
        """The alternatives of a schema, without references."""
        if "$ref" in schema:
            return self.forms(self.whole["$defs"][schema["$ref"].rpartition("/")[2]])
        if "anyOf" in schema:
            return [form for each in schema["anyOf"] for form in self.forms(each)]
        return [schema]

    def places(self, schema=None, path=()):
        """The paths of all fields and entries, such as ("messages", 0, "role")."""
        for form in self.forms(self.whole if schema is None else schema):
            for name, each in form.get("properties", {}).items():
                yield (*path, name)
                yield from self.places(each, (*path, name))
            if form.get("type") == "array":
                yield (*path, 0)
                yield from self.places(self.items(form), (*path, 0))

    @staticmethod
    def items(form):
        """What an entry of a list can be; a tuple's entries are not told apart."""
        return form["items"] if "items" in form else {"anyOf": form["prefixItems"]}

    def least(self, schema):
        """The least value of a schema."""
        form = self.forms(schema)[0]
        if "const" in form or "enum" in form:
            return form["const"] if "const" in form else form["enum"][-1]
        if "properties" in form:
            return {name: self.least(form["properties"][name]) for name in form.get("required", ())}
        kinds = {"object": {}, "array": [], "integer": 1, "number": 1, "boolean": True}
        return kinds.get(form.get("type"), "x")

    def changed(self, body, path, schema=None):
        """A body with PLACE at a path."""
        if not path:
            return PLACE
        key, rest = path[0], path[1:]
        forms = self.forms(self.whole if schema is None else schema)
        if isinstance(key, int):
            items = next(
                self.items(form)
                for form in forms
                if form.get("type") == "array" and within(self, self.items(form), rest)
            )
            return [self.changed(body[0] if isinstance(body, list) and body else None, rest, items)]
        form = next(form for form in forms if key in form.get("properties", {}))
        body = dict(body) if isinstance(body, dict) else self.least(form)
        body[key] = self.changed(body.get(key), rest, form["properties"][key])
        return body


def within(schema, items, path):
    return not path or path in set(schema.places(items))


def bodies(kind, base):
    """A request's bodies, each with PLACE in one field."""
    schema = Schema(kind)
    found = [schema.changed(base, path) for path in dict.fromkeys(schema.places())]
    found += [base | each for each in INSIDE] if "messages" in base else []
    return list(dict.fromkeys(json.dumps(each) for each in found))


@pytest.fixture(scope="module")
def client():
    model = tiny_llama(vocab=VOCAB, eos_token_id=END)
    with served(model, letters(chat=TOOLS_CHAT), max_tokens=2) as client:
        yield client


def test_every_place_is_found():
    from ngramspec.server.bodies import ChatBody, CompletionBody

    chat = set(Schema(ChatBody).places())
    assert ("messages", 0, "content", 0) in chat
    assert ("tools", 0, "function", "parameters") in chat
    assert ("ngramspec", "stores", 0) in chat
    assert ("prompt", 0, 0) in set(Schema(CompletionBody).places())
    texts = bodies(ChatBody, BODIES["/v1/chat/completions"])
    assert all(text.count(PLACE) == 1 for text in texts)
    assert any('"schema": "<the value>"' in text for text in texts)


def wrong(answer):
    """What is wrong with an answer that has to be a success or an error of the API's form."""
    if answer.status_code >= 500 or "server_error" in answer.text:
        return answer.text
    if answer.status_code != 200:
        return wrong_error(answer.content)
    if answer.headers["content-type"] == "application/json":
        parsed(answer.content)
    return None


def test_no_value_of_any_field_is_an_error_of_the_server(client):
    from ngramspec.server.app import BODY_ROUTES

    assert BODY_ROUTES.keys() >= BODIES.keys()
    for route, posted in BODY_ROUTES.items():
        if route in ("/completions", "/chat/completions"):  # other names of the same routes
            continue
        base = BODIES.get(route, BODIES["/v1/chat/completions"])  # of /apply-template
        for body in bodies(posted.kind, base):
            for value in NASTIEST:
                text = body.replace(f'"{PLACE}"', value)
                found = wrong(client.post(route, content=text.encode(), headers=JSON))
                assert found is None, f"{route} of {text[:1000]}: {found}"
