"""Tool calls without a grammar: after a call's opening, the tools' schemas predict its tokens.

The predictions are rows of candidates for the value engine, like those of a drafting head. A wrong
one costs a position; the text does not depend on them.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ngramspec.draft import Float32, Int32
from ngramspec.drafters.call_reader import CallReader
from ngramspec.drafters.call_text import CallText
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
Row = tuple[Int32, Float32]


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

    def encode(self, text: str) -> list[int]:
        """The tokens of a text."""
        return encode(self.tokenizer, text)


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
        """Predictions for one sequence, which begin with the style of calls in its prompt.

        ``tokens`` are the prompt's, int32 (n,).
        """
        return CallPredictor(self.tools, self.format, tokens)

    def __deepcopy__(self, memo: dict[int, Any]) -> ToolCalls:
        return self


class CallPredictor:
    """Reads one sequence's calls, and predicts the tokens of the one that is open."""

    def __init__(self, tools: Sequence[Any], calls: CallFormat, tokens: Int32) -> None:
        self._calls = calls
        self._text = CallText(tools, calls.closes)
        self._recent: list[int] = []  # while no call is open: the last tokens
        self._call: list[int] = []  # tokens since the opening, which is among them
        self._known = ""  # text of the open call that was read
        self._reader: CallReader | None = None
        self._paths: list[list[int]] = []  # predicted tokens still to come, the likeliest first
        self._broken = False
        self._read_prompt(tokens)

    @property
    def predicts(self) -> bool:
        """Whether a call is open."""
        return self._reader is not None

    def extend(self, tokens: Int32) -> None:
        """Read committed tokens, int32 (n,)."""
        if self._broken:
            return
        try:
            for token in tokens.tolist():
                self._extend(token)
        except Exception as error:
            self._fail(error)

    def rows(self, most: int) -> list[Row]:
        """Candidates for at most ``most`` positions, each after the first token of the one before.

        A row is (ids int32 (k,), log-probabilities float32 (k,)), the likeliest first.
        """
        if self._reader is None or most < 1:
            return []
        try:
            choice = self._text.chooses(self._reader)
            if choice or not self._paths:
                paths = map(self._tokens, self._text.after(self._reader))
                self._paths = [path for path in paths if path]
            return _rows(self._paths, choice, min(most, MAX_ROWS))
        except Exception as error:
            self._fail(error)
            return []

    def _fail(self, error: Exception) -> None:
        self._broken, self._reader = True, None
        kind = type(error).__name__  # the message can quote the text
        logger.warning("tool calls are no longer predicted after an error: %s", kind)

    def _read_prompt(self, tokens: Int32) -> None:
        """Learn from the calls in the prompt."""
        try:
            text = self._calls.text(tokens[-MAX_READ_TOKENS:].tolist())[-MAX_READ_CHARACTERS:]
            for part in text.split(self._calls.opens)[1:]:
                call, closes, _ = part.partition(self._calls.closes)
                reader = self._text.reader().read(call + closes)
                if closes and reader.state == "done":
                    self._text.learn(reader)
            self._recent = tokens[-OPENING_TOKENS:].tolist()
        except Exception as error:
            self._fail(error)

    def _extend(self, token: int) -> None:
        if self._reader is None:
            self._recent = [*self._recent, token][-OPENING_TOKENS:]
            if token in self._calls.ends:
                self._open()
            return
        self._call.append(token)
        self._paths = [each[1:] for each in self._paths if each[0] == token and len(each) > 1]
        self._read_on()

    def _open(self) -> None:
        """Begin to read a call if the last tokens open one."""
        _, opens, after = self._calls.text(self._recent).rpartition(self._calls.opens)
        if opens and len(after) < len(self._calls.text(self._recent[-1:])):
            self._call, self._known, self._paths = list(self._recent), "", []
            self._reader = self._text.reader()
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
        before = self._calls.opens + self._known
        if len(self._call) > CONTEXT_TOKENS:
            before = self._calls.text(self._call[-CONTEXT_TOKENS:])
        begun, whole = self._calls.encode(before), self._calls.encode(before + text)
        if whole[: len(begun)] == begun and self._call[-len(begun) :] == begun:
            return whole[len(begun) :]
        return self._calls.encode(text)


def _rows(paths: list[list[int]], choice: bool, most: int) -> list[Row]:
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
