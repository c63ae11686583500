"""Unfinished tool calls: what was read of them, and what is predicted."""

from __future__ import annotations

import json
from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ngramspec.drafters.partial_json import PartialJson
from ngramspec.drafters.tool_calls import (
    MAX_ALL_CHARACTERS,
    MAX_CONTINUATIONS,
    MAX_PREDICTED_CHARACTERS,
    CallText,
    tool_of,
)

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "find_flights",
            "parameters": {
                "type": "object",
                "properties": {
                    "origin": {"type": "string"},
                    "cabin": {"type": "string", "enum": ["economy", "business"]},
                    "stops": {"anyOf": [{"type": "null"}, {"type": "boolean"}]},
                    "passengers": {
                        "type": "array",
                        "items": {
                            "type": "object",
                            "properties": {"name": {"type": "string"}, "age": {"type": "integer"}},
                            "required": ["name", "age"],
                        },
                    },
                },
                "required": ["origin", "cabin"],
            },
        },
    },
    {"name": "list_all", "parameters": {"type": "object", "properties": {}}},
    {"type": "function", "function": {"name": 7}},
    "not a tool",
]
CALL = {"name": "find_flights", "arguments": {"cabin": "business", "origin": "SFO"}}


def after(text, calls=None):
    calls = CallText(TOOLS) if calls is None else calls
    return calls.after(PartialJson().read(text))


def learned(*texts):
    calls = CallText(TOOLS)
    for text in texts:
        reader = PartialJson().read(text)
        assert reader.state == "done"
        calls.learn(reader)
    return calls


@pytest.mark.parametrize(
    ("text", "first"),
    [
        ("", '\n{"name": "find_flights", "arguments": {"origin": "'),
        ("\n", '{"name": "find_flights", "arguments": {"origin": "'),
        ('\n{"na', 'me": "find_flights", "arguments": {"origin": "'),
        ('\n{"name": "li', 'st_all", "arguments": {}}\n</tool_call>'),
        ('\n{"name": "find_flights", "arguments": {"origin": "SFO"', ', "cabin": "economy"}}'),
        ('\n{"name": "find_flights", "arguments": {"origin": "SFO", "cabin": "b', 'usiness"}}'),
        ('\n{"name": "list_all", "arguments": {}}', "\n</tool_call>"),
        ('\n{"name": "list_all", "arguments": {}}\n</to', "ol_call>"),
    ],
)
def test_what_follows(text, first):
    assert after(text)[0].startswith(first)


def test_names_values_and_optional_keys_are_alternatives():
    assert [each.partition('"')[0] for each in after('\n{"name": "')] == [
        "find_flights",
        "list_all",
    ]
    begun = '\n{"name": "find_flights", "arguments": {"origin": "S\\"O", "cabin": '
    assert [each.split('"')[1] for each in after(begun)] == ["economy", "business"]
    ends = after(begun + '"economy"')
    assert ends[0] == "}}\n</tool_call>"
    assert ends[1:] == [', "stops": false}}\n</tool_call>', ', "passengers": [{"name": "']


def test_a_nested_value_is_predicted_by_its_schema():
    begun = '\n{"name": "find_flights", "arguments": {"passengers": [{"name": "Ann"'
    assert after(begun)[0] == ', "age": '
    assert after(begun + ', "age": 3}')[:2] == [
        '], "origin": "',
        ', {"name": "',
    ]


@pytest.mark.parametrize(
    "text",
    [
        '{"name": "find_flights", "arguments": {"origin": "SF',
        "Sorry, ",
        '{"name": }',
        "[1, 2",
        "{]",
    ],
)
def test_where_nothing_is_known_nothing_is_predicted(text):
    assert after(text) == []


def test_style_order_and_values_come_from_earlier_calls():
    compact = json.dumps(CALL, separators=(",", ":"))
    calls = learned(compact)
    assert after("", calls)[0] == (
        '{"name":"find_flights","arguments":{"cabin":"business","origin":"SFO"}}\n</tool_call>'
    )
    again = learned(compact, compact.replace("SFO", "JFK"))
    begun = '{"name":"find_flights","arguments":{"cabin":"economy","origin":'
    assert after(begun, again)[:2] == ['"JFK"}}\n</tool_call>', '"SFO"}}\n</tool_call>']
    assert after('{"name":"', learned(compact, '{"name":"list_all","arguments":{}}'))[0].startswith(
        'list_all"'
    )
    arguments_first = learned(json.dumps(dict(reversed(CALL.items()))))
    assert after("", arguments_first)[0].startswith('{"arguments": ')


