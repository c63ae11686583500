"""Reading JSON that is still being written."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field

MAX_DEPTH = 16  # of nested values
SPACES = re.compile(r"[ \t\r\n]+")
# Text that a state reads without changing.
RUNS = {
    **dict.fromkeys(("string", "keytext"), re.compile(r'[^"\\\x00-\x1f]+')),
    "scalar": re.compile(r"[^,\]} \t\r\n]+"),
    "done": re.compile(r".+", re.DOTALL),
}
ESCAPE = re.compile(r'\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4})')
BEGUN_ESCAPE = re.compile(r"\\(?:u[0-9a-fA-F]{0,3})?")
NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?")
BEGUN_NUMBER = re.compile(r"-?(?:(?:0|[1-9][0-9]*)(?:\.[0-9]*)?(?:(?<=[0-9])[eE][+-]?[0-9]*)?)?")
LITERALS = ("true", "false", "null")


@dataclass(slots=True)
class Frame:
    """An object or array that is open."""

    path: tuple[str, ...]  # names of the keys that lead to it
    keys: list[str] | None  # that the object has so far, with the current one; None: an array


@dataclass(slots=True)
class PartialJson:
    """The state after the text so far of an object or an array.

    It accepts the JSON that Python's ``json`` accepts, up to ``max_depth``, without NaN and
    infinities, and recognizes an error at the first wrong character.

    Attributes:
        state: what comes next: "value", "key", "colon", "string" (inside a value), "keytext"
            (inside a key), "scalar" (inside another value), "after" (a value has ended), "done",
            or "invalid".
        frames: open objects and arrays, the outermost first.
        partial: text of the unfinished string or scalar, without its quote.
        space: white space since the last other character; after the end, all text.
        last: the last character of punctuation.
        style: white space before the text (""), after a colon, and after a comma, as last written.
        values: the last finished simple value, as JSON text, by the path of its keys.
    """

    max_depth: int = MAX_DEPTH
    state: str = "value"
    frames: list[Frame] = field(default_factory=list)
    partial: str = ""
    space: str = ""
    last: str = ""
    style: dict[str, str] = field(default_factory=dict)
    values: dict[tuple[str, ...], str] = field(default_factory=dict)
    _escape: str = ""  # the unfinished escape sequence

    def read(self, text: str) -> PartialJson:
        """Read more text; returns itself."""
        at = 0
        while at < len(text) and self.state != "invalid":
            run = None if self._escape else RUNS.get(self.state, SPACES).match(text, at)
            if run is None:
                self._read(text[at])
                at += 1
                continue
            if self.state in ("string", "keytext", "scalar"):
                self.partial += run[0]
                if self.state == "scalar" and not begins_scalar(self.partial):
                    self.state = "invalid"
            else:
                self.space += run[0]
            at = run.end()
        return self

    @property
    def path(self) -> tuple[str, ...]:
        """The keys that lead to the current value."""
        if not self.frames:
            return ()
        frame = self.frames[-1]
        return (*frame.path, frame.keys[-1]) if frame.keys else frame.path

    def _read(self, c: str) -> None:
        if self.state in ("string", "keytext"):
            self._in_string(c)
            return
        if self.state == "scalar":
            self._end_value(self.partial)
        if c in " \t\r\n":
            self.space += c
        elif self.state != "invalid":
            self._punctuation(c)
            self.last, self.space = c, ""

    def _in_string(self, c: str) -> None:
        if self._escape or c == "\\":
            self.partial += c
            self._escape += c
            if ESCAPE.fullmatch(self._escape):
                self._escape = ""
            elif not BEGUN_ESCAPE.fullmatch(self._escape):
                self.state = "invalid"
        elif c != '"':  # a control character
            self.state = "invalid"
        elif self.state == "keytext":
            self.state, self.last = "colon", '"'
            keys = self.frames[-1].keys
            if keys is not None:
                keys.append(unquoted(self.partial))
        else:
            self._end_value(f'"{self.partial}"')
            self.last = '"'

    def _punctuation(self, c: str) -> None:
        frame = self.frames[-1] if self.frames else None
        if self.last in (":", ",") or not frame:
            self.style[self.last] = self.space
        closes = self.state == "after" or self.last in ("{", "[")
        if closes and frame and c == ("]" if frame.keys is None else "}"):
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
        if c in "{[" and len(self.frames) < self.max_depth:
            self.frames.append(Frame(self.path, [] if c == "{" else None))
            self.state = "key" if c == "{" else "value"
        elif c == '"' and self.frames:
            self.state, self.partial = "string", ""
        elif c in "-0123456789tfn" and self.frames:
            self.state, self.partial = "scalar", c
        else:
            self.state = "invalid"

    def _end_value(self, text: str) -> None:
        whole = text[0] == '"' or text in LITERALS or NUMBER.fullmatch(text)
        self.values[self.path] = text
        self.state, self.partial = "after" if whole else "invalid", ""

    def _close(self) -> None:
        self.frames.pop()
        self.state = "after" if self.frames else "done"


def begins_scalar(text: str) -> bool:
    """Whether a text begins a number, a truth value or null."""
    return any(each.startswith(text) for each in LITERALS) or bool(BEGUN_NUMBER.fullmatch(text))


def unquoted(text: str) -> str:
    """The string whose JSON text, without quotes, is ``text``."""
    try:
        return str(json.loads(f'"{text}"'))
    except ValueError:
        return text
