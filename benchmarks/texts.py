"""Long texts to measure structures on: natural, and the worst cases."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import numpy as np

from ngramspec.draft import Int32
from ngramspec.measure.prompts import library

VOCAB = 49152
WORDS = re.compile(r"\w+|\n\s*|[^\w\s]")


def natural(n: int, path: Path | None = None) -> Int32:
    """``n`` tokens of a UTF-8 file, or of the source of Python's own library.

    A token is a word, a punctuation mark or a line's beginning, numbered as they first occur.

    Raises:
        OSError, UnicodeDecodeError: the file cannot be read.
        ValueError: it has fewer than ``n`` tokens.
    """
    ids: dict[str, int] = {}
    tokens: list[int] = []
    for text in [path.read_text(encoding="utf-8")] if path is not None else library():
        tokens += [ids.setdefault(word, len(ids)) for word in WORDS.findall(text)]
        if len(tokens) >= n:
            return np.array(tokens[:n], np.int32)
    raise ValueError(f"{path or 'the library'} has {len(tokens)} tokens, {n} are needed")


def _equal(n: int) -> Int32:
    return np.zeros(n, np.int32)


def _period_two(n: int) -> Int32:
    return (np.arange(n) % 2).astype(np.int32)


def _random(n: int) -> Int32:
    return np.random.default_rng(0).integers(0, VOCAB, n).astype(np.int32)


TEXTS: dict[str, Callable[[int], Int32]] = {
    "natural": natural,
    "all equal": _equal,
    "period two": _period_two,
    "random": _random,
}
