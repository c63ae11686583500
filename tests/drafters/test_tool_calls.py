"""Tool calls that are predicted by the tools' schemas, in a session's drafts."""

from __future__ import annotations

import copy
import json
import logging

import numpy as np
import pytest
import torch
from conftest import tiny_llama
from doubles import Characters, DraftModelDouble
from hypothesis import given
from hypothesis import strategies as st
from native_strategies import int32
from tiny_tokenizers import over_bytes

import ngramspec
from ngramspec import SharedStore, ToolCalls, build_drafter
from ngramspec.drafters import HeadedDrafter
from ngramspec.drafters.partial_json import PartialJson
from ngramspec.drafters.tool_calls import (
    CONTEXT_TOKENS,
    MAX_LISTED_VALUES,
    MAX_PREDICTED_CHARACTERS,
    MAX_READ_TOKENS,
    MAX_SCHEMA_CHARACTERS,
    CallText,
    tool_of,
)
from ngramspec.measure.forwards import forced_model


def object_of(*required, **properties):
    return {"type": "object", "properties": properties, "required": list(required)}


def tool(name, *required, **properties):
    parameters = object_of(*required, **properties)
    return {"type": "function", "function": {"name": name, "parameters": parameters}}


TOOLS = [
    tool(name, "city", "unit", city={"type": "string"}, unit={"enum": ["C", "F"]})
    for name in ("get_weather", "get_time")
]
CALL = '<tool_call>\n{"name": "get_time", "arguments": {"city": "Bonn", "unit": "F"}}\n</tool_call>'


@pytest.fixture(params=[False, True], ids=["text", "special token"])
def tokenizer(request):
    return Characters(request.param)


def test_only_the_first_values_of_a_long_list_are_predicted():
    many = [f"v{n}" for n in range(3000)]
    for listed in (many, many[:MAX_LISTED_VALUES]):
        text = CallText([tool("f", "a", a={"enum": listed})])
        call = PartialJson().read('{"name": "f", "arguments": {"a": "')
        assert text._known(call) == [f'"v{n}"' for n in range(MAX_LISTED_VALUES)]


def drafted(session, gamma=200):
    draft = session.propose(gamma)
    return "".join(map(chr, draft.tokens.tolist())), draft.source.tolist()


def predicted(predictor, count=64):
    return "".join(map(chr, predictor.predict(count)[0].tolist()))


def test_a_call_is_predicted_after_its_opening(tokenizer):
    predictor = ToolCalls(TOOLS, tokenizer).predictor(int32(tokenizer.encode("What time is it?")))
    assert len(predictor.predict(9)[0]) == 0
    right = 0
    ids = tokenizer.encode("Sure.\n" + CALL + " Done.")
    opening = len(tokenizer.encode("Sure.\n<tool_call>"))
    closing = len(tokenizer.encode("Sure.\n" + CALL))
    for at, token in enumerate(ids):
        path, log_probs = predictor.predict(50)
        assert len(path) == len(log_probs)
        assert bool(len(path)) <= (opening <= at < closing)
        right += int(token in path[:1])
        predictor.extend(int32([token]))
    assert right > 0.85 * (closing - opening)
    assert len(predictor.predict(3)[0]) == 0
    predictor.extend(int32(tokenizer.encode('<tool_call>\n{"name": "get_')))
    assert predicted(predictor, 7) == 'time", '  # the tool that was used comes first


@pytest.mark.parametrize("spec", ["auto", "auto+mtp"])
def test_a_session_drafts_the_call_and_names_its_source(tokenizer, spec):
    drafter = build_drafter(spec).with_tools(ToolCalls(TOOLS, tokenizer))
    session = drafter.start(int32(tokenizer.encode("Hello")))
    session.extend(int32(tokenizer.encode("<tool_call>")))
    text, source = drafted(session)
    assert '\n{"name": "get_weather", "arguments": {"city": "'.startswith(text)
    assert len(text) > 5
    assert {drafter.source_names[each] for each in source} == {"tools"}
    session.extend(int32(tokenizer.encode('\n{"name": "get_')))
    draft = session.propose(60, np.linspace(1, 1.2, 62, dtype=np.float32), tree=True)
    assert chr(draft.tokens[0]) == "w"


class Counting(DraftModelDouble):
    """A draft model that is sure of the next higher token."""

    def forward(self, tokens, last, most):
        return tokens[-last:, None] + np.int32(1), np.full((last, 1), -0.01, np.float32)


