"""Calls of tools in an answer's text, whatever pieces it comes in."""

from __future__ import annotations

import json
import random

import pytest

from ngramspec.server.tool_parsers import (
    Part,
    TagParser,
    TemplateParser,
    joined,
)

ONE = '<tool_call>\n{"name": "add", "arguments": {"a": 1, "b": [2]}}\n</tool_call>'
ADD = ("add", {"a": 1, "b": [2]})
NOTHING = "<tool_call>{}</tool_call>"
# An answer, its content, and its calls.
ANSWERS = [
    ("", "", []),
    ("only text < and <tool, \n", "only text < and <tool, \n", []),
    (ONE, "", [ADD]),
    (f"\n\n{ONE}\n{ONE}\n", "", [ADD, ADD]),
    (f"Let me see.\n{ONE}", "Let me see.", [ADD]),
    (f"before {ONE} between\n{ONE} behind \n", "beforebetweenbehind \n", [ADD, ADD]),
    (
        '<tool_call>[{"name": "f"}, {"name": "g", "parameters": {"x": 0}}]</tool_call>',
        "",
        [("f", {}), ("g", {"x": 0})],
    ),
    ('<tool_call>{"name": "f", "arguments": "{\\"x\\": 1}"}</tool_call>', "", [("f", {"x": 1})]),
    (
        '<tool_call>{"name": "f", "arguments": {"x": "</tool_call>é"}}</tool_call>',
        "",
        [("f", {"x": "</tool_call>é"})],
    ),
    # What cannot be read stays text, and what is behind it is read.
    (ONE[:-12], ONE[:-12], []),
    (ONE[:30], ONE[:30], []),
    (f"{ONE} {ONE[:-5]}", ONE[:-5], [ADD]),
    (f"x {NOTHING} y", f"x {NOTHING} y", []),
    (f"x {NOTHING} y\n{ONE}", f"x {NOTHING} y", [ADD]),
    (f"<tool_call>{ONE}", "<tool_call>", [ADD]),
    ('<tool_call>{"name": "f", "arguments": "no object"}</tool_call>', None, []),
    ('<tool_call>{"name": "f", "arguments": {"x": NaN}}</tool_call>', None, []),
    ('<tool_call>{"name": "f", "arguments": [1]}</tool_call>', None, []),
    ('<tool_call>{"name": 3, "arguments": {}}</tool_call>', None, []),
    ('<tool_call>{"name": "f"} and more</tool_call>', None, []),
    ("<tool_call>[]</tool_call>", None, []),
    # What a response cannot hold as JSON: half a character, and a number that is infinite.
    ('<tool_call>{"name": "f", "arguments": {"x": "\\ud800"}}</tool_call>', None, []),
    ('<tool_call>{"name": "f", "arguments": {"x": 1e999}}</tool_call>', None, []),
    ("<tool_call>" + "[" * 200_000 + "</tool_call>", None, []),
    # No calls are looked for in thoughts.
    (f"<think>{ONE}</think>\n{ONE}", f"<think>{ONE}</think>", [ADD]),
    (f"<think>{ONE}", f"<think>{ONE}", []),
    ("a <think", "a <think", []),
]


def read(parser, text, size):
    """Content and calls of a text that comes in pieces of about ``size`` characters."""
    rng, parts, at = random.Random(size), [], 0
    while at < len(text):
        end = at + (size if size < 3 else rng.randint(1, size))
        parts += parser.add(text[at:end])
        at = end
    parts += parser.add("", last=True)
    calls = [(part.call.name, json.loads(part.call.arguments)) for part in parts if part.call]
    return "".join(part.content for part in parts), calls


@pytest.mark.parametrize("size", [1, 2, 7, 50, 10**6])
@pytest.mark.parametrize(("text", "content", "calls"), ANSWERS, ids=lambda each: str(each)[:40])
def test_calls_are_read_whatever_the_pieces(text, content, calls, size):
    if len(text) > 10_000:
        size = max(size, 100_000)
    assert read(TagParser(), text, size) == (text if content is None else content, calls)


