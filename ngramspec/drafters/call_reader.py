"""Reading an unfinished tool call: a JSON object with the tool's name and its arguments."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

NAME_KEY = "name"
ARGUMENT_KEYS = ("arguments", "parameters")
MAX_DEPTH = 16  # of nested values
MAX_ALTERNATIVES = 32  # of a schema that are read
SPACES = re.compile(r"[ \t\r\n]+")
# Text that a state reads without changing.
RUNS = {
    **dict.fromkeys(("string", "keytext"), re.compile(r'[^"\\]+')),
    "scalar": re.compile(r"[^,\]} \t\r\n]+"),
    "done": re.compile(r".+", re.DOTALL),
}
Schema = Mapping[str, Any]
UNKNOWN: Schema = {}


@dataclass(slots=True)
class Frame:
    """An object or array that is open.

    Attributes:
        schema: its schema.
        path: names of the keys that lead to it.
        keys: keys of the object that were written; None: it is an array.
    """

    schema: Schema
    path: tuple[str, ...]
    keys: list[str] | None


@dataclass(slots=True)
class Place:
    """A place in a call, with a value that is expected or unfinished.

    Attributes:
        tools: schemas of the arguments by the tool's name.
        frames: open objects and arrays, the outermost first.
        key: the last key of the last frame.
        tool: the tool's name, once it is complete.
    """

    tools: Mapping[str, Schema]
    frames: list[Frame] = field(default_factory=list)
    key: str = ""
    tool: str | None = None

    def within(self, frames: list[Frame], key: str = "") -> Place:
        """A place of the same call."""
        return Place(self.tools, frames, key, self.tool)

    def schema(self) -> Schema:
        """The schema of the value."""
        if not self.frames:
            return {"type": "object"}
        frame = self.frames[-1]
        if frame.keys is None:
            return resolved(frame.schema.get("items"))
        if len(self.frames) == 1 and self.key in ARGUMENT_KEYS:
            return resolved(self.tools.get(self.tool or ""))
        if len(self.frames) == 1 and self.key == NAME_KEY:
            return {"type": "string", "enum": list(self.tools)}
        properties = frame.schema.get("properties")
        return resolved(properties.get(self.key) if isinstance(properties, Mapping) else None)

    def path(self) -> tuple[str, ...]:
        """The keys that lead to the value."""
        if not self.frames:
            return ()
        frame = self.frames[-1]
        return frame.path if frame.keys is None else (*frame.path, self.key)


@dataclass(slots=True)
class CallReader(Place):
    """The state after the text of a call so far.

    Attributes:
        state: what comes next: "value", "key", "colon", "string" (inside a value), "keytext"
            (inside a key), "scalar" (inside another value), "after" (a value has ended), "done",
            or "invalid".
        partial: text of the unfinished string or scalar, without its quote.
        space: white space since the last other character; after the call's end, all text.
        last: the last character of punctuation.
        style: white space before the call (""), after a colon, and after a comma, as last written.
        values: the finished simple values, as JSON text, by the path of their keys.
        orders: the finished objects' keys in order, by the path of the object.
    """

    state: str = "value"
    partial: str = ""
    space: str = ""
    last: str = ""
    style: dict[str, str] = field(default_factory=dict)
    values: list[tuple[tuple[str, ...], str]] = field(default_factory=list)
    orders: list[tuple[tuple[str, ...], list[str]]] = field(default_factory=list)
    _escaped: bool = False

    def read(self, text: str) -> CallReader:
        """Read more text; returns itself."""
        at = 0
        while at < len(text) and self.state != "invalid":
            run = None if self._escaped else RUNS.get(self.state, SPACES).match(text, at)
            if run is None:
                self._read(text[at])
                at += 1
                continue
            if self.state in ("string", "keytext", "scalar"):
                self.partial += run[0]
            else:
                self.space += run[0]
            at = run.end()
        return self

    def _read(self, c: str) -> None:
        if self.state in ("string", "keytext"):
            self._in_string(c)
            return
        if self.state == "scalar":
            self._end_value(self.partial)
        if c in " \t\r\n":
            self.space += c
            return
        self._punctuation(c)
        self.last, self.space = c, ""

    def _in_string(self, c: str) -> None:
        if c != '"' or self._escaped:
            self._escaped = c == "\\" and not self._escaped
            self.partial += c
        elif self.state == "keytext":
            self.key, self.state, self.last = unquoted(self.partial), "colon", '"'
            keys = self.frames[-1].keys
            if keys is not None:
                keys.append(self.key)
        else:
            self._end_value(f'"{self.partial}"')
            self.last = '"'

    def _punctuation(self, c: str) -> None:
        frame = self.frames[-1] if self.frames else None
        if self.last in (":", ",") or not frame:
            self.style[self.last] = self.space
        if self.state in ("key", "after") and c == "}" and frame and frame.keys is not None:
            self.orders.append((frame.path, frame.keys))
            self._close()
        elif self.state in ("value", "after") and c == "]" and frame and frame.keys is None:
            self._close()
        elif self.state == "key" and c == '"':
            self.state, self.partial = "keytext", ""
        elif self.state == "colon" and c == ":":
            self.state = "value"
        elif self.state == "after" and c == "," and frame:
            self.state = "value" if frame.keys is None else "key"
        elif self.state == "value":
            self._begin_value(c)
        else:
            self.state = "invalid"

    def _begin_value(self, c: str) -> None:
        if c in "{[" and len(self.frames) < MAX_DEPTH:
            keys: list[str] | None = [] if c == "{" else None
            self.frames.append(Frame(self.schema(), self.path(), keys))
            self.state = "key" if c == "{" else "value"
        elif c == '"' and self.frames:
            self.state, self.partial = "string", ""
        elif c in "-0123456789tfn" and self.frames:
            self.state, self.partial = "scalar", c
        else:
            self.state = "invalid"

    def _end_value(self, text: str) -> None:
        if len(self.frames) == 1 and self.key == NAME_KEY:
            self.tool = unquoted(text[1:-1]) if text[:1] == '"' else None
        else:
            self.values.append((self.path(), text))
        self.state, self.partial = "after", ""

    def _close(self) -> None:
        self.frames.pop()
        self.state = "after" if self.frames else "done"


def resolved(schema: Any) -> Schema:
    """The schema, or the first usable alternative of ``anyOf`` or ``oneOf``; else UNKNOWN."""
    for _ in range(MAX_DEPTH):
        if not isinstance(schema, Mapping):
            return UNKNOWN
        choices = schema.get("anyOf") or schema.get("oneOf")
        if not isinstance(choices, Sequence) or not choices:
            return schema
        first = islice(choices, MAX_ALTERNATIVES)
        named = (each for each in first if isinstance(each, Mapping))
        schema = next((each for each in named if each.get("type") != "null"), None)
    return UNKNOWN


def unquoted(text: str) -> str:
    """The string whose JSON text, without quotes, is ``text``."""
    try:
        return str(json.loads(f'"{text}"'))
    except ValueError:
        return text
