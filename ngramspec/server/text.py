"""From tokens to visible text: whole characters, cut at stop strings."""

from __future__ import annotations

from collections.abc import Container, Sequence
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

    def add(self, text: str) -> None:
        """Add text."""
        stop, borders, count = self._stop, self._borders, self.count
        for letter in text:
            while count and (count == len(stop) or stop[count] != letter):
                count = borders[count - 1]
            count += stop[count] == letter
        self.count = count


class StopText:
    """Cuts a growing text before the first stop string or insufficiently indented line.

    Args:
        stops: the stop strings, none of them empty.
        indent: minimum leading whitespace of every non-blank line after the first, in characters.

    Attributes:
        found: the stop string that was found; "" for a line; None: nothing was found.
    """

    def __init__(self, stops: Sequence[str], indent: int = 0) -> None:
        self._stops, self._indent = tuple(stops), indent
        self._longest = max(map(len, stops), default=0)
        self._begun: list[BegunStop] | None = None  # made when the first text is added
        self._text, self._shown = "", 0
        self.found: str | None = None

    def add(self, text: str, *, last: bool = False) -> str:
        """Add text, and return what becomes visible.

        Text that may begin a stop string is held back until this is decided or ``last`` is true.
        """
        if self.found is not None:
            return ""
        if self._begun is None:
            self._begun = [BegunStop(each) for each in self._stops]
        for each in self._begun:
            each.add(text)
        searched = max(self._shown - self._longest, 0)
        self._text += text
        end = self._first_stop(searched)
        if self.found is None:
            end = len(self._text) - (0 if last else self._held())
        shown = self._text[self._shown : end]
        self._shown = max(self._shown, end)
        return shown

    @property
    def has_line(self) -> bool:
        """Whether the text has a line end."""
        return "\n" in self._text

    def _first_stop(self, start: int) -> int:
        """Start of the first stop that is complete, independent of how the text is split."""
        found = ((self._text.find(stop, start), stop) for stop in self._stops)
        places = [(at + len(stop), at, stop) for at, stop in found if at >= 0]
        line = self._outdented()
        places += [(line, line, "")] if line >= 0 else []
        _, at, self.found = min(places, default=(-1, -1, None))
        return at

    def _outdented(self) -> int:
        """Position of the line end before the first insufficiently indented line, or -1."""
        if not self._indent:
            return -1
        at = self._text.find("\n")
        while at >= 0:
            end = self._text.find("\n", at + 1)
            line = self._text[at + 1 : end if end >= 0 else None]
            bare = line.lstrip(" \t")
            if bare and len(line) - len(bare) < self._indent:
                return at
            at = end
        return -1

    def _held(self) -> int:
        """Number of characters at the end that may belong to a stop."""
        count = max((each.count for each in self._begun or ()), default=0)
        if self._indent:
            line = self._text.rfind("\n")
            if line >= 0 and not self._text[line + 1 :].strip(" \t"):
                count = max(count, len(self._text) - line)
        return count
