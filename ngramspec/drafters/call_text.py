"""What may follow in an unfinished tool call, by the tools' JSON schemas and earlier calls.

Keys come in the order in which the model writes them, and punctuation in its style. Names,
enumerated values and earlier values of an argument are alternatives.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, NamedTuple

from ngramspec.drafters.partial_json import MAX_DEPTH, PartialJson, unquoted

NAME_KEY = "name"
ARGUMENT_KEYS = ("arguments", "parameters")
MAX_ALTERNATIVES = 32  # of a schema that are read
MAX_TOOLS = 256
MAX_KEYS = 256  # of an object that are predicted
MAX_EARLIER_VALUES = 4  # of an argument
MAX_CONTINUATIONS = MAX_ALTERNATIVES
MAX_VALUE_CHARACTERS = 4096  # of a value that is predicted
MAX_PREDICTED_CHARACTERS = 400  # of one continuation
MAX_ALL_CHARACTERS = 8 * MAX_PREDICTED_CHARACTERS  # of all continuations
LITERALS = {"boolean": ("false", "true"), "null": ("null",)}
VALUE, REST, OPEN = "value", "rest", "open"
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


class Step(NamedTuple):
    """A part of a continuation, and the place after it.

    ``then`` is what comes next there: a value, the rest after a value, or text that is not known.
    """

    text: str
    place: Place
    then: str


class Members(NamedTuple):
    """The keys of an object's schema; ``needed`` are all that must be written, or None."""

    known: tuple[str, ...]
    required: tuple[str, ...]
    needed: frozenset[str] | None