def test_a_head_and_predicted_calls_have_different_names():
    drafter = build_drafter("auto+mtp")
    assert "tools" not in drafter.source_names
    drafter = drafter.with_tools(ToolCalls(TOOLS, Characters()))
    session = drafter.start(int32([40]))
    session.begin_models(lambda _: Counting(0.01))
    text, source = drafted(session, 4)
    assert text == ")*+,"
    assert [drafter.source_names[each] for each in source] == ["mtp"] * 4
    session.extend(int32(Characters().encode("<tool_call>")))
    _, source = drafted(session)
    assert {drafter.source_names[each] for each in source} == {"tools"}


@pytest.mark.parametrize("spec", ["auto", "store", "auto+mtp"])
def test_calls_with_other_tools_or_stores_share_what_was_learned(spec):
    drafter = build_drafter(spec)
    tools = ToolCalls(TOOLS, Characters())
    with_tools = drafter.with_tools(tools)
    with_both = with_tools.with_stores([SharedStore(1 << 20)["a"]])
    if isinstance(drafter, HeadedDrafter):
        assert drafter.worth is with_tools.worth is with_both.worth
    by_request = with_tools.with_calibration(by_request=True)
    assert tables_of(with_both).tools is tables_of(by_request).tools is tools
    alone = build_drafter("copy", policy="priority").with_tools(tools)
    assert alone.source_names == ("copy",)
    shared = tables_of(drafter).calibrations
    assert shared is tables_of(with_tools).calibrations is tables_of(with_both).calibrations
    assert shared is tables_of(drafter).with_attributes(headed=True).calibrations
    assert shared is not tables_of(copy.deepcopy(with_tools)).calibrations


def tables_of(drafter):
    return drafter.tables if isinstance(drafter, HeadedDrafter) else drafter


def test_a_tokenizer_that_fails_stops_predictions_but_not_drafts(caplog):
    class Failing(Characters):
        def encode(self, text, add_special_tokens=True):
            raise RuntimeError("broken")

    drafter = build_drafter("auto").with_tools(ToolCalls(TOOLS, Failing()))
    session = drafter.start(int32([1, 2, 3] * 5))
    with caplog.at_level(logging.WARNING):
        session.extend(int32(Characters().encode("<tool_call>")))
        assert len(session.propose(4)) > 0
        session.extend(int32([1]))
        session.propose(4)
    assert caplog.text.count("no longer predicted after an error: RuntimeError\n") == 1


def test_text_that_is_no_call_ends_the_prediction(tokenizer):
    predictor = ToolCalls(TOOLS, tokenizer).predictor(int32([]))
    predictor.extend(int32(tokenizer.encode("<tool_call>Hello")))
    assert predicted(predictor) == ""
    predictor.extend(int32(tokenizer.encode("é <tool_call>\n")))
    assert predicted(predictor, 1) == "{"


def test_generate_takes_tools_and_its_text_is_the_baseline_s(tiny):
    """The tiny model's vocabulary has no letters, so its calls are of digits: text is text."""
    prompt = torch.tensor([[60, 1, 2, 3, 60, 1, 2, 3]])
    settings = {"max_new_tokens": 24, "do_sample": False}
    plain = tiny.generate(prompt, **settings).tolist()
    calls = ToolCalls(TOOLS, Characters())
    config = copy.deepcopy(tiny.generation_config)
    config.ngramspec = {"tools": calls}
    for extra in ({"tools": calls}, {"generation_config": config}):
        assert ngramspec.generate(tiny, prompt, **settings, **extra).tolist() == plain
    for tools in (TOOLS, tuple(TOOLS)):
        listed = {"tools": tools, "tokenizer": Characters()}
        assert ngramspec.generate(tiny, prompt, **settings, **listed).tolist() == plain
    with pytest.raises(TypeError, match="tools must be a list of tools, got int"):
        ngramspec.generate(tiny, prompt, **settings, tools=5, tokenizer=Characters())
    with pytest.raises(TypeError, match=r"must be a ngramspec\.ToolCalls, got list; make one with"):
        ngramspec.generate(tiny, prompt, **settings, tools=TOOLS)
    with pytest.raises(TypeError, match="tools must be a list of tools, got dict"):
        ToolCalls({}, Characters())


def test_a_call_of_generate_drafts_its_tools():
    """A model that is forced to write a call."""
    text = Characters().encode(CALL)
    speculator = ngramspec.Speculator()
    calls = ToolCalls(TOOLS, Characters())
    model = tiny_llama(vocab_size=128)
    with forced_model(model, 128) as set_text:
        set_text([32, *text])
        options = {"tools": calls, "do_sample": False, "max_new_tokens": len(text)}
        out = ngramspec.generate(model, torch.tensor([[32]]), speculator=speculator, **options)
    assert out[0, 1:].tolist() == text
    assert speculator.stats.sources["tools"].accepted > len(text) / 3


