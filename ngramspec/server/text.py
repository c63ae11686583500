"""From tokens to visible text: whole characters, cut at stop strings."""

from __future__ import annotations

import re
from collections.abc import Container, Sequence
from functools import cached_property
from typing import Any

REPLACEMENT_CHARACTER = "�"  # an incomplete character decodes to it
CONTEXT_TOKENS = 8  # decoded together with new tokens, as decoding depends on neighbours; not tuned


class Detokenizer:
    """Decodes a growing sequence of tokens incrementally.

    Of the preceding tokens, ``prompt``, only the last few matter. Tokens with ``hidden`` ids, by
    default the special ones, are not shown.
    """

    def __init__(
        self, tokenizer: Any, prompt: Sequence[int], *, hidden: Container[int] | None = None
    ) -> None:
        self._tokenizer, self._hidden = tokenizer, hidden
        self._tokens = list(prompt[-CONTEXT_TOKENS:])
        self._start, self._read = 0, len(self._tokens)

    def add(self, tokens: Sequence[int], *, last: bool = False) -> str:
        """The text that the next tokens add, without an incomplete character unless ``last``."""
        text = self.peek(tokens)
        self._tokens += tokens
        if text.endswith(REPLACEMENT_CHARACTER) and not last:
            return ""
        if self._read < len(self._tokens):
            self._start = max(self._read - CONTEXT_TOKENS, self._start)
            self._read = len(self._tokens)
        return text

    def peek(self, tokens: Sequence[int]) -> str:
        """The text that these tokens would add, with an incomplete character."""
        before = self._decode(self._tokens[self._start : self._read])
        return self._decode([*self._tokens[self._start :], *tokens])[len(before) :]

    def _decode(self, tokens: list[int]) -> str:
        hidden = self._hidden
        if hidden is not None:
            tokens = [token for token in tokens if token not in hidden]
        text: str = self._tokenizer.decode(tokens, skip_special_tokens=hidden is None)
        return text


class BegunStop:
    """How much of a stop string a growing text ends with (Knuth, Morris and Pratt).

    ``count`` is the length of the longest end of the text that the stop string, which is not empty,
    begins with. Each character takes constant time, amortized.
    """

    def __init__(self, stop: str) -> None:
        self._stop, self.count = stop, 0
        self._borders: list[int] = [0]  # of each beginning, without the whole of it
        for letter in stop[1:]:
            self.add(letter)
            self._borders.append(self.count)
        self.count = 0

    def add(self, text: str) -> int | None:
        """Add text up to the first end of the stop string, and return this place in it, if any."""
        stop, borders, count = self._stop, self._borders, self.count
        for at, letter in enumerate(text, 1):
            while count and (count == len(stop) or stop[count] != letter):
                count = borders[count - 1]
            count += stop[count] == letter
            if count == len(stop):
                self.count = count
                return at
        self.count = count
        return None


class StopText:
    """Cuts a growing text before the first stop string or insufficiently indented line.

    No stop string is empty. ``indent`` is the minimum leading whitespace of every non-blank line
    after the first, in characters. ``found`` is the stop string that was found, "" for a line, or
    None if nothing was found.
    """

    def __init__(self, stops: Sequence[str], indent: int = 0) -> None:
        self._stops = tuple(stops)
        self._outdented = re.compile(rf"\n[ \t]{{0,{indent - 1}}}[^ \t\n]") if indent else None
        self._text, self._shown = "", 0
        self.found: str | None = None

    @cached_property
    def _begun(self) -> list[BegunStop]:
        return [BegunStop(each) for each in self._stops]

    def add(self, text: str, *, last: bool = False) -> str:
        """Add text, and return what becomes visible.

        Text that may begin a stop string is held back until this is decided or ``last`` is true.
        """
        if self.found is not None:
            return ""
        before = len(self._text)
        self._text += text
        places = []  # end, start and string of each stop: the first to end wins
        for stop, begun in zip(self._stops, self._begun, strict=True):
            at = begun.add(text)
            if at is not None:
                places.append((before + at, before + at - len(stop), stop))
        if self._outdented and (line := self._outdented.search(self._text, self._shown)):
            places.append((line.start(), line.start(), ""))
        if places:
            _, end, self.found = min(places)
        else:
            end = len(self._text) - (0 if last else self._held())
        shown = self._text[self._shown : end]
        self._shown = max(self._shown, end)
        return shown

    @property
    def has_line(self) -> bool:
        """Whether the text has a line end."""
        return "\n" in self._text

    def _held(self) -> int:
        """Number of characters at the end that may belong to a stop."""
        count = max((each.count for each in self._begun), default=0)
        line = self._text.rfind("\n")
        if self._outdented and line >= 0 and not self._text[line + 1 :].strip(" \t"):
            count = max(count, len(self._text) - line)
        return count
