"""Tool calls without a grammar: after a call's opening, the tools' schemas predict its tokens.

The predictions are rows of candidates for the value engine, like those of a drafting head. A wrong
one costs a position; the text does not depend on them.
"""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import chain, islice
from typing import Any

import numpy as np

from ngramspec.draft import Float32, Int32
from ngramspec.drafters.partial_json import MAX_DEPTH, Frame, PartialJson, unquoted
from ngramspec.stores.base import encode, vocabulary_of

logger = logging.getLogger("ngramspec")

OPENS, CLOSES = "<tool_call>", "</tool_call>"
OPENING_TOKENS = 16  # last tokens in which an opening is searched
MAX_CALL_TOKENS = 4096  # of a call that is read; a longer one is not predicted
MAX_READ_TOKENS, MAX_READ_CHARACTERS = 1 << 14, 1 << 16  # of a prompt's end; not tuned
CONTEXT_TOKENS = 256  # of a call, which are encoded with a continuation; not tuned
MAX_ROWS = 64
MAX_CANDIDATES = 8  # per row
# Probabilities that a prediction begins with, not tuned; the calibration corrects them: the only
# continuation, the likeliest of several values, a token after the first.
CERTAIN, LIKELIEST, FURTHER = 0.98, 0.55, 0.98
NAME_KEY, ARGUMENT_KEYS = "name", ("arguments", "parameters")
MAX_TOOLS = MAX_KEYS = 256  # keys: of an object
MAX_ALTERNATIVES = 32  # of a schema that are read
MAX_EARLIER_VALUES = 4  # of an argument
MAX_CONTINUATIONS = 32
MAX_VALUE_CHARACTERS = 4096  # of a value that is predicted
MAX_PREDICTED_CHARACTERS = 400  # of one continuation
MAX_ALL_CHARACTERS = 8 * MAX_PREDICTED_CHARACTERS  # of all continuations
LITERALS = {"boolean": ("false", "true"), "null": ("null",)}
Candidates = tuple[Int32, Float32]
Schema = Mapping[str, Any]


class CallFormat:
    """How a model writes calls: a JSON object between two texts.

    Args:
        tokenizer: the model's tokenizer.
        opens: text that opens a call.
        closes: text that closes it.
    """

    def __init__(self, tokenizer: Any, opens: str = OPENS, closes: str = CLOSES) -> None:
        self.tokenizer, self.opens, self.closes = tokenizer, opens, closes
        last = opens[-1]
        self.ends = frozenset(  # ids of pieces with which an opening can end
            number
            for piece, number in vocabulary_of(tokenizer).items()
            if last in (piece if isinstance(piece, str) else piece.decode("latin-1"))
        )

    def text(self, tokens: Sequence[int]) -> str:
        """The text of tokens, special ones included."""
        return str(self.tokenizer.decode(tokens, skip_special_tokens=False))


class ToolCalls:
    """The tools of a request, whose calls are predicted in drafts.

    Args:
        tools: in OpenAI's form: ``{"type": "function", "function": {"name", "parameters"}}``.
        tokenizer: the model's tokenizer, or a CallFormat.

    Raises:
        TypeError: ``tools`` is not a list.
    """

    def __init__(self, tools: Sequence[Any], tokenizer: Any) -> None:
        if isinstance(tools, str | Mapping) or not isinstance(tools, Sequence):
            raise TypeError(f"tools must be a list of tools, got {type(tools).__name__}")
        self.tools = tools
        self.format = tokenizer if isinstance(tokenizer, CallFormat) else CallFormat(tokenizer)

    def predictor(self, tokens: Int32) -> CallPredictor:
        """Predictions for one sequence that begins with a prompt, int32 (n,)."""
        return CallPredictor(self.tools, self.format, tokens)

    def __deepcopy__(self, memo: dict[int, Any]) -> ToolCalls:
        return self


