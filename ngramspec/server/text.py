"""From tokens to the text that a client may see: whole characters, cut at stop strings."""

from __future__ import annotations

from collections.abc import Container, Sequence
from typing import Any

UNFINISHED = "�"  # what an incomplete character decodes to
CONTEXT = 8  # tokens before the new ones that are decoded with them: tokenizers join words


class Detokenizer:
    """Decodes a growing sequence of tokens piece by piece.

    Args:
        tokenizer: of the model.
        prompt: the tokens before; only the last few matter.
        hidden: ids of tokens that are not shown; None: the special ones.
    """

    def __init__(
        self, tokenizer: Any, prompt: Sequence[int], *, hidden: Container[int] | None = None
    ) -> None:
        self._tokenizer, self._hidden = tokenizer, hidden
        self._tokens = list(prompt[-CONTEXT:])
        self._start, self._read = 0, len(self._tokens)

    def add(self, tokens: Sequence[int], *, last: bool = False) -> str:
        """The text that tokens add, without a character that is not complete yet.

        Args:
            tokens: the next ones.
            last: whether no more will come: then nothing is held back.
        """
        self._tokens += tokens
        before = self._decode(self._tokens[self._start : self._read])
        whole = self._decode(self._tokens[self._start :])
        if whole.endswith(UNFINISHED) and not last:
            return ""
        if len(self._tokens) - self._read:
            self._start, self._read = max(self._read - CONTEXT, self._start), len(self._tokens)
        return whole[len(before) :]

    def _decode(self, tokens: list[int]) -> str:
        hidden = self._hidden
        if hidden is not None:
            tokens = [token for token in tokens if token not in hidden]
        text: str = self._tokenizer.decode(tokens, skip_special_tokens=hidden is None)
        return text


class StopText:
    """Cuts a growing text before the first stop string, or at a line that is indented too little.

    Args:
        stops: the stop strings; none is empty.
        indent: least leading whitespace of every line after the first that is not blank.

    Attributes:
        found: the stop string that was found; "" for a line; None: none was.
    """

    def __init__(self, stops: Sequence[str], indent: int = 0) -> None:
        self._stops, self._indent = tuple(stops), indent
        self._text, self._shown = "", 0
        self.found: str | None = None

    def add(self, text: str, *, last: bool = False) -> str:
        """What may be shown of the text so far and was not yet.

        Text that may be the beginning of a stop string is held back until it is clear, or the last.
        """
        if self.found is not None:
            return ""
        searched = max(self._shown - max(map(len, self._stops), default=0), 0)
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
        """Where the stop begins that is complete first; as if the text came letter by letter."""
        found = ((self._text.find(stop, start), stop) for stop in self._stops)
        places = [(at + len(stop), at, stop) for at, stop in found if at >= 0]
        line = self._outdented()
        places += [(line, line, "")] if line >= 0 else []
        _, at, self.found = min(places, default=(-1, -1, None))
        return at

    def _outdented(self) -> int:
        """Where the line end before the first line that is indented too little is, or -1."""
        if not self._indent:
            return -1
        at = self._text.find("\n")
        while at >= 0:
            line, ended, _ = self._text[at + 1 :].partition("\n")
            bare = line.lstrip(" \t")
            if bare and len(line) - len(bare) < self._indent:
                return at
            at = at + 1 + len(line) if ended else -1
        return -1

    def _held(self) -> int:
        """How many characters at the end may belong to a stop."""
        longest = max(map(len, self._stops), default=0)
        for count in range(min(longest - 1, len(self._text)), 0, -1):
            if any(stop.startswith(self._text[-count:]) for stop in self._stops):
                break
        else:
            count = 0
        if self._indent:
            line = self._text.rfind("\n")
            if line >= 0 and not self._text[line + 1 :].strip(" \t"):
                count = max(count, len(self._text) - line)
        return count
