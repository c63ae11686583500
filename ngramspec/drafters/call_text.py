"""What may follow in an unfinished tool call, by the tools' JSON schemas and earlier calls.

Keys come in the order in which the model writes them, and punctuation in its style. Names,
enumerated values and earlier values of an argument are alternatives.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from typing import Any

from ngramspec.drafters.call_reader import (
    ARGUMENT_KEYS,
    MAX_DEPTH,
    NAME_KEY,
    CallReader,
    Frame,
    Schema,
    resolved,
    unquoted,
)

MAX_EARLIER_VALUES = 4  # of an argument
MAX_CONTINUATIONS = 32
MAX_PREDICTED_CHARACTERS = 400
LITERALS = {"boolean": ("false", "true"), "null": ("null",)}


class CallText:
    """Predicts the text of calls of a request's tools, and learns from finished calls.

    Args:
        tools: in OpenAI's form; entries that are not are ignored.
        closes: text that closes a call, without the white space before it.
    """

    def __init__(self, tools: Sequence[Any], closes: str = "</tool_call>") -> None:
        self.tools: dict[str, Schema] = {}
        for tool in tools:
            function = tool.get("function", tool) if isinstance(tool, Mapping) else {}
            if isinstance(function, Mapping) and isinstance(function.get("name"), str):
                self.tools[function["name"]] = resolved(function.get("parameters"))
        self._closes = closes
        self._ending = "\n" + closes
        self._style = {"": "\n", ":": " ", ",": " "}
        self._used: list[str] = []  # names of tools, the latest first
        self._values: dict[tuple[str | None, tuple[str, ...]], list[str]] = {}
        self._orders: dict[tuple[str | None, tuple[str, ...]], list[str]] = {}

    def reader(self) -> CallReader:
        """Reads a new call."""
        return CallReader(self.tools)

    def learn(self, call: CallReader) -> None:
        """Learn the style, the order of keys, and the values of a finished call."""
        self._style |= call.style
        space, closes, _ = call.space.partition(self._closes)
        if closes and not space.strip():
            self._ending = space + closes
        if call.tool is not None:
            self._used = [call.tool, *(each for each in self._used if each != call.tool)]
        for path, keys in call.orders:
            self._orders[call.tool if path else None, path] = keys
        for path, text in call.values:
            known = self._values.setdefault((call.tool, path), [])
            known[:] = [text, *(each for each in known if each != text)][:MAX_EARLIER_VALUES]

    def after(self, call: CallReader) -> list[str]:
        """Texts that may come next, the likeliest first; [] where nothing is known."""
        found = dict.fromkeys(islice(self._after(call), MAX_CONTINUATIONS))
        return [text[:MAX_PREDICTED_CHARACTERS] for text in found if text]

    def chooses(self, call: CallReader) -> bool:
        """Whether the model chooses here among values, so that texts may be wrong or missing."""
        return call.state in ("string", "scalar", "value") and bool(call.frames)

    def _after(self, call: CallReader) -> Iterator[str]:
        state, frames = call.state, call.frames
        if state == "done":
            if self._ending.startswith(call.space):
                yield self._ending[len(call.space) :]
        elif state in ("string", "scalar"):
            begun = '"' * (state == "string") + call.partial
            known = self._values_of(call, call.schema(), call.path())
            known = [each for each in known if each.startswith(begun)]
            for each in self._ended(call, frames, call.key, known):
                yield each[len(begun) :]
        elif state == "keytext":
            for key in self._keys(call, frames[-1]):
                if key.startswith(call.partial):
                    yield self._member(call, frames, key)[len(call.partial) + 1 :]
        elif state == "colon":
            for each in self._begun(call, frames, call.key):
                yield ":" + self._style[":"] + each
        elif state == "after":
            yield from self._rests(call, frames)
        elif state in ("key", "value") and (space := self._space(call)) is not None:
            if state == "value":
                begun_values = self._begun(call, frames, call.key)
                yield from (space + each for each in begun_values)
            else:
                keys = self._keys(call, frames[-1])
                yield from (space + self._member(call, frames, each) for each in keys)

    def _space(self, call: CallReader) -> str | None:
        """The white space that is still to come; None if there is more than usual."""
        usual = self._style.get(call.last, "")
        return usual[len(call.space) :] if usual.startswith(call.space) else None

    def _keys(self, call: CallReader, frame: Frame) -> list[str]:
        """The keys that an object may have next, in order."""
        written = frame.keys or []
        if not frame.path:
            usual = self._orders.get((None, ()), [NAME_KEY, ARGUMENT_KEYS[0]])
            return [each for each in usual if each not in written]
        properties = frame.schema.get("properties")
        known = list(properties) if isinstance(properties, Mapping) else []
        required = frame.schema.get("required")
        needed = [each for each in known if isinstance(required, Sequence) and each in required]
        usual = self._orders.get((call.tool, frame.path), [])
        ordered = dict.fromkeys([*(each for each in usual if each in known), *needed, *known])
        return [each for each in ordered if each not in written]

    def _may_end(self, call: CallReader, frame: Frame) -> bool:
        """Whether an object is likelier to end than to have another key."""
        written = set(frame.keys or [])
        usual = self._orders.get((call.tool, frame.path))
        if not frame.path:
            return False
        if usual is not None:
            return written.issuperset(usual)
        required = frame.schema.get("required")
        return not isinstance(required, Sequence) or written.issuperset(required)

    def _member(self, call: CallReader, frames: list[Frame], key: str) -> str:
        """A key of the last frame, and the likeliest beginning of its value."""
        frame = frames[-1]
        frame = Frame(frame.schema, frame.path, [*(frame.keys or ()), key])
        begun = next(self._begun(call, [*frames[:-1], frame], key), "")
        return json.dumps(key) + ":" + self._style[":"] + begun

    def _begun(self, call: CallReader, frames: list[Frame], key: str) -> Iterator[str]:
        """Beginnings of the value that is expected, after a key that its frame has."""
        if not frames:
            yield "{" + self._member(call, [Frame({}, (), [])], NAME_KEY)
            return
        expected = CallReader(self.tools, frames, key=key, tool=call.tool)
        schema, path = expected.schema(), expected.path()
        kind = schema.get("type")
        known = self._values_of(call, schema, path)
        yield from self._ended(call, frames, key, known)
        if kind == "string" and "enum" not in schema:
            yield '"'
        elif kind == "object" and len(frames) < MAX_DEPTH:
            inner = Frame(schema, path, [])
            keys = self._keys(call, inner)
            if keys:
                yield "{" + self._member(call, [*frames, inner], keys[0])
            else:
                yield "{}" + self._rest(call, frames)
        elif kind == "array" and len(frames) < MAX_DEPTH:
            yield "[" + next(self._begun(call, [*frames, Frame(schema, path, None)], ""), "")

    def _ended(
        self, call: CallReader, frames: list[Frame], key: str, values: list[str]
    ) -> Iterator[str]:
        """Values, each with what follows it most likely."""
        for value in values:
            if len(frames) == 1 and key == NAME_KEY:  # the arguments depend on the name
                call = replace(call, tool=unquoted(value[1:-1]))
            yield value + self._rest(call, frames)

    def _values_of(self, call: CallReader, schema: Schema, path: tuple[str, ...]) -> list[str]:
        """JSON texts of the values that are known for an argument, the latest first."""
        if path == (NAME_KEY,):
            return [json.dumps(each) for each in dict.fromkeys([*self._used, *self.tools])]
        listed = [schema["const"]] if "const" in schema else schema.get("enum")
        if not isinstance(listed, Sequence) or isinstance(listed, str):
            listed = ()
        texts = [json.dumps(each) for each in listed[:MAX_CONTINUATIONS]]
        texts = texts or list(LITERALS.get(str(schema.get("type")), ()))
        earlier = self._values.get((call.tool, path), [])
        return [*(each for each in earlier if not texts or each in texts), *texts]

    def _rest(self, call: CallReader, frames: list[Frame]) -> str:
        """What follows most likely once a value has ended."""
        return next(self._rests(call, frames), "")

    def _rests(self, call: CallReader, frames: list[Frame]) -> Iterator[str]:
        """What follows once a value of the last frame has ended, the likeliest first."""
        if not frames:
            yield self._ending
            return
        frame, outer = frames[-1], frames[:-1]
        if frame.keys is None:
            yield "]" + self._rest(call, outer)
            yield "," + self._style[","] + next(self._begun(call, frames, ""), "")
            return
        keys = self._keys(call, frame)
        ends = not keys or self._may_end(call, frame)
        if ends:
            yield "}" + self._rest(call, outer)
        for key in keys:
            yield "," + self._style[","] + self._member(call, frames, key)
        if not ends:
            yield "}" + self._rest(call, outer)