class CallPredictor:
    """Reads one sequence's calls, and predicts the tokens of the one that is open."""

    def __init__(self, tools: Sequence[Any], calls: CallFormat, tokens: Int32) -> None:
        self._calls = calls
        self._text = CallText(tools, calls.closes)
        self._recent: list[int] = tokens[-OPENING_TOKENS:].tolist()  # while no call is open
        self._call: list[int] = []  # tokens since the opening, which is among them
        self._known = ""  # text of the open call that was read
        self._reader: PartialJson | None = None
        self._paths: list[list[int]] = []  # predicted tokens still to come, the likeliest first
        self._broken = False
        with self._guarded():
            self._read_prompt(tokens[-MAX_READ_TOKENS:].tolist())

    @property
    def predicts(self) -> bool:
        """Whether a call is open."""
        return self._reader is not None

    def extend(self, tokens: Int32) -> None:
        """Read committed tokens, int32 (n,)."""
        with self._guarded():
            for token in () if self._broken else tokens.tolist():
                self._extend(token)

    def rows(self, most: int) -> list[Candidates]:
        """Candidates for at most ``most`` positions, each after the first token of the one before.

        A row is (ids int32 (k,), log-probabilities float32 (k,)), the likeliest first.
        """
        if self._reader is None:
            return []
        with self._guarded():
            choice = self._text.chooses(self._reader)
            if choice or not self._paths:
                paths = map(self._tokens, self._text.after(self._reader))
                self._paths = [path for path in paths if path]
            return _rows(self._paths, choice, min(most, MAX_ROWS))
        return []

    @contextmanager
    def _guarded(self) -> Iterator[None]:
        """After an error, which is logged, nothing is predicted."""
        try:
            yield
        except Exception as error:
            self._broken, self._reader = True, None
            kind = type(error).__name__  # the message can quote the text
            logger.warning("tool calls are no longer predicted after an error: %s", kind)

    def _read_prompt(self, tokens: list[int]) -> None:
        """Learn from the calls in the prompt."""
        text = self._calls.text(tokens)[-MAX_READ_CHARACTERS:]
        for part in text.split(self._calls.opens)[1:]:
            call, closes, _ = part.partition(self._calls.closes)
            reader = PartialJson().read(call + closes)
            if closes and reader.state == "done":
                self._text.learn(reader)

    def _extend(self, token: int) -> None:
        if self._reader is not None:
            self._call.append(token)
            self._paths = [each[1:] for each in self._paths if each[0] == token and len(each) > 1]
            self._read_on()
            return
        self._recent = [*self._recent, token][-OPENING_TOKENS:]
        if token in self._calls.ends:
            _, opens, after = self._calls.text(self._recent).rpartition(self._calls.opens)
            if opens and len(after) < len(self._calls.text(self._recent[-1:])):
                self._call, self._known, self._paths = list(self._recent), "", []
                self._reader = PartialJson()
                self._read_on()

    def _read_on(self) -> None:
        """Read what the open call has in addition."""
        assert self._reader is not None
        text = self._calls.text(self._call).rpartition(self._calls.opens)[2]
        if text.endswith("\ufffd"):  # the rest of a character is to come
            return
        if not text.startswith(self._known) or len(self._call) > MAX_CALL_TOKENS:
            self._reader = None
            return
        self._reader.read(text[len(self._known) :])
        self._known = text
        if self._reader.state == "invalid":
            self._reader = None
        elif self._reader.state == "done" and self._calls.closes in text:
            self._text.learn(self._reader)
            self._reader, self._recent = None, self._call[-OPENING_TOKENS:]

    def _tokens(self, text: str) -> list[int]:
        """The tokens of a continuation, as the tokenizer splits it after the call if that fits."""
        tokenizer, before = self._calls.tokenizer, self._calls.opens + self._known
        if len(self._call) > CONTEXT_TOKENS:
            before = self._calls.text(self._call[-CONTEXT_TOKENS:])
        begun, whole = encode(tokenizer, before), encode(tokenizer, before + text)
        if whole[: len(begun)] == begun and self._call[-len(begun) :] == begun:
            return whole[len(begun) :]
        return encode(tokenizer, text)


def _rows(paths: list[list[int]], choice: bool, most: int) -> list[Candidates]:
    """The rows along the likeliest path, with the other paths' tokens as alternatives."""
    path = paths[0][:most] if paths else []
    rows = []
    for depth, token in enumerate(path):
        also = (each[depth] for each in paths if each[:depth] == path[:depth] and each[depth:])
        tokens = list(dict.fromkeys([token, *also]))[:MAX_CANDIDATES]
        first = FURTHER if depth else LIKELIEST if choice else CERTAIN
        log_probs = [math.log(first), *[math.log((1 - first) / len(tokens))] * (len(tokens) - 1)]
        rows.append((np.array(tokens, np.int32), np.array(log_probs, np.float32)))
    return rows


