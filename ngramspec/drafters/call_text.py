"""What may follow in an unfinished tool call, by the tools' JSON schemas and earlier calls.

Keys come in the order in which the model writes them, and punctuation in its style. Names,
enumerated values and earlier values of an argument are alternatives.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

from ngramspec.drafters.call_reader import (
    ARGUMENT_KEYS,
    MAX_DEPTH,
    NAME_KEY,
    CallReader,
    Frame,
    Place,
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
        """Learn the style, the order of keys, and the values of a finished call of a tool."""
        if call.tool not in self.tools:
            return
        self._style |= call.style
        space, closes, _ = call.space.partition(self._closes)
        if closes and not space.strip():
            self._ending = space + closes
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
        state = call.state
        if state == "done":
            if self._ending.startswith(call.space):
                yield self._ending[len(call.space) :]
        elif state in ("string", "scalar"):
            begun = '"' * (state == "string") + call.partial
            known = [each for each in self._values_of(call) if each.startswith(begun)]
            yield from (each[len(begun) :] for each in self._ended(call, known))
        elif state == "keytext":
            for key in self._keys(call):
                if key.startswith(call.partial):
                    yield self._member(call, key)[len(call.partial) + 1 :]
        elif state == "colon":
            yield from (":" + self._style[":"] + each for each in self._begun(call))
        elif state == "after":
            yield from self._rests(call)
        elif state in ("key", "value"):
            usual = self._style.get(call.last, "")
            if not usual.startswith(call.space):  # there is more white space than usual
                return
            if state == "value":
                following = self._begun(call)
            else:
                following = (self._member(call, key) for key in self._keys(call))
            yield from (usual[len(call.space) :] + each for each in following)

    def _keys(self, place: Place) -> list[str]:
        """The keys that the last frame, an object, may have next, in order."""
        frame = place.frames[-1]
        written = frame.keys or []
        if not frame.path:
            usual = self._orders.get((None, ()), [NAME_KEY, ARGUMENT_KEYS[0]])
            return [each for each in usual if each not in written]
        properties = frame.schema.get("properties")
        known = list(properties) if isinstance(properties, Mapping) else []
        required = frame.schema.get("required")
        needed = [each for each in known if isinstance(required, Sequence) and each in required]
        usual = self._orders.get((place.tool, frame.path), [])
        ordered = dict.fromkeys([*(each for each in usual if each in known), *needed, *known])
        return [each for each in ordered if each not in written]

    def _may_end(self, place: Place) -> bool:
        """Whether the last frame, an object, is likelier to end than to have another key."""
        frame = place.frames[-1]
        if not frame.path:
            return False
        usual = self._orders.get((place.tool, frame.path), frame.schema.get("required"))
        return not isinstance(usual, Sequence) or set(frame.keys or []).issuperset(usual)

    def _member(self, place: Place, key: str) -> str:
        """A key of the last frame, and the likeliest beginning of its value."""
        *outer, frame = place.frames
        frame = Frame(frame.schema, frame.path, [*(frame.keys or ()), key])
        begun = next(self._begun(place.within([*outer, frame], key)), "")
        return json.dumps(key) + ":" + self._style[":"] + begun

    def _begun(self, place: Place) -> Iterator[str]:
        """Beginnings of the value that is expected, after a key that its frame has."""
        if not place.frames:
            inside = place.within([Frame({}, (), [])])
            yield "{" + self._member(inside, next(iter(self._keys(inside)), NAME_KEY))
            return
        schema, path = place.schema(), place.path()
        kind = schema.get("type")
        yield from self._ended(place, self._values_of(place))
        if kind == "string" and "enum" not in schema:
            yield '"'
        elif kind == "object" and len(place.frames) < MAX_DEPTH:
            inside = place.within([*place.frames, Frame(schema, path, [])])
            keys = self._keys(inside)
            yield "{" + self._member(inside, keys[0]) if keys else "{}" + self._rest(place)
        elif kind == "array" and len(place.frames) < MAX_DEPTH:
            inside = place.within([*place.frames, Frame(schema, path, None)])
            yield "[" + next(self._begun(inside), "")

    def _ended(self, place: Place, values: list[str]) -> Iterator[str]:
        """Values, each with what follows it most likely."""
        for value in values:
            if len(place.frames) == 1 and place.key == NAME_KEY:  # arguments depend on the name
                place = Place(place.tools, place.frames, NAME_KEY, unquoted(value[1:-1]))
            yield value + self._rest(place)

    def _values_of(self, place: Place) -> list[str]:
        """JSON texts of the known values of an argument or the name, the latest first."""
        schema, path = place.schema(), place.path()
        if path == (NAME_KEY,):
            return [json.dumps(each) for each in dict.fromkeys([*self._used, *self.tools])]
        listed = [schema["const"]] if "const" in schema else schema.get("enum")
        if not isinstance(listed, Sequence) or isinstance(listed, str):
            listed = ()
        texts = [json.dumps(each) for each in listed[:MAX_CONTINUATIONS]]
        texts = texts or list(LITERALS.get(str(schema.get("type")), ()))
        earlier = self._values.get((place.tool, path), [])
        return [*(each for each in earlier if not texts or each in texts), *texts]

    def _rest(self, place: Place) -> str:
        """What follows most likely once a value of the last frame has ended."""
        return next(self._rests(place), "")

    def _rests(self, place: Place) -> Iterator[str]:
        """What follows once a value of the last frame has ended, the likeliest first."""
        if not place.frames:
            yield self._ending
            return
        frame, outer = place.frames[-1], place.within(place.frames[:-1])
        if frame.keys is None:
            yield "]" + self._rest(outer)
            yield "," + self._style[","] + next(self._begun(place.within(place.frames)), "")
            return
        keys = self._keys(place)
        ends = not keys or self._may_end(place)
        if ends:
            yield "}" + self._rest(outer)
        for key in keys:
            yield "," + self._style[","] + self._member(place, key)
        if not ends:
            yield "}" + self._rest(outer)