class CallText:
    """Predicts the text of calls of a request's tools, and learns from finished calls.

    Args:
        tools: in OpenAI's form; entries that are not are ignored.
        closes: text that closes a call, without the white space before it.
    """

    def __init__(self, tools: Sequence[Any], closes: str = "</tool_call>") -> None:
        self.tools: dict[str, Schema] = {}
        self._names: dict[str, str] = {}  # their JSON texts
        for tool in islice(tools, MAX_TOOLS):
            function = tool.get("function", tool) if isinstance(tool, Mapping) else {}
            name: Any = function.get("name") if isinstance(function, Mapping) else None
            text = json_text(name) if isinstance(name, str) else None
            if text is not None:
                self.tools[name] = resolved(function.get("parameters"))
                self._names[name] = text
        self._closes = closes
        self._ending = "\n" + closes
        self._style = {"": "\n", ":": " ", ",": " "}
        self._used: list[str] = []  # names of tools, the latest first
        self._values: dict[tuple[str | None, tuple[str, ...]], list[str]] = {}
        self._orders: dict[tuple[str | None, tuple[str, ...]], list[str]] = {}
        # By a schema's ``id``, with the schema, which so remains alive.
        self._listed: dict[int, tuple[Schema, list[str]]] = {}
        self._members: dict[int, tuple[Schema, Members]] = {}

    def reader(self) -> PartialJson:
        """Reads a new call."""
        return PartialJson()

    def learn(self, call: PartialJson) -> None:
        """Learn the style, the order of keys, and the values of a finished call of a tool."""
        tool = tool_of(call)
        if tool not in self.tools:
            return
        self._style |= call.style
        space, closes, _ = call.space.partition(self._closes)
        if closes and not space.strip():
            self._ending = space + closes
        self._used = [tool, *(each for each in self._used if each != tool)]
        for path, keys in call.orders:
            self._orders[tool if path else None, path] = keys[:MAX_KEYS]
        for path, text in call.values:
            known = self._values.setdefault((tool, path), [])
            known[:] = [text, *(each for each in known if each != text)][:MAX_EARLIER_VALUES]

    def after(self, call: PartialJson) -> list[str]:
        """Texts that may come next, the likeliest first; [] where nothing is known."""
        if call.state == "done":
            known = self._ending.startswith(call.space)
            rest = self._ending[len(call.space) :][:MAX_PREDICTED_CHARACTERS]
            return [rest] if known and rest else []
        found: dict[str, None] = {}
        left = MAX_ALL_CHARACTERS
        for step in islice(self._steps(call), MAX_CONTINUATIONS):
            text = self._continued(step, min(left, MAX_PREDICTED_CHARACTERS))
            found[text] = None
            left -= len(text)
        return [text for text in found if text]

    def chooses(self, call: PartialJson) -> bool:
        """Whether the model chooses here among values, so that texts may be wrong or missing."""
        return call.state in ("string", "scalar", "value") and bool(call.frames)

    def _continued(self, step: Step, most: int) -> str:
        """At most ``most`` characters: a step, and what follows it most likely."""
        parts, count = [step.text], len(step.text)
        while count < most and step.then != OPEN:
            following = self._begun if step.then == VALUE else self._rests
            found = next(following(step.place), None)
            if found is None:
                break
            step = found
            parts.append(step.text)
            count += len(step.text)
        return "".join(parts)[:most]

    def _place(self, call: PartialJson) -> Place:
        """The place after the text of a call so far."""
        place = Place(self.tools, tool=tool_of(call))
        for each in call.frames:
            frame = Frame(place.schema(), each.path, each.keys)
            place = place.within([*place.frames, frame], each.keys[-1] if each.keys else "")
        return place

    def _steps(self, call: PartialJson) -> Iterator[Step]:
        """What may come next, the likeliest first."""
        state, place = call.state, self._place(call)
        if state in ("string", "scalar"):
            begun = '"' * (state == "string") + call.partial
            for step in self._ended(place):
                if step.text.startswith(begun):
                    yield step._replace(text=step.text[len(begun) :])
        elif state == "keytext":
            for key in self._keys(place):
                if key.startswith(call.partial):
                    step = self._member(place, key)
                    yield step._replace(text=step.text[len(call.partial) + 1 :])
        elif state == "colon":
            yield from self._after_text(":" + self._style[":"], self._begun(place))
        elif state == "after":
            yield from self._rests(place)
        elif state in ("key", "value"):
            usual = self._style.get(call.last, "")
            if not usual.startswith(call.space):  # there is more white space than usual
                return
            if state == "value":
                following = self._begun(place)
            else:
                following = (self._member(place, key) for key in self._keys(place))
            yield from self._after_text(usual[len(call.space) :], following)

    @staticmethod
    def _after_text(text: str, steps: Iterator[Step]) -> Iterator[Step]:
        return (step._replace(text=text + step.text) for step in steps)

    def _members_of(self, schema: Schema) -> Members:
        """The keys of an object's schema, of which the first ``MAX_KEYS`` are read."""
        if id(schema) not in self._members:
            properties, required = schema.get("properties"), schema.get("required")
            known = properties if isinstance(properties, Mapping) else ()
            names = tuple(each for each in islice(known, MAX_KEYS) if isinstance(each, str))
            needed: frozenset[str] | None = None
            if isinstance(required, Sequence) and not isinstance(required, str):
                first = islice(required, MAX_KEYS)
                needed = frozenset(each for each in first if isinstance(each, str))
            before = tuple(each for each in names if each in (needed or ()))
            self._members[id(schema)] = schema, Members(names, before, needed)
        return self._members[id(schema)][1]

    def _keys(self, place: Place) -> Iterator[str]:
        """The keys that the last frame, an object, may have next, in order."""
        frame = place.frames[-1]
        passed = set(frame.keys or ())
        if frame.path:
            members = self._members_of(frame.schema)
            usual = self._orders.get((place.tool, frame.path), [])
            given = [each for each in usual if each in members.known]
            ordered = (*given, *members.required, *members.known)
        else:
            ordered = tuple(self._orders.get((None, ()), (NAME_KEY, ARGUMENT_KEYS[0])))
        for key in ordered:
            if key not in passed:
                passed.add(key)
                yield key

    def _may_end(self, place: Place) -> bool:
        """Whether the last frame, an object, is likelier to end than to have another key."""
        frame = place.frames[-1]
        if not frame.path:
            return False
        needed = self._members_of(frame.schema).needed
        usual = self._orders.get((place.tool, frame.path), needed)
        return usual is None or set(frame.keys or ()).issuperset(usual)

    def _member(self, place: Place, key: str) -> Step:
        """A key of the last frame, before its value."""
        *outer, frame = place.frames
        frame = Frame(frame.schema, frame.path, [*(frame.keys or ()), key])
        text = json.dumps(key) + ":" + self._style[":"]
        return Step(text, place.within([*outer, frame], key), VALUE)

    def _begun(self, place: Place) -> Iterator[Step]:
        """Beginnings of the value that is expected, after a key that its frame has."""
        if not place.frames:
            inside = place.within([Frame(UNKNOWN, (), [])])
            step = self._member(inside, next(self._keys(inside), NAME_KEY))
            yield step._replace(text="{" + step.text)
            return
        schema, path = place.schema(), place.path()
        kind = schema.get("type")
        yield from self._ended(place)
        if kind == "string" and "enum" not in schema:
            yield Step('"', place, OPEN)
        elif kind == "object" and len(place.frames) < MAX_DEPTH:
            inside = place.within([*place.frames, Frame(schema, path, [])])
            key = next(self._keys(inside), None)
            if key is None:
                yield Step("{}", place, REST)
            else:
                step = self._member(inside, key)
                yield step._replace(text="{" + step.text)
        elif kind == "array" and len(place.frames) < MAX_DEPTH:
            yield Step("[", place.within([*place.frames, Frame(schema, path, None)]), VALUE)

    def _ended(self, place: Place) -> Iterator[Step]:
        """The known values of an argument or the name."""
        for value in self._values_of(place):
            after = place
            if len(place.frames) == 1 and place.key == NAME_KEY:  # arguments depend on the name
                after = Place(place.tools, place.frames, NAME_KEY, unquoted(value[1:-1]))
            yield Step(value, after, REST)

    def _values_of(self, place: Place) -> list[str]:
        """JSON texts of the known values of an argument or the name, the latest first."""
        path = place.path()
        if path == (NAME_KEY,):
            return [self._names[each] for each in dict.fromkeys([*self._used, *self.tools])]
        texts = self._listed_in(place.schema())
        earlier = self._values.get((place.tool, path), [])
        return [*(each for each in earlier if not texts or each in texts), *texts]

    def _listed_in(self, schema: Schema) -> list[str]:
        """JSON texts of the values that a schema lists."""
        if id(schema) not in self._listed:
            listed = [schema["const"]] if "const" in schema else schema.get("enum")
            if not isinstance(listed, Sequence) or isinstance(listed, str):
                listed = ()
            texts = [json_text(each) for each in islice(listed, MAX_CONTINUATIONS)]
            found = [each for each in texts if each is not None]
            found = found or list(LITERALS.get(str(schema.get("type")), ()))
            self._listed[id(schema)] = schema, found
        return self._listed[id(schema)][1]

    def _rests(self, place: Place) -> Iterator[Step]:
        """What follows once a value of the last frame has ended, the likeliest first."""
        if not place.frames:
            yield Step(self._ending, place, OPEN)
            return
        frame, outer = place.frames[-1], place.within(place.frames[:-1])
        comma = "," + self._style[","]
        if frame.keys is None:
            yield Step("]", outer, REST)
            yield Step(comma, place.within(place.frames), VALUE)
            return
        first = next(self._keys(place), None)
        ends = first is None or self._may_end(place)
        if ends:
            yield Step("}", outer, REST)
        yield from self._after_text(comma, (self._member(place, key) for key in self._keys(place)))
        if not ends:
            yield Step("}", outer, REST)


def tool_of(call: PartialJson) -> str | None:
    """The name of a call's tool, once it is complete."""
    text = dict(call.values).get((NAME_KEY,), "")
    return unquoted(text[1:-1]) if text[:1] == '"' else None


def json_text(value: Any) -> str | None:
    """A value's JSON text; None if it has none or a long one."""
    parts, count = [], 0
    try:
        for part in json.JSONEncoder().iterencode(value):
            parts.append(part)
            count += len(part)
            if count > MAX_VALUE_CHARACTERS:
                return None
    except (RecursionError, TypeError, ValueError):
        return None
    return "".join(parts)


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