class Measured(Characters):
    """Notes the lengths of what it encodes and decodes."""

    def __init__(self):
        super().__init__()
        self.encoded, self.decoded = [], []

    def encode(self, text, add_special_tokens=True):
        self.encoded.append(len(text))
        return super().encode(text)

    def decode(self, ids, skip_special_tokens=True):
        self.decoded.append(len(ids))
        return super().decode(ids)


def test_of_a_long_prompt_the_last_calls_are_read(tokenizer):
    compact = json.dumps(json.loads(CALL[11:-12]), separators=(",", ":"))
    measured = Measured()
    prompt = "x" * 100_000 + f"<tool_call>{compact}</tool_call>"
    predictor = ToolCalls(TOOLS, measured).predictor(int32(tokenizer.encode(prompt)))
    assert max(measured.decoded) == MAX_READ_TOKENS
    predictor.extend(int32(Characters().encode("<tool_call>")))
    assert predicted(predictor) == compact.partition("Bonn")[0]


def test_of_a_long_call_the_end_is_encoded_with_a_continuation():
    measured = Measured()
    predictor = ToolCalls(TOOLS, measured).predictor(int32([1]))
    begun = '<tool_call>\n{"name": "get_time", "arguments": {"city": "'
    predictor.extend(int32(Characters().encode(begun + "x" * 2000 + '"')))
    assert predicted(predictor) == ', "unit": "C"}}\n</tool_call>'
    assert 0 < max(measured.encoded) <= CONTEXT_TOKENS + MAX_PREDICTED_CHARACTERS


def test_a_step_reads_an_open_call_once_and_unknown_text_is_not_encoded():
    measured = Measured()
    predictor = ToolCalls(TOOLS, measured).predictor(int32([1]))
    predictor.extend(int32(Characters().encode(CALL.partition("Bonn")[0])))
    predicted(predictor)
    measured.decoded, measured.encoded = [], []
    predictor.extend(int32([120] * 300))
    assert predicted(predictor) == ""
    assert sum(measured.decoded) < 400
    assert measured.encoded == []
    rest = CALL.partition("Bonn")[2] + "text <tool_call>"
    predictor.extend(int32(Characters().encode(rest)))  # the end, and the next one's opening
    assert predicted(predictor).startswith('\n{"name": "get_time"')
    predictor.extend(int32(Characters().encode("{no call <tool_call>")))  # likewise
    assert predicted(predictor).startswith('\n{"name": "get_time"')


@pytest.mark.parametrize("make", [Characters, over_bytes])
def test_a_long_call_is_decoded_in_linear_time(make, monkeypatch):
    """Token by token, with parts of characters and with tokens that can end an opening."""
    tokenizer, decoded = make(), []
    decode = tokenizer.decode

    def counted(ids, **settings):
        decoded.append(len(ids))
        return decode(ids, **settings)

    monkeypatch.setattr(tokenizer, "decode", counted)
    predictor = ToolCalls(TOOLS, tokenizer).predictor(int32([1]))
    begun = '<tool_call>\n{"name": "get_time", "arguments": {"city": "'
    text = begun + "Bôn>n" * 300 + "\ufffd" * 300 + '", "unit": "F"}}\n</tool_call>é' + begun
    ids = tokenizer.encode(text)
    for at, token in enumerate(ids):
        predictor.extend(int32([token]))
        if decode(ids[: at + 1]).endswith('\ufffd"'):
            assert decode(predictor.predict(12)[0].tolist()) == ', "unit": "C'
    assert sum(decoded) < 60 * len(ids)
    predictor.extend(int32(tokenizer.encode('x"')))
    assert decode(predictor.predict(12)[0].tolist()) == ', "unit": "C'


PASSENGER = object_of("name", "age", name={"type": "string"}, age={"type": "integer"})
FLIGHTS = [
    tool(
        "find_flights",
        *("origin", "cabin"),
        origin={"type": "string"},
        cabin={"type": "string", "enum": ["economy", "business"]},
        stops={"anyOf": [{"type": "null"}, {"type": "boolean"}]},
        passengers={"type": "array", "items": PASSENGER},
    ),
    {"name": "list_all", "parameters": {"type": "object", "properties": {}}},
    {"type": "function", "function": {"name": 7}},
    "not a tool",
]
FLIGHT = {"name": "find_flights", "arguments": {"cabin": "business", "origin": "SFO"}}