NAMES = st.sampled_from(["a", "b", 'q"', "é", ""])
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3),
    max_leaves=8,
)
SCHEMAS = st.recursive(
    st.sampled_from([{}, {"type": "string"}, {"type": "boolean"}, {"enum": [1, "x"]}, None, 3]),
    lambda inner: (
        st.fixed_dictionaries({"type": st.just("array"), "items": inner})
        | st.fixed_dictionaries(
            {
                "type": st.just("object"),
                "properties": st.dictionaries(NAMES, inner, max_size=3),
                "required": st.lists(NAMES, max_size=2),
            }
        )
    ),
    max_leaves=6,
)


@given(SCHEMAS, st.dictionaries(NAMES, VALUES, max_size=3), st.data())
def test_any_call_is_read_in_any_pieces_and_any_schema_predicts_readable_text(
    schema, arguments, data
):
    calls = CallText([{"name": "f", "parameters": schema}])
    text = json.dumps({"name": "f", "arguments": arguments}, ensure_ascii=False)
    at = data.draw(st.integers(0, len(text)))
    reader = PartialJson().read(text[:at])
    for following in calls.after(reader):
        begun = text[:at] + following.removesuffix("\n</tool_call>")
        assert PartialJson().read(begun).state != "invalid"
    assert reader.read(text[at:]).state == "done"
    assert tool_of(reader) == "f"
    calls.learn(reader)
    assert calls.after(PartialJson())


@given(st.text(alphabet='{}[]":, \\ntf1a', max_size=40))
def test_any_text_is_read(text):
    calls = CallText(TOOLS)
    reader = PartialJson().read(text)
    assert all(isinstance(each, str) for each in calls.after(reader))


class Keys(Mapping):
    """Properties of one kind; counts the keys that are looked at."""

    def __init__(self, count, schema):
        self.count, self.schema, self.seen = count, schema, 0

    def __getitem__(self, key):
        self.seen += 1
        return self.schema

    def __iter__(self):
        for number in range(self.count):
            self.seen += 1
            yield f"k{number}"

    def __len__(self):
        return self.count


class Listed(list):
    """A list that fails the test if it is read to its end."""

    def __iter__(self):
        for number, each in enumerate(super().__iter__()):
            assert number < 5000, "all of it was read"
            yield each


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        ({"type": "boolean"}, ": false, "),
        ({"type": "object", "properties": {}}, ": {}, "),
        ({"enum": ["x"]}, ': "x", '),
        ({"type": "array"}, ": ["),
    ],
    ids=["boolean", "object", "enum", "array"],
)
def test_of_a_large_schema_only_as_much_is_read_as_is_predicted(schema, value):
    keys = Keys(100_000, schema)
    needed = Listed(f"k{number}" for number in range(100_000))
    parameters = {"type": "object", "properties": keys, "required": needed}
    calls = CallText([{"name": "f", "parameters": parameters}])
    assert keys.seen == 0
    begun = '\n{"name": "f", "arguments": {"k0"'
    text = after(begun, calls)[0]
    assert text.startswith(value)
    assert len(text) == (MAX_PREDICTED_CHARACTERS if value != ": [" else 3)
    found = after(begun + ": 7, ", calls)
    assert 8 <= len(found) <= MAX_CONTINUATIONS
    assert sum(map(len, found)) <= MAX_ALL_CHARACTERS
    assert keys.seen < 4000


def test_deep_and_wide_schemas_are_read_to_a_bound():
    itself = {"type": "object", "required": ["a"]}
    itself["properties"] = {"a": itself}
    calls = CallText([{"name": "f", "parameters": itself}])
    text = calls.after(PartialJson())[0]
    assert text.startswith('\n{"name": "f", "arguments": {"a": {"a": {')
    assert len(text) <= MAX_PREDICTED_CHARACTERS
    either = {"anyOf": Listed([3] * 10_000)}
    assert after("", CallText([{"name": "f", "parameters": either}]))
    tools = Listed({"name": f"f{number}"} for number in range(10_000))
    assert len(CallText(tools).tools) < 1000


def test_long_values_are_not_predicted():
    deep = []
    for _ in range(100_000):
        deep = [deep]
    for value in (Listed([1] * 10_000), "x" * 10_000, {"a": deep}, {1, 2}):
        schema = {"type": "object", "properties": {"a": {"enum": [value, "short"]}}}
        calls = CallText([{"name": "f", "parameters": schema}])
        found = after('\n{"name": "f", "arguments": {"a": ', calls)
        assert found == ['"short"}}\n</tool_call>']
    while deep:  # freeing it at once would recurse
        deep = deep.pop()


def test_long_values_are_read_at_once(monkeypatch):
    read, count = PartialJson._read, []
    monkeypatch.setattr(PartialJson, "_read", lambda *given: count.append(1) or read(*given))
    value = "x" * 10_000
    call = json.dumps({"name": "f", "arguments": {"a": value, "b": 1}}, indent=9_000)
    reader = PartialJson().read(call + value)
    assert reader.values[1:] == [(("arguments", "a"), f'"{value}"'), (("arguments", "b"), "1")]
    assert reader.space == value
    assert len(count) < 100
