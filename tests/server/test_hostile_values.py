"""Hostile values in every field of every route: refused by name or answered, never an error 5xx.

The fields are those of the schemas, so a new field is covered without a change here.
"""

from __future__ import annotations

import json
from typing import Any

import pytest
from conftest import tiny_llama
from serving import VOCAB, letters, served

pytest.importorskip("prometheus_client", reason="pip install 'ngramspec[serve]'")

END = 100
TEMPLATE = (
    "{% for t in tools or [] %}{{ t | tojson }}{% endfor %}"
    '{% if tools %}as <tool_call>{"name": N}</tool_call>{% endif %}'
    "{% for m in messages %}{{ m.role }}:{{ m.content }}"
    "{% for c in m.tool_calls or [] %}{{ c.function | tojson }}{% endfor %};"
    "{% endfor %}assistant:"
)
DEEP = 150  # the parser's own bound is 200
LONG_NAME = '{"%s": 1}' % ("9" * 5000)
NESTED = '{"a": ' * DEEP + "1" + "}" * DEEP
VALUES = {  # by JSON type, as JSON text: some of them are not valid JSON
    "null and booleans": ["null", "true", "false"],
    "integers": [
        *("0", "-1", "17", "9" * 400, "9" * 5000, str(2**31 - 1), str(2**31)),
        *(str(-(2**63) - 1), str(2**63 - 1), str(2**64)),
    ],
    "numbers": [
        *("1e-38", "1e-320", "-1e-320", "1e308", "1e400", "-1e400", "0.5"),
        *("NaN", "Infinity", "-Infinity"),
    ],
    "strings": [
        *('""', '"x"', '"{{ 1/0 }}"', '"NaN"', '"<|fim_prefix|><tool_call>"'),
        *(r'"\ud800"', r'"a\udc00b"', r'"\u0000"', r'"\ufffe☺\u200f"'),
        *('"%s"' % ("x" * 20_000), '"%s"' % ("9" * 5000)),
    ],
    "arrays": [
        *("[]", "[null]", "[[]]", "[1e400]", "[-1]", f"[{2**31 - 1}]", "[{}]", '["x", 1]'),
        *(r'["\ud800"]', "[" * DEEP + "]" * DEEP, "[" * 100_000),
        "[{}]".format(",".join(["[]"] * 3000)),
    ],
    "objects": [
        *("{}", '{"": null}', r'{"\ud800": 1}', '{"-1": 1, "x": 1}', '{"0": 1e400}'),
        *('{"$ref": "#"}', '{"$ref": "http://localhost/"}', LONG_NAME, NESTED),
        '{"$ref": "#/properties/a", "properties": {"a": {"$ref": "#"}}}',
        '{"anyOf": [{"$ref": "#"}, {"$ref": "#"}]}',
        '{"type": "string", "pattern": "(((((a*)*)*)*)*)*("}',
        '{"type": "integer", "minimum": 1e400}',
        '{"type": "object", "properties": null}',
        '{"type": "text", "text": null}',
    ],
}
NASTIEST = [
    *("null", "-1", "0.5", str(2**64), "9" * 5000, "1e-38", "1e400", "NaN", '""', r'"\ud800"'),
    *('"%s"' % ("9" * 5000), "[]", "[null]", "[[]]", r'["\ud800"]', "{}", '{"$ref": "#"}'),
    *(LONG_NAME, NESTED),
]
USER = {"role": "user", "content": "x"}
TOOL = {
    "type": "function",
    "function": {"name": "f", "strict": True, "parameters": {"type": "object"}},
}
CALL = {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
BASES: dict[str, list[dict[str, Any]]] = {
    "CompletionBody": [{"prompt": "x", "max_tokens": 1, "temperature": 1}],
    "ChatBody": [
        {"messages": [USER], "max_tokens": 1, "temperature": 1},
        {"messages": [USER], "max_tokens": 1, "tools": [TOOL]},
        {
            "messages": [USER],
            "max_tokens": 1,
            "response_format": {"type": "json_schema", "json_schema": {"schema": {}}},
        },
        {
            "messages": [
                {"role": "assistant", "content": [{"type": "text", "text": "x"}]},
                {"role": "assistant", "tool_calls": [CALL]},
            ],
            "max_tokens": 1,
        },
    ],
    "LlamaBody": [{"prompt": "x", "n_predict": 1}],
    "TokenizeBody": [{"content": "x"}],
    "DetokenizeBody": [{"tokens": [1]}],
    "InfillBody": [
        {"input_prefix": "x", "input_suffix": "y", "prompt": "z", "n_predict": 1},
        {"input_prefix": "x", "input_suffix": "y", "input_extra": [{"text": "x"}], "n_predict": 1},
    ],
}
PLACE = "<the value>"


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


def places_of(value, path=()):
    """The paths of what is in a JSON value."""
    entries = value.items() if isinstance(value, dict) else enumerate(value)
    for key, each in entries:
        yield (*path, key)
        if isinstance(each, dict | list):
            yield from places_of(each, (*path, key))


def replaced(value, path):
    """A JSON value with PLACE at a path."""
    if not path:
        return PLACE
    copy = dict(value) if isinstance(value, dict) else list(value)
    copy[path[0]] = replaced(value[path[0]], path[1:])
    return copy


def bodies(kind):
    """A request's bodies, each with PLACE in one field, and the field."""
    schema, bases = Schema(kind), BASES[kind.__name__]
    found = [replaced(base, path) for base in bases for path in places_of(base)]
    found += [schema.changed(bases[0], path) for path in dict.fromkeys(schema.places())]
    return list(dict.fromkeys(json.dumps(each) for each in found))


@pytest.fixture(scope="module")
def client():
    tokenizer = letters()
    tokenizer.chat_template = TEMPLATE
    model = tiny_llama(vocab=VOCAB, eos_token_id=END)
    with served(model, tokenizer, max_tokens=2) as client:
        yield client


def routes():
    """The routes that take a body, and what it must be."""
    from serving import settings_of

    from ngramspec.server.app import BODY_ROUTES, make_app

    app = make_app(tiny_llama(vocab=VOCAB), letters(), settings_of())
    posted = {route.path for route in app.routes if "POST" in (route.methods or ())}
    assert posted == set(BODY_ROUTES)
    return {path: route.kind for path, route in BODY_ROUTES.items()}


def refuse_constant(name):
    raise AssertionError(f"an answer has {name}, which is not JSON")


def check(answer):
    """An answer is a success or an error of the API's form."""
    assert answer.status_code < 500, answer.text
    if answer.status_code == 200:
        assert "server_error" not in answer.text  # in an event of a stream
        if answer.headers["content-type"] == "application/json":
            json.loads(answer.text, parse_constant=refuse_constant)
        return
    error = json.loads(answer.text, parse_constant=refuse_constant)["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert isinstance(error["message"], str)
    assert error["message"]
    assert error["param"] is None or error["param"]
    assert error["type"].endswith("_error")


def test_every_place_is_found():
    from ngramspec.server.bodies import ChatBody, CompletionBody

    chat = set(Schema(ChatBody).places())
    assert ("messages", 0, "content", 0) in chat
    assert ("tools", 0, "function", "parameters") in chat
    assert ("ngramspec", "stores", 0) in chat
    assert ("prompt", 0, 0) in set(Schema(CompletionBody).places())
    texts = bodies(ChatBody)
    assert all(text.count(PLACE) == 1 for text in texts)
    assert any('"schema": "<the value>"' in text for text in texts)


@pytest.mark.parametrize(
    "values",
    [NASTIEST, *(pytest.param(each, marks=pytest.mark.slow) for each in VALUES.values())],
    ids=["nastiest", *VALUES],
)
def test_no_value_of_any_field_is_an_error_of_the_server(client, values):
    headers = {"content-type": "application/json"}
    kinds = routes()
    assert {"/v1/completions", "/v1/chat/completions", "/completion", "/infill"} <= set(kinds)
    for route, kind in kinds.items():
        if route in ("/completions", "/chat/completions"):  # other names of the same routes
            continue
        for body in bodies(kind):
            for value in values:
                text = body.replace(f'"{PLACE}"', value)
                answer = client.post(route, content=text.encode(), headers=headers)
                try:
                    check(answer)
                except AssertionError as error:
                    raise AssertionError(f"{route} of {text[:1000]}: {error}") from error
