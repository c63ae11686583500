"""Tool calls that are predicted by the tools' schemas, in a session's drafts."""

from __future__ import annotations

import copy
import json
import logging
import math

import numpy as np
import pytest
import torch
from conftest import tiny_llama

import ngramspec
from ngramspec import SharedStore, ToolCalls, build_drafter
from ngramspec.drafters import HeadedDrafter
from ngramspec.drafters.tool_calls import (
    CONTEXT_TOKENS,
    MAX_PREDICTED_CHARACTERS,
    MAX_READ_TOKENS,
)

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": name,
            "parameters": {
                "type": "object",
                "properties": {"city": {"type": "string"}, "unit": {"enum": ["C", "F"]}},
                "required": ["city", "unit"],
            },
        },
    }
    for name in ("get_weather", "get_time")
]
CALL = '<tool_call>\n{"name": "get_time", "arguments": {"city": "Bonn", "unit": "F"}}\n</tool_call>'


class Characters:
    """A tokenizer with a token for each character; "<tool_call>" can be one, too."""

    def __init__(self, special=False):
        self.special = special

    def get_vocab(self):
        pieces = {chr(i): i for i in range(128)} | {"é": 233}
        return pieces | ({"<tool_call>": 300} if self.special else {})

    def encode(self, text, add_special_tokens=True):
        ids = [ord(each) for each in text.replace("<tool_call>", "\u012c")]
        if self.special:
            return ids
        return [each for one in ids for each in ([one] if one != 300 else map(ord, "<tool_call>"))]

    def decode(self, ids, skip_special_tokens=True):
        return "".join("<tool_call>" if each == 300 else chr(each) for each in ids)


def int32(ids):
    return np.array(ids, np.int32)


@pytest.fixture(params=[False, True], ids=["text", "special token"])
def tokenizer(request):
    return Characters(request.param)


def drafted(session, gamma=200):
    """The draft as text, and the share of it that each source gave."""
    draft = session.propose(gamma)
    return "".join(map(chr, draft.tokens.tolist())), draft.source.tolist()


def test_a_call_is_predicted_after_its_opening(tokenizer):
    predictor = ToolCalls(TOOLS, tokenizer).predictor(int32(tokenizer.encode("What time is it?")))
    assert predictor.rows(9) == []
    right = 0
    ids = tokenizer.encode("Sure.\n" + CALL + " Done.")
    opening = len(tokenizer.encode("Sure.\n<tool_call>"))
    closing = len(tokenizer.encode("Sure.\n" + CALL))
    for at, token in enumerate(ids):
        rows = predictor.rows(50)
        assert bool(rows) <= (opening <= at < closing)
        assert len({len(each) for row in rows for each in row}) <= len(rows)
        right += bool(rows) and int(rows[0][0][0]) == token
        predictor.extend(int32([token]))
    assert right > 0.85 * (closing - opening)
    assert len(predictor.rows(3)) == 0
    predictor.extend(int32(tokenizer.encode('<tool_call>\n{"name": "get_')))
    first, second = predictor.rows(1)[0][0].tolist()  # the tool that was used comes first
    assert (chr(first), chr(second)) == ("t", "w")
    assert len(predictor.rows(7)) == 7


def test_calls_of_the_prompt_show_style_and_values(tokenizer):
    compact = json.dumps(json.loads(CALL[11:-12]), separators=(",", ":"))
    prompt = tokenizer.encode(f"<tool_call>{compact}</tool_call> <tool_call>broken")
    predictor = ToolCalls(TOOLS, tokenizer).predictor(int32(prompt))
    predictor.extend(int32(tokenizer.encode("<tool_call>")))
    path = "".join(chr(int(ids[0])) for ids, _ in predictor.rows(64))
    assert path == (compact + "</tool_call>")[:64]


@pytest.mark.parametrize("spec", ["auto", "auto+mtp"])
def test_a_session_drafts_the_call_and_names_its_source(tokenizer, spec):
    drafter = build_drafter(spec).with_tools(ToolCalls(TOOLS, tokenizer))
    session = drafter.start(int32(tokenizer.encode("Hello")))
    session.extend(int32(tokenizer.encode("<tool_call>")))
    text, source = drafted(session)
    assert '\n{"name": "get_weather", "arguments": {"city": "'.startswith(text)
    assert len(text) > 8
    assert {drafter.source_names[each] for each in source} == {"tools"}
    session.extend(int32(tokenizer.encode('\n{"name": "get_')))
    draft = session.propose(60, np.linspace(1, 1.2, 62, dtype=np.float32), tree=True)
    first = [chr(token) for token in draft.tokens[draft.parents < 0]]
    assert first[:2] == ["w", "t"]


