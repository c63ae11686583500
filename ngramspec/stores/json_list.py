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
    text, at, before, end = "", 0, "[", "[]"
    while True:
        while len(text) - at < longest + len(", ") and (chunk := next(chunks, None)) is not None:
            text, at = text[at:] + chunk.decode("ascii"), 0
        if text[at : at + 3] == end:
            return
        if not text.startswith(before, at):
            raise ValueError(f"{before!r} is missing before an element")
        at += len(before)
        try:
            element, size = decode(text[at : at + longest])
        except RecursionError as error:
            raise ValueError("an element is nested too deeply") from error
        at += size
        yield element
        before, end = ", ", "]"
