"""Parses the growing text of an answer into content, reasoning and tool calls.

A call is reported once it is complete. A call that is cut off or invalid remains content.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from pydantic_core import from_json

from ngramspec.drafters.partial_json import PartialJson

OPEN, CLOSE = "<tool_call>", "</tool_call>"
THINK, THOUGHT = "<think>", "</think>"
MAX_DEPTH = 200  # of nested values, as in ``from_json``
REASONING_FIELDS = ("reasoning_content", "thinking", "reasoning")  # in response templates


@dataclass(frozen=True, slots=True)
class Call:
    """A tool call: the function's name, and its arguments as the text of a JSON object."""

    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class Part:
    """A part of an answer: content, reasoning or a call."""

    content: str = ""
    reasoning: str = ""
    call: Call | None = None


class Parser(Protocol):
    """Parses one answer."""

    def add(self, text: str, *, last: bool = False) -> list[Part]:
        """Add text, and return the parts that are decided; nothing is held back if ``last``."""
        ...


class PlainParser:
    """All text is content."""

    def add(self, text: str, *, last: bool = False) -> list[Part]:
        """The text as content."""
        return [Part(text)] if text else []


class TagParser:
    """Parses ``<tool_call>{"name": …, "arguments": {…}}</tool_call>`` of Hermes, Qwen2.5 and Qwen3.

    A list of such objects is several calls. Whitespace around a call is dropped. Text that can no
    longer become a call is returned at once. Text between ``<think>``, with which the prompt may
    end, and ``</think>`` is content and is not searched for calls.
    """

    def __init__(self, thinking: bool = False) -> None:
        self._thinking = thinking
        self._held = ""  # text that is not decided yet
        self._json: PartialJson | None = None  # parser of the call that ``_held`` begins with
        self._read = 0  # characters of ``_held`` that ``_json`` has read
        self._after_call = False

    def add(self, text: str, *, last: bool = False) -> list[Part]:
        """See Parser."""
        self._held += text
        parts: list[Part] = []
        while self._held and (found := self._next(last)) is not None:
            parts += found
        return parts

    def _next(self, last: bool) -> list[Part] | None:
        """The next parts of the held text; None: they are not decided."""
        if self._thinking:
            return self._thought(last)
        if self._after_call:
            self._held = self._held.lstrip()
        if self._held.lstrip().startswith(OPEN):
            return self._call(last)
        return self._text(last)

    def _thought(self, last: bool) -> list[Part] | None:
        at = self._held.find(THOUGHT)
        self._thinking = at < 0
        if at >= 0:
            return self._content(at + len(THOUGHT))
        return self._content(len(self._held) - (0 if last else begun(self._held, THOUGHT)))

    def _text(self, last: bool) -> list[Part] | None:
        """Text up to a tag; whitespace that may precede a call is held back."""
        places = [self._held.find(tag) for tag in (OPEN, THINK)]
        call, think = (len(self._held) if at < 0 else at for at in places)
        if think < call:
            self._thinking = True
            return self._content(think + len(THINK))
        if last and call == len(self._held):
            return self._content(call)
        if call == len(self._held):
            call -= max(begun(self._held, OPEN), begun(self._held, THINK))
        return self._content(len(self._held[:call].rstrip()))

    def _call(self, last: bool) -> list[Part] | None:
        """The calls of the tag at the start of the held text, or the tag as content."""
        start = self._held.index(OPEN) + len(OPEN)
        if self._json is None:
            self._json, self._read = PartialJson(MAX_DEPTH), start
        self._json.read(self._held[self._read :])
        self._read = len(self._held)
        if self._json.state != "done":
            return self._content(start) if last or self._json.state == "invalid" else None
        end = len(self._held) - len(self._json.space)
        calls, rest = calls_of(self._held[start:end]), self._held[end:].lstrip()
        if calls and rest.startswith(CLOSE):
            self._held, self._json, self._after_call = rest[len(CLOSE) :], None, True
            return [Part(call=call) for call in calls]
        if calls and CLOSE.startswith(rest) and not last:
            return None
        return self._content(start)

    def _content(self, end: int) -> list[Part] | None:
        """The held text up to ``end`` as content; None if it is empty."""
        text, self._held = self._held[:end], self._held[end:]
        self._json, self._after_call = None, self._after_call and not text
        return [Part(text)] if text else None