class Counting:
    """A draft model that is sure of the next higher token."""

    room = ahead = vocab = None
    ready = True

    def reading_cost(self, tokens):
        return 0.0

    def cost(self, last):
        return 0.01

    def commit(self, length):
        return None

    def truncate(self, length):
        return None

    def forward(self, tokens, last, most):
        return tokens[-last:, None] + np.int32(1), np.full((last, 1), -0.01, np.float32)


def test_a_head_and_predicted_calls_have_different_names():
    drafter = build_drafter("auto+mtp")
    assert "tools" not in drafter.source_names
    drafter = drafter.with_tools(ToolCalls(TOOLS, Characters()))
    session = drafter.start(int32([40]))
    session.begin_models(lambda _: Counting())
    text, source = drafted(session, 4)
    assert text == ")*+,"
    assert [drafter.source_names[each] for each in source] == ["mtp"] * 4
    session.extend(int32(Characters().encode("<tool_call>")))
    _, source = drafted(session)
    assert {drafter.source_names[each] for each in source} == {"tools"}


def test_stores_and_copies_keep_the_tools():
    drafter = build_drafter("auto").with_tools(ToolCalls(TOOLS, Characters()))
    assert drafter.with_stores([]).tools is drafter.tools
    assert drafter.with_calibration(by_request=True).tools is drafter.tools
    assert build_drafter("copy", policy="priority").with_tools(drafter.tools).source_names == (
        "copy",
    )


@pytest.mark.parametrize("spec", ["auto", "store", "auto+mtp"])
def test_calls_with_other_tools_or_stores_share_what_was_learned(spec):
    drafter = build_drafter(spec)
    tools = ToolCalls(TOOLS, Characters())
    with_tools = drafter.with_tools(tools)
    with_both = with_tools.with_stores([SharedStore(1 << 20)["a"]])
    if isinstance(drafter, HeadedDrafter):
        assert drafter.worth is with_tools.worth is with_both.worth
        drafter, with_tools, with_both = drafter.tables, with_tools.tables, with_both.tables
    shared = drafter.calibration
    assert shared is with_tools.calibration is with_both.calibration
    assert shared is drafter.with_attributes(headed=True).calibration
    assert shared is not copy.deepcopy(with_tools).calibration


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
    assert predictor.rows(5) == []
    predictor.extend(int32(tokenizer.encode("é <tool_call>\n")))
    assert chr(int(predictor.rows(5)[0][0][0])) == "{"


def test_generate_takes_tools_and_its_text_is_the_baseline_s(tiny):
    """The tiny model's vocabulary has no letters, so its calls are of digits: text is text."""
    prompt = torch.tensor([[60, 1, 2, 3, 60, 1, 2, 3]])
    settings = {"max_new_tokens": 24, "do_sample": False}
    plain = tiny.generate(prompt, **settings).tolist()
    calls = ToolCalls(TOOLS, Characters())
    config = copy.deepcopy(tiny.generation_config)
    config.ngramspec = {"tools": calls}
    for given in ({"tools": calls}, {"generation_config": config}):
        assert ngramspec.generate(tiny, prompt, **settings, **given).tolist() == plain
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
    """A model that is forced to write a call, from an oracle that follows it."""
    text = Characters().encode(CALL)
    speculator = ngramspec.Speculator()
    calls = ToolCalls(TOOLS, Characters())
    model = tiny_llama(vocab_size=128)
    following = {"logits_processor": [Forcing(text, prompt=1)], "max_new_tokens": len(text)}
    out = ngramspec.generate(
        model, torch.tensor([[32]]), speculator=speculator, tools=calls, **following
    )
    assert out[0, 1:].tolist() == text
    assert speculator.stats.sources["tools"].accepted > len(text) / 3


class Forcing:
    """A logits processor that forces a text after a prompt."""

    def __init__(self, text, prompt):
        self.text, self.prompt = text, prompt

    def __call__(self, input_ids, scores):
        forced = torch.full_like(scores, -math.inf)
        forced[:, self.text[(input_ids.shape[1] - self.prompt) % len(self.text)]] = 0
        return forced


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
    path = "".join(chr(int(ids[0])) for ids, _ in predictor.rows(64))
    assert path == (compact + "</tool_call>")[:64]


def test_of_a_long_call_the_end_is_encoded_with_a_continuation():
    measured = Measured()
    predictor = ToolCalls(TOOLS, measured).predictor(int32([1]))
    begun = '<tool_call>\n{"name": "get_time", "arguments": {"city": "'
    predictor.extend(int32(Characters().encode(begun + "x" * 2000 + '"')))
    path = "".join(chr(int(ids[0])) for ids, _ in predictor.rows(64))
    assert path == ', "unit": "C"}}\n</tool_call>'
    assert 0 < max(measured.encoded) <= CONTEXT_TOKENS + MAX_PREDICTED_CHARACTERS