def after(text, calls=None):
    calls = CallText(FLIGHTS) if calls is None else calls
    return calls.after(PartialJson().read(text))


def learned(*texts):
    calls = CallText(FLIGHTS)
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
        ('{"name": "find_flights", "arguments": {"origin": "SF', ""),  # nothing is known there
        *((text, "") for text in ("Sorry, ", '{"name": }', "[1, 2", "{]")),
    ],
)
def test_what_follows(text, first):
    found = after(text)
    assert found.startswith(first)
    assert bool(found) == bool(first)


def test_what_is_required_comes_first_and_then_the_call_ends():
    begun = '\n{"name": "find_flights", "arguments": {"origin": "S\\"O"'
    assert after(begun) == ', "cabin": "economy"}}\n</tool_call>'
    assert after(begun + ', "st') == 'ops": false, "cabin": "economy"}}\n</tool_call>'
    nested = '\n{"name": "find_flights", "arguments": {"passengers": [{"name": "Ann"'
    assert after(nested) == ', "age": '
    assert after(nested + ', "age": 3}') == '], "origin": "'


def test_style_and_the_latest_tool_come_from_earlier_calls():
    compact = '{"name":"list_all","arguments":{}}'
    assert after("", learned(compact)) == compact + "\n</tool_call>"
    arguments_first = learned(json.dumps(dict(reversed(FLIGHT.items()))))
    assert after('{"arguments": {}', arguments_first).startswith(', "name": "find_flights"')
    assert after('{"name": "list_all", "parameters": {}') == "}\n</tool_call>"


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
def test_any_call_is_read_in_pieces_and_any_schema_predicts_text(schema, arguments, data):
    calls = CallText([{"name": "f", "parameters": schema}])
    text = json.dumps({"name": "f", "arguments": arguments}, ensure_ascii=False)
    at = data.draw(st.integers(0, len(text)))
    reader = PartialJson().read(text[:at])
    before = copy.deepcopy(reader)
    begun = text[:at] + calls.after(reader).removesuffix("\n</tool_call>")
    assert reader == before
    assert PartialJson().read(begun).state != "invalid"
    assert reader.read(text[at:]).state == "done"
    assert tool_of(reader) == "f"
    calls.learn(reader)
    assert calls.after(PartialJson())


@given(st.text(alphabet='{}[]":, \\ntf1a', max_size=40))
def test_any_text_is_read(text):
    assert isinstance(after(text), str)


def test_tools_whose_schemas_are_long_or_no_json_are_left_out():
    deep, itself = [], {}
    for _ in range(100_000):
        deep = [deep]
    itself["a"] = itself
    for value in ("x" * MAX_SCHEMA_CHARACTERS, {"a": deep}, {1, 2}, itself, float("nan")):
        schema = {"type": "object", "properties": {"a": {"enum": [value, "short"]}}}
        tools = [{"name": "f", "parameters": schema}, {"name": "g", "parameters": [value]}]
        assert list(CallText([*tools, {"name": "h"}]).tools) == ["h"]
    while deep:  # freeing it at once would recurse
        deep = deep.pop()
    assert len(CallText([{"name": f"f{number}"} for number in range(10_000)]).tools) < 1000


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        ({"type": "boolean"}, ": false, "),
        ({"type": "object", "properties": {}}, ": {}, "),
        ({"enum": [[1], "x"]}, ': "x", '),
        ({"type": "array"}, ": ["),
    ],
    ids=["boolean", "object", "enum", "array"],
)
def test_predictions_are_bounded(schema, value):
    keys = {f"k{number}": schema for number in range(400)}
    parameters = {"type": "object", "properties": keys, "required": list(keys)}
    text = after(
        '\n{"name": "f", "arguments": {"k0"', CallText([{"name": "f", "parameters": parameters}])
    )
    assert text.startswith(value)
    assert len(text) == (MAX_PREDICTED_CHARACTERS if value != ": [" else 3)


def test_long_values_are_read_at_once(monkeypatch):
    read, count = PartialJson._read, []
    monkeypatch.setattr(PartialJson, "_read", lambda *given: count.append(1) or read(*given))
    value = "x" * 10_000
    call = json.dumps({"name": "f", "arguments": {"a": value, "b": 1}}, indent=9_000)
    reader = PartialJson().read(call + value)
    assert reader.values["arguments", "a"] == f'"{value}"'
    assert reader.values["arguments", "b"] == "1"
    assert reader.space == value
    assert len(count) < 100