def test_text_is_shown_as_soon_as_it_can_be_no_call():
    parser = TagParser()
    assert parser.add("Hello ") == [Part("Hello")]
    assert parser.add("<too") == []
    assert parser.add("ls>") == [Part(" <tools>")]
    assert parser.add(f"\n{ONE}"[:-1]) == []
    assert [part.call.name for part in parser.add(">")] == ["add"]


BROKEN = [
    ('{"name": "f", "arguments": {"x": 1', "</tool_call>"),  # brackets are open
    ('{"name": "f", "arguments": {"x": 1}}', "}"),  # one too many
    ('{"name": "f", "arguments": {"x": ', "NaN"),
    ('{"name": "f", "arguments": {"x": "y', "\n"),  # no line ends in a string
    ('{"name": "f",', "}"),
    ("", "<function=f>"),
    ("\n", "add(1)"),
    ("{", "'name'"),
    ('{"name": 3', "}"),  # JSON, but no call
    ('{"arguments": {}', "}"),
    ('[{"name": "f"}, 1', "]"),
    ("[", "]"),
    ('{"name": "f"}', " and more"),
    ('{"name": "f"}\n</tool_', "_call>"),
]


@pytest.mark.parametrize(("begun", "clear"), BROKEN)
def test_a_broken_call_is_shown_as_soon_as_it_is_clear_that_it_is_none(begun, clear):
    parser = TagParser()
    assert parser.add("<tool_call>") == []
    for letter in begun:
        assert parser.add(letter) == []
    shown, at = "", 0
    while not shown:
        shown, at = "".join(part.content for part in parser.add(clear[at])), at + 1
    assert f"<tool_call>{begun}{clear[:at]}".startswith(shown)
    shown += "".join(part.content for part in parser.add(f"{clear[at:]} text."))
    assert shown == f"<tool_call>{begun}{clear} text."
    assert [part.call.name for part in parser.add(ONE)] == ["add"]


def test_a_prompt_may_end_in_a_thought():
    assert read(TagParser(thinking=True), f"{ONE}</think>{ONE}", 7) == (f"{ONE}</think>", [ADD])


TEMPLATE = {
    "defaults": {"role": "assistant"},
    "start_anchor": "assistant:",
    "fields": {
        "reasoning_content": {"open": "<think>", "close": "</think>", "content": "text"},
        "tool_calls": {
            "open_pattern": r"\s*<call:(?P<name>\w+)>",
            "close": "</call>",
            "repeats": True,
            "content": "json",
            "transform": {
                "type": "function",
                "function": {"name": "{name}", "arguments": "{content}"},
            },
        },
        "content": {"content": "text"},
    },
}
CALL = '<call:add>{"a": 1, "b": [2]}</call>'


def template_parser(prefix="user:x;assistant:"):
    parsing = pytest.importorskip("transformers.utils.chat_parsing")
    return TemplateParser(parsing.ResponseParser(TEMPLATE, prefix=prefix), ["</call>"])


@pytest.mark.parametrize("size", [1, 3, 9, 1000])
@pytest.mark.parametrize(
    ("text", "content", "calls"),
    [
        ("just text", "just text", []),
        (f"Let me see.\n{CALL}", "Let me see.", [ADD]),
        (f"{CALL}\n{CALL}", "", [ADD, ADD]),
        (f"text {CALL[:-3]}", f"text {CALL[:-3]}", []),
        (f"text {CALL[:-7]}", f"text {CALL[:-7]}", []),
        (f"{CALL}{CALL[:-9]}", CALL[:-9], [ADD]),
        ("text <call:add>no JSON</call> more", "text <call:add>no JSON</call> more", []),
        ("text <call:add>[1]</call> more", "text <call:add>[1]</call> more", []),
        (f"<call:add>no JSON</call>{CALL}", f"<call:add>no JSON</call>{CALL}", []),
    ],
)
def test_a_response_template_is_read_by_transformers(text, content, calls, size):
    assert read(template_parser(), text, size) == (content, calls)


def test_the_reasoning_of_a_response_template_is_apart():
    parts = template_parser().add(f"<think>hm, so</think>Yes.{CALL}", last=True)
    assert joined(parts)[:2] == [Part(reasoning="hm, so"), Part("Yes.")]
    begun = template_parser("user:x;assistant:<think>").add("so</think>Yes.", last=True)
    assert begun == [Part(reasoning="so"), Part("Yes.")]
