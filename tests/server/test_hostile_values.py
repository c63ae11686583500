"""Hostile values in every field of every route: refused by name or answered, never an error 5xx.

The fields are those of the schemas; a place inside a new field is to be added to ``WHOLE``.
"""

from __future__ import annotations

import copy
import json

import pytest
from conftest import tiny_llama
from fuzz.server import parsed, wrong_error
from fuzz.server_requests import places
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
EXTRAS = {"ngramspec": {"stores": ["a"], "reference": [1], "namespace": "a", "usage": True}}
OPENAI = EXTRAS | {
    "stop": ["a"],
    "logit_bias": {"1": 1},
    "stream_options": {"include_usage": True, "include_obfuscation": False},
    "prediction": {"type": "content", "content": [{"type": "text", "text": "a"}]},
}
SCHEMA = {"type": "object", "properties": {"a": {"type": "boolean"}}}
TOOL = {"type": "function", "function": {"name": "f", "description": "a", "parameters": SCHEMA}}
STRICT = {"type": "function", "function": {"name": "f", "strict": True, "parameters": SCHEMA}}
CALL = {"id": "a", "type": "function", "function": {"name": "f", "arguments": "{}"}}
MESSAGES = [
    {"role": "user", "content": [{"type": "text", "text": "a"}]},
    {"role": "assistant", "content": None, "tool_calls": [CALL]},
    {"role": "tool", "tool_call_id": "a", "content": "b"},
]
WHOLE = {  # fields in each of whose places the values are
    "/v1/completions": [OPENAI, {"prompt": [[1]]}, {"prompt": ["a"]}],
    "/v1/chat/completions": [
        OPENAI | {"messages": MESSAGES, "tools": [TOOL], "chat_template_kwargs": {"a": 1}},
        {"tools": [STRICT], "tool_choice": {"type": "function", "function": {"name": "f"}}},
        {"response_format": {"type": "json_schema", "json_schema": {"schema": SCHEMA}}},
    ],
    "/completion": [EXTRAS, {"logit_bias": [[1, 1], ["a", False]]}, {"json_schema": SCHEMA}],
    "/infill": [{"input_extra": [{"text": "a", "filename": "b"}], "logit_bias": {"a": 1}}],
}


def bodies(route, kind):
    """A route's bodies as JSON, each with PLACE in a field, or in a place of WHOLE."""
    base = BODIES.get(route, BODIES["/v1/chat/completions"])  # of /apply-template
    found = [base | {name: PLACE} for name in kind.model_fields]
    for whole in WHOLE.get(route, ()):
        for at in range(len([*places(whole)])):
            changed = copy.deepcopy(whole)
            holder, name = [*places(changed)][at]
            holder[name] = PLACE
            found.append(base | changed)
    return [json.dumps(each) for each in found]


@pytest.fixture(scope="module")
def client():
    model = tiny_llama(vocab=VOCAB, eos_token_id=END)
    with served(model, letters(chat=TOOLS_CHAT), max_tokens=2) as client:
        yield client


def wrong(answer):
    """What is wrong with an answer that has to be a success or an error of the API's form."""
    if answer.status_code >= 500 or "server_error" in answer.text:
        return answer.text
    if answer.status_code != 200:
        return wrong_error(answer.content)
    if answer.headers["content-type"] == "application/json":
        parsed(answer.content)
    return None


@pytest.mark.parametrize("every", [5, pytest.param(1, marks=pytest.mark.slow)])
def test_no_value_of_any_field_is_an_error_of_the_server(client, every):
    from ngramspec.server.app import BODY_ROUTES

    assert BODY_ROUTES.keys() >= BODIES.keys()
    for route, posted in BODY_ROUTES.items():
        if route in ("/completions", "/chat/completions"):  # other names of the same routes
            continue
        for at, body in enumerate(bodies(route, posted.kind)):
            for value in NASTIEST[at % every :: every]:
                text = body.replace(f'"{PLACE}"', value)
                found = wrong(client.post(route, content=text.encode(), headers=JSON))
                assert found is None, f"{route} of {text[:1000]}: {found}"