class CallText:
    """Predicts the text of calls of a request's tools, and learns from finished calls.

    Keys come in the order in which the model writes them, and punctuation in its style. Names,
    enumerated values and earlier values of an argument are alternatives.

    Args:
        tools: in OpenAI's form; entries that are not are ignored.
        closes: text that closes a call, without the white space before it.
    """

    def __init__(self, tools: Sequence[Any], closes: str = CLOSES) -> None:
        self.tools: dict[str, Schema] = {}  # schemas of the arguments by the tool's name
        for tool in islice(tools, MAX_TOOLS):
            function = tool.get("function", tool) if isinstance(tool, Mapping) else {}
            name: Any = function.get("name") if isinstance(function, Mapping) else None
            if isinstance(name, str) and json_text(name) is not None:
                self.tools[name] = resolved(function.get("parameters"))
        self._closes, self._ending = closes, "\n" + closes
        self._style = {"": "\n", ":": " ", ",": " "}
        self._used: list[str] = []  # names of tools, the latest first
        # By the tool's name and the path: values, the latest first; an object's keys, in order.
        self._values: dict[tuple[str | None, tuple[str, ...]], list[str]] = {}
        self._orders: dict[tuple[str | None, tuple[str, ...]], list[str]] = {}

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
        found: dict[str, None] = {}
        left = MAX_ALL_CHARACTERS
        for piece in islice(self._pieces(call), MAX_CONTINUATIONS):
            text = self._continued(call, piece, min(left, MAX_PREDICTED_CHARACTERS))
            found[text] = None
            left -= len(text)
        return [text for text in found if text]

    def chooses(self, call: PartialJson) -> bool:
        """Whether the model chooses here among values, so that texts may be wrong or missing."""
        return call.state in ("string", "scalar", "value") and bool(call.frames)

    def _continued(self, call: PartialJson, text: str, most: int) -> str:
        """At most ``most`` characters: a text, and what follows it most likely."""
        frames = [Frame(each.path, each.keys and [*each.keys]) for each in call.frames]
        call = replace(call, frames=frames, style={}, values=[*call.values], orders=[])
        piece = text
        while True:
            call.read(piece)
            if call.state == "scalar":
                call.read(" ")  # the value ends here
            if call.state == "string" or len(text) >= most:  # a string of unknown text was opened
                break
            piece = next(self._pieces(call), "")
            if not piece:
                break
            text += piece
        return text[:most]

    def _pieces(self, call: PartialJson) -> Iterator[str]:
        """The next key, value or punctuation: alternatives, the likeliest first."""
        state, frame = call.state, call.frames[-1] if call.frames else None
        if state in ("string", "scalar"):
            begun = '"' * (state == "string") + call.partial
            yield from (each[len(begun) :] for each in self._known(call) if each.startswith(begun))
        elif state == "keytext":
            keys = (json.dumps(key)[1:] for key in self._keys(call))
            yield from (each[len(call.partial) :] for each in keys if each.startswith(call.partial))
        elif state == "colon":
            values = self._begun(call)
            colon = ":" + self._style[":"]
            yield from (colon + each for each in chain([next(values, "")], values))
        elif state == "after" and frame is not None:
            comma = "," + self._style[","]
            if frame.keys is None:
                yield from ("]", comma)
                return
            ends = self._may_end(call)
            if ends:
                yield "}"
            yield from (comma + json.dumps(key) for key in self._keys(call))
            if not ends:
                yield "}"
        elif state in ("key", "value"):
            usual = self._style.get(call.last, "")
            if usual.startswith(call.space):  # else there is more white space than usual
                keys = (json.dumps(key) for key in self._keys(call)) if state == "key" else ()
                texts = chain(keys, self._begun(call) if state == "value" else ())
                yield from (usual[len(call.space) :] + each for each in texts)
        elif state == "done" and self._ending.startswith(call.space):
            yield self._ending[len(call.space) :]

    def _begun(self, call: PartialJson) -> Iterator[str]:
        """Beginnings of the value that is expected."""
        yield from self._known(call)
        schema = self._schema(call, len(call.frames))
        kind = schema.get("type")
        if kind == "string" and "enum" not in schema:
            yield '"'
        elif kind == "object" and len(call.frames) < MAX_DEPTH:
            key = next(self._keys(replace(call, frames=[*call.frames, Frame(call.path, [])])), None)
            yield "{}" if key is None else "{" + json.dumps(key)
        elif kind == "array" and len(call.frames) < MAX_DEPTH:
            yield "["

    def _known(self, call: PartialJson) -> Sequence[str]:
        """JSON texts of the known values of an argument or the name, the latest first."""
        if call.path == (NAME_KEY,):
            return list(map(json.dumps, dict.fromkeys([*self._used, *self.tools])))
        schema = self._schema(call, len(call.frames))
        listed = [schema["const"]] if "const" in schema else schema.get("enum")
        if not isinstance(listed, Sequence) or isinstance(listed, str):
            listed = ()
        texts = [json_text(each) for each in islice(listed, MAX_CONTINUATIONS)]
        found = [each for each in texts if each is not None]
        found = found or [*LITERALS.get(str(schema.get("type")), ())]
        earlier = self._values.get((tool_of(call), call.path), [])
        return [*(each for each in earlier if not found or each in found), *found]

    def _schema(self, call: PartialJson, depth: int) -> Schema:
        """The schema of the value inside the first ``depth`` open objects and arrays."""
        schema: Schema = {"type": "object"}
        for at, frame in enumerate(call.frames[:depth]):
            key = frame.keys[-1] if frame.keys else ""
            if frame.keys is None:
                schema = resolved(schema.get("items"))
            elif at == 0:
                tool = tool_of(call) if key in ARGUMENT_KEYS else None
                schema = self.tools.get(tool or "", {})
            else:
                properties = schema.get("properties")
                schema = resolved(properties.get(key) if isinstance(properties, Mapping) else None)
        return schema

    def _keys(self, call: PartialJson) -> Iterator[str]:
        """The keys that the last frame, an object, may have next, in order."""
        frame = call.frames[-1]
        passed = set(frame.keys or ())
        if not frame.path:
            usual = self._orders.get((None, ()), (NAME_KEY, ARGUMENT_KEYS[0]))
            yield from (key for key in usual if key not in passed)
            return
        schema = self._schema(call, len(call.frames) - 1)
        properties = schema.get("properties")
        known = properties if isinstance(properties, Mapping) else {}
        first = (*self._orders.get((tool_of(call), frame.path), ()), *(required(schema) or ()))
        for key in chain(first, islice(known, MAX_KEYS)):
            if isinstance(key, str) and key not in passed and key in known:
                passed.add(key)
                yield key

    def _may_end(self, call: PartialJson) -> bool:
        """Whether the last frame, an object, is likelier to end than to have another key."""
        frame = call.frames[-1]
        if next(self._keys(call), None) is None:
            return True
        needed = required(self._schema(call, len(call.frames) - 1))
        usual = self._orders.get((tool_of(call), frame.path), needed)
        return bool(frame.path) and (usual is None or set(frame.keys or ()).issuperset(usual))


