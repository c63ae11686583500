"""Reading a JSON list one element at a time."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any


def elements_of(chunks: Iterator[bytes], longest: int) -> Iterator[Any]:
    """The elements of a list in the format of ``json.dumps``, from pieces of its text.

    Memory: one chunk and one element, regardless of the length of the list. A ValueError is raised
    if the text is not such a list, or an element has more than ``longest`` characters.
    """
    decode = json.JSONDecoder().raw_decode
    text = _Text(chunks)
    if text.ahead(3) == "[]":
        return
    before = "["
    while text.ahead(2) != "]":
        if text.ahead(len(before)) != before:
            raise ValueError(f"{before!r} is missing before an element")
        text.skip(len(before))
        try:
            element, size = decode(text.ahead(longest))
        except RecursionError as error:
            raise ValueError("an element is nested too deeply") from error
        text.skip(size)
        yield element
        before = ", "


class _Text:
    """ASCII text that is read on demand."""

    def __init__(self, chunks: Iterator[bytes]) -> None:
        self._chunks = chunks
        self._text, self._at = "", 0

    def ahead(self, count: int) -> str:
        """The next characters; fewer at the end of the text."""
        while len(self._text) - self._at < count:
            chunk = next(self._chunks, None)
            if chunk is None:
                break
            self._text, self._at = self._text[self._at :] + chunk.decode("ascii"), 0
        return self._text[self._at : self._at + count]

    def skip(self, count: int) -> None:
        """Skip characters that ``ahead`` returned."""
        self._at += count
