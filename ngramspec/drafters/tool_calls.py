"""Tool calls without a grammar: after a call's opening, the tools' schemas predict its tokens.

The predictions are candidates for the value engine, like those of a drafting head. A wrong one
costs a position; the text does not depend on them.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np

from ngramspec.draft import NO_TOKENS, Float32, Int32
from ngramspec.drafters.partial_json import MAX_DEPTH, Frame, PartialJson, unquoted
from ngramspec.stores import encode, vocabulary_of

logger = logging.getLogger("ngramspec")

OPEN, CLOSE = "<tool_call>", "</tool_call>"  # around the JSON object of a call
OPENING_TOKENS = 16  # last tokens in which an opening is searched
MAX_CALL_TOKENS = 4096  # of a call that is read; a longer one is not predicted
MAX_READ_TOKENS, MAX_READ_CHARACTERS = 1 << 14, 1 << 16  # of a prompt's end: bound its time
CONTEXT_TOKENS = 256  # of a call, which are encoded with a continuation: bound its time
MAX_PREDICTED_TOKENS = 64
# Probabilities until the calibration has corrected them: of the first predicted token, of that of a
# value, and of a token after the first.
CERTAIN, LIKELIEST, FURTHER = 0.98, 0.55, 0.98
NAME_KEY, ARGUMENT_KEYS = "name", ("arguments", "parameters")
MAX_TOOLS = 256
MAX_SCHEMA_CHARACTERS = 1 << 15  # of a tool's name and schema; a larger tool is not predicted
MAX_LISTED_VALUES = 64  # of an argument that are predicted, because all are read in each step
MAX_PREDICTED_CHARACTERS = 400  # of one continuation
LITERALS = {"boolean": ("false", "true"), "null": ("null",)}
Schema = Mapping[str, Any]


class CallFormat:
    """A tokenizer, and how calls open in its tokens."""

    def __init__(self, tokenizer: Any) -> None:
        self.tokenizer = tokenizer
        self.ends = frozenset(  # ids of pieces with which an opening can end
            number
            for piece, number in vocabulary_of(tokenizer).items()
            if OPEN[-1] in (piece if isinstance(piece, str) else piece.decode("latin-1"))
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
        self._text = CallText(tools)
        self._recent: list[int] = tokens[-OPENING_TOKENS:].tolist()  # while no call is open
        self._call: list[int] = []  # tokens since the opening, which is among them
        self._from, self._known = 0, ""  # where its last tokens begin, and their text that was read
        self._reader: PartialJson | None = None
        self._path: list[int] = []  # predicted tokens still to come
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
            if self._reader is not None:
                self._read_on()

    def predict(self, limit: int) -> tuple[Int32, Float32]:
        """At most ``limit`` next tokens and their log-probabilities, (n,) each."""
        if self._reader is not None:
            with self._guarded():
                self._path = self._path or self._tokens(self._text.after(self._reader))
                tokens = np.array(self._path[: min(limit, MAX_PREDICTED_TOKENS)], np.int32)
                probs = np.full(len(tokens), FURTHER)
                probs[:1] = LIKELIEST if self._text.chooses(self._reader) else CERTAIN
                return tokens, np.log(probs).astype(np.float32)
        return NO_TOKENS, np.empty(0, np.float32)

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
        for part in text.split(OPEN)[1:]:
            call, closes, _ = part.partition(CLOSE)
            reader = PartialJson().read(call + closes)
            if closes and reader.state == "done":
                self._text.learn(reader)

    def _extend(self, token: int) -> None:
        if self._reader is not None:
            self._call.append(token)
            self._path = self._path[1:] if self._path[:1] == [token] else []
            if token not in self._calls.ends:
                return
            self._read_on()  # the call may end here, or be none
            if self._reader is not None:
                return
        else:
            self._recent = [*self._recent, token][-OPENING_TOKENS:]
        if token in self._calls.ends:
            before, opens, after = self._calls.text(self._recent).rpartition(OPEN)
            if opens and len(after) < len(self._calls.text(self._recent[-1:])):
                self._call, self._path = list(self._recent), []
                self._from, self._known = 0, before + OPEN
                self._reader = PartialJson()

    def _read_on(self) -> None:
        """Read what the open call has in addition, of which only the last tokens are decoded."""
        assert self._reader is not None
        self._recent = self._call[-OPENING_TOKENS:]
        text, known = self._whole_text(), self._known
        new = text[len(known) :]
        again = OPEN in known[1 - len(OPEN) :] + new
        if not text.startswith(known) or again or len(self._call) > MAX_CALL_TOKENS:
            self._reader = None
            return
        self._reader.read(new)
        self._known = text
        if len(self._call) - self._from > 2 * OPENING_TOKENS:
            self._from = len(self._call) - OPENING_TOKENS
            self._known = self._whole_text()
        if self._reader.state == "invalid":
            self._reader = None
        elif self._reader.state == "done" and CLOSE in self._reader.space:
            self._text.learn(self._reader)
            self._reader = None

    def _whole_text(self) -> str:
        """The text of the last tokens, without a character whose rest is to come."""
        return self._calls.text(self._call[self._from :]).rstrip("\ufffd")

    def _tokens(self, text: str) -> list[int]:
        """The tokens of a continuation, as the tokenizer splits it after the call if that fits."""
        if not text:
            return []
        tokenizer, before = self._calls.tokenizer, self._calls.text(self._call[-CONTEXT_TOKENS:])
        if len(self._call) <= CONTEXT_TOKENS:
            before = OPEN + before.rpartition(OPEN)[2]
        begun, whole = encode(tokenizer, before), encode(tokenizer, before + text)
        if whole[: len(begun)] == begun and self._call[-len(begun) :] == begun:
            return whole[len(begun) :]
        return encode(tokenizer, text)


class CallText:
    """Predicts the text of calls of a request's tools, and learns from finished calls."""

    def __init__(self, tools: Sequence[Any]) -> None:
        self.tools: dict[str, Schema] = {}  # by name: schemas of the arguments; the last used first
        for tool in tools[:MAX_TOOLS]:
            function = tool.get("function", tool) if isinstance(tool, Mapping) else {}
            name: Any = function.get("name") if isinstance(function, Mapping) else None
            schema = function.get("parameters") if isinstance(function, Mapping) else None
            if isinstance(name, str) and is_short([name, schema]):
                self.tools[name] = resolved(schema)
        self._ending = "\n" + CLOSE
        self._style = {"": "\n", ":": " ", ",": " "}

    def learn(self, call: PartialJson) -> None:
        """Learn the style and the tool of a finished call."""
        tool = tool_of(call)
        if tool is None or tool not in self.tools:
            return
        self._style |= call.style
        space, closes, _ = call.space.partition(CLOSE)
        if closes and not space.strip():
            self._ending = space + closes
        self.tools = {tool: self.tools[tool]} | self.tools

    def after(self, call: PartialJson) -> str:
        """The likeliest text that comes next; empty where nothing is known."""
        frames = [Frame(x.path, None if x.keys is None else [*x.keys]) for x in call.frames]
        call = replace(call, frames=frames, style={}, values={**call.values})
        text = ""
        while len(text) < MAX_PREDICTED_CHARACTERS:
            if call.state == "scalar" and call.partial in self._known(call):
                call.read(" ")  # the value ends here
            piece = self._piece(call)
            text += piece
            if not piece or call.read(piece).state == "string":  # of a string whose text is unknown
                break
        return text[:MAX_PREDICTED_CHARACTERS]

    def chooses(self, call: PartialJson) -> bool:
        """Whether the model chooses a value here."""
        return call.state in ("string", "scalar", "value") and bool(call.frames)

    def _piece(self, call: PartialJson) -> str:
        """The next key, value or punctuation."""
        state, frame = call.state, call.frames[-1] if call.frames else None
        if state == "done":
            known = self._ending.startswith(call.space)
            return self._ending[len(call.space) :] if known else ""
        if state in ("string", "scalar", "keytext"):
            begun = '"' * (state != "scalar") + call.partial
            texts = self._keys(call) if state == "keytext" else self._known(call)
            return next((each[len(begun) :] for each in texts if each.startswith(begun)), "")
        if state == "colon":
            return ":" + self._style[":"] + self._begun(call)
        if state == "after" and frame is not None:
            if frame.keys is None:
                return "]"
            key = "" if self._may_end(call) else next(self._keys(call), "")
            return "," + self._style[","] + key if key else "}"
        usual = self._style.get(call.last, "")
        if state not in ("key", "value") or not usual.startswith(call.space):
            return ""  # there is more white space than usual
        text = self._begun(call) if state == "value" else next(self._keys(call), "")
        return usual[len(call.space) :] + text if text else ""

    def _begun(self, call: PartialJson) -> str:
        """The beginning of the value that is expected."""
        known, schema = self._known(call), self._schema(call, len(call.frames))
        kind = schema.get("type") if len(call.frames) < MAX_DEPTH else None
        if known:
            return known[0]
        if kind == "array":
            return "["
        if kind != "object":
            return '"' if schema.get("type") == "string" and "enum" not in schema else ""
        inside = replace(call, frames=[*call.frames, Frame(call.path, [])])
        return "{" + next(self._keys(inside), "}")

    def _known(self, call: PartialJson) -> list[str]:
        """JSON texts of the values that the tools' names or an argument's schema list."""
        if call.path == (NAME_KEY,):
            return list(map(json.dumps, self.tools))
        schema = self._schema(call, len(call.frames))
        listed = [schema["const"]] if "const" in schema else schema.get("enum")
        if not isinstance(listed, Sequence) or isinstance(listed, str):
            listed = ()
        listed = listed[:MAX_LISTED_VALUES]
        texts = [json.dumps(each) for each in listed if not isinstance(each, list | dict)]
        return texts or [*LITERALS.get(str(schema.get("type")), ())]

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
        """JSON texts of the keys that the open object may have next, needed ones first."""
        frame = call.frames[-1]
        written = set(frame.keys or ())
        if not frame.path:
            keys = (NAME_KEY,) if written.intersection(ARGUMENT_KEYS) else (NAME_KEY, "arguments")
            yield from (json.dumps(key) for key in keys if key not in written)
            return
        schema = self._schema(call, len(call.frames) - 1)
        properties, needed = schema.get("properties"), required(schema)
        known = properties if isinstance(properties, Mapping) else {}
        for must in (True, False):
            for key in known:
                if key not in written and (key in needed) is must:
                    yield json.dumps(key)

    def _may_end(self, call: PartialJson) -> bool:
        """Whether the last frame, an object, has all that it must have."""
        frame = call.frames[-1]
        needed = required(self._schema(call, len(call.frames) - 1))
        return bool(frame.path) and needed.issubset(frame.keys or ())


def tool_of(call: PartialJson) -> str | None:
    """The name of a call's tool, once it is complete."""
    text = call.values.get((NAME_KEY,))
    return None if text is None else unquoted(text[1:-1])


def required(schema: Schema) -> frozenset[str]:
    """The keys that an object must have."""
    keys = schema.get("required")
    if not isinstance(keys, Sequence) or isinstance(keys, str):
        return frozenset()
    return frozenset(each for each in keys if isinstance(each, str))


def resolved(schema: Any) -> Schema:
    """The schema, or the first usable alternative of ``anyOf`` or ``oneOf``; else an empty one."""
    while isinstance(schema, Mapping):
        choices = schema.get("anyOf") or schema.get("oneOf")
        if not isinstance(choices, Sequence) or not choices:
            return schema
        named = (each for each in choices if isinstance(each, Mapping))
        schema = next((each for each in named if each.get("type") != "null"), None)
    return {}


def is_short(value: Any) -> bool:
    """Whether a value is JSON of at most ``MAX_SCHEMA_CHARACTERS`` characters."""
    try:
        return len(json.dumps(value, allow_nan=False)) <= MAX_SCHEMA_CHARACTERS
    except (TypeError, ValueError, RecursionError):
        return False