def begun(text: str, tag: str) -> int:
    """Number of characters at the end of a text that may begin a tag."""
    sizes = range(min(len(tag) - 1, len(text)), 0, -1)
    return next((size for size in sizes if tag.startswith(text[-size:])), 0)


def calls_of(text: str) -> list[Call]:
    """The calls that a JSON text describes; empty if it does not describe calls."""
    try:
        value = from_json(text, allow_inf_nan=False)
    except ValueError:
        return []
    calls = [call_of(each) for each in (value if isinstance(value, list) else [value])]
    known = [call for call in calls if call is not None]
    return known if len(known) == len(calls) else []


def call_of(value: Any) -> Call | None:
    """The call that a JSON value describes, or None."""
    if not isinstance(value, dict):
        return None
    name, arguments = value.get("name"), value.get("arguments", value.get("parameters"))
    if not isinstance(name, str) or not name:
        return None
    if not isinstance(arguments, str):
        arguments = json.dumps({} if arguments is None else arguments, ensure_ascii=False)
    try:
        parsed = from_json(arguments, allow_inf_nan=False)
    except ValueError:
        return None
    return Call(name, arguments) if isinstance(parsed, dict) else None


class TemplateParser:
    """Parses an answer with transformers' own parser of a response template.

    ``closes`` are the strings that end a call. If there are none, a pattern ends it, which is
    recognized only at the following character.
    """

    def __init__(self, parser: Any, closes: Sequence[str] = ()) -> None:
        self._parser, self._closes = parser, tuple(closes)
        self._text = ""  # the whole answer
        self._settled = 0  # lower bound of the position up to which the text was shown or parsed
        self._call: int | None = None  # start of the current call
        self._failed = False

    def add(self, text: str, *, last: bool = False) -> list[Part]:
        """See Parser."""
        parts: list[Part] = []
        for letter in text:  # one by one, so that a call begins where the shown text ends
            self._text += letter
            parts += [Part(letter)] if self._failed else self._read(letter)
        if last and not self._failed:
            parts += self._read(None)
        return joined(parts)

    def _read(self, letter: str | None) -> list[Part]:
        """The parts that a letter decides; None: the end. An invalid call becomes content."""
        try:
            if letter is not None:
                return self._parts(self._parser.feed(letter))
            if self._call is None:
                return self._parts(self._parser.finalize()[1])
        except (ValueError, RecursionError, KeyError, TypeError):
            pass
        self._failed = True
        return [Part(self._text[self._settled if self._call is None else self._call :])]

    def _parts(self, events: Sequence[dict[str, Any]]) -> list[Part]:
        parts: list[Part] = []
        for event in events:
            kind, field, text = event["type"], event.get("field"), event.get("text") or ""
            if field == "tool_calls":
                if kind == "region_open":
                    self._call = self._settled
                elif kind == "region_close":
                    call = call_of(event["value"]["function"])
                    if call is None:
                        raise ValueError(f"no call of a tool: {event['value']!r}")
                    parts.append(Part(call=call))
                    whole = self._text.endswith(self._closes) if self._closes else False
                    self._call, self._settled = None, len(self._text) - (not whole)
            elif kind == "region_chunk" and not event.get("dirty"):
                at = self._text.find(text, self._settled)
                self._settled = at + len(text) if at >= 0 else len(self._text)
                parts += [Part(reasoning=text) if field in REASONING_FIELDS else Part(text)]
        return parts


def joined(parts: Sequence[Part]) -> list[Part]:
    """Parts, with consecutive ones of the same kind merged."""
    found: list[Part] = []
    for part in parts:
        before = found[-1] if found and not part.call else None
        if before and not before.call and bool(part.reasoning) == bool(before.reasoning):
            found[-1] = Part(before.content + part.content, before.reasoning + part.reasoning)
        else:
            found.append(part)
    return found