def tool_of(call: PartialJson) -> str | None:
    """The name of a call's tool, once it is complete."""
    return next((unquoted(text[1:-1]) for path, text in call.values if path == (NAME_KEY,)), None)


def required(schema: Schema) -> list[str] | None:
    """The keys that an object must have; None: not known."""
    keys = schema.get("required")
    if not isinstance(keys, Sequence) or isinstance(keys, str):
        return None
    return [each for each in islice(keys, MAX_KEYS) if isinstance(each, str)]


def resolved(schema: Any) -> Schema:
    """The schema, or the first usable alternative of ``anyOf`` or ``oneOf``; else an empty one."""
    for _ in range(MAX_DEPTH):
        if not isinstance(schema, Mapping):
            return {}
        choices = schema.get("anyOf") or schema.get("oneOf")
        if not isinstance(choices, Sequence) or not choices:
            return schema
        named = (each for each in islice(choices, MAX_ALTERNATIVES) if isinstance(each, Mapping))
        schema = next((each for each in named if each.get("type") != "null"), None)
    return {}


def json_text(value: Any) -> str | None:
    """The JSON text of a string, number, truth value or null; None: it has none or a long one."""
    try:
        text = json.dumps(value, allow_nan=False) if not isinstance(value, list | dict) else ""
    except (TypeError, ValueError):
        return None
    return text if 0 < len(text) <= MAX_VALUE_CHARACTERS else None
