"""Building a corpus: from documents to the sections of its file.

The suffix array is built over the reversed text, so that it sorts places by the text before them.
libdivsufsort sorts bytes. Token ids are therefore first renumbered among those that occur, as two
big-endian bytes where there are fewer than 65536. Of the sorted suffixes, only those that begin at
a token are kept.

Peak memory of the arrays for N tokens: 18 N bytes with fewer than 65536 different ids, else 25 N.
From 2 ** 31 bytes on (2 ** 30 or 2 ** 30 * 2 / 3 tokens) it is 26 N and 37 N. Measured for the
whole process: 19 N at 100 million tokens and 29 N at 10 million.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ngramspec._native import store_corpus
from ngramspec._native.store_corpus import STRIDE
from ngramspec.draft import Int32
from ngramspec.stores.base import encode

MAX_TOKEN_ID = (1 << 21) - 2  # three tokens share 64 bits of a key
MAX_CODES = (1 << 31) - 1
NARROW_IDS = (1 << 16) - 1  # ids below it take two bytes
SEPARATOR = store_corpus.SEPARATOR_CODE
CHUNK_TOKENS = 1 << 22

Sections = list[list[Any]]
Progress = Callable[[str], None]


def gather(documents: Iterable[Any], tokenizer: Any) -> tuple[Int32, int]:
    """The text as codes, with a separator before and after each document; number of documents.

    Empty documents are left out. An invalid document raises a TypeError or ValueError with its
    index.
    """
    border = np.array([SEPARATOR], np.int32)
    parts, total = [border], 1
    for index, document in enumerate(documents):
        tokens = tokens_of(document, index, tokenizer)
        if len(tokens):
            parts += [tokens, border]
            total += len(tokens) + 1
        if total > MAX_CODES:
            raise ValueError(f"a corpus has at most {MAX_CODES} tokens and separators")
    return np.concatenate(parts), len(parts) // 2


def tokens_of(document: Any, index: int, tokenizer: Any) -> Int32:
    """A document's token ids, checked."""
    where = f"documents[{index}]"
    if isinstance(document, str):
        if tokenizer is None:
            raise TypeError(f"{where} is text: pass tokenizer=, or token ids as an int32 array")
        return np.array(encode(tokenizer, document), np.int32)
    if (
        not isinstance(document, np.ndarray)
        or document.ndim != 1
        or document.dtype.kind not in "iu"
    ):
        raise TypeError(
            f"{where} must be a text or a one-dimensional integer array, got"
            f" {getattr(document, 'dtype', type(document).__name__)}"
        )
    if len(document) and not 0 <= int(document.min()) <= int(document.max()) <= MAX_TOKEN_ID:
        raise ValueError(
            f"{where}: token ids must be in 0..{MAX_TOKEN_ID}, got {document.min()}"
            f"..{document.max()}"
        )
    return np.ascontiguousarray(document, np.int32)


def sections_of(text: Int32, largest: int, progress: Progress) -> Sections:
    """The sections of a corpus: text, places and keys, as parts to be written."""
    width = 2 if largest < NARROW_IDS else 3
    progress("sorting")
    places = sorted_places(text)
    progress("keys")
    level = store_corpus.keys(text, places, width, STRIDE)
    levels = []
    while len(places) > STRIDE and len(level):
        levels.append(level)
        if len(level) <= STRIDE:
            break
        level = np.ascontiguousarray(level[::STRIDE])
    return [packed(text, width), [places], levels]


def sorted_places(text: Int32) -> NDArray[np.uint32]:
    """The places of a text sorted by the reversed text before them: uint32 (m,)."""
    content, each = sortable(text)
    try:
        from pydivsufsort import divsufsort
    except ImportError as error:
        raise ImportError(
            "building a corpus needs pydivsufsort: pip install pydivsufsort"
        ) from error
    order = divsufsort(content)
    places = np.empty(len(text), np.uint32)
    borders = text == SEPARATOR
    count = 0
    for begin in range(0, len(order), CHUNK_TOKENS):
        chunk = order[begin : begin + CHUNK_TOKENS]
        chunk = chunk[chunk % each == 0] // each
        chunk = len(text) - chunk[chunk > 0]  # the last place is after the text
        chunk = chunk[~(borders[chunk - 1] | borders[chunk])]
        places[count : count + len(chunk)] = chunk
        count += len(chunk)
    return places[:count]


def sortable(text: Int32) -> tuple[NDArray[np.uint8], int]:
    """The reversed text as bytes that sort like its codes, and the number of bytes per code."""
    tokens = text != SEPARATOR
    used = np.zeros(int(text[tokens].max(initial=0)) + 1, bool)
    used[text[tokens]] = True
    number = (np.cumsum(used) - 1).astype(np.uint32)
    most = int(number[-1]) + 1  # the separator's number, above all tokens'
    each = 1 if most < 1 << 8 else 2 if most < 1 << 16 else 3
    codes = np.full(len(text), most, ">u4" if each == 3 else f">u{each}")
    codes[tokens] = number[text[tokens]]
    content = np.ascontiguousarray(codes[::-1]).view(np.uint8)
    return (content.reshape(-1, 4)[:, 1:].ravel() if each == 3 else content), each


def packed(codes: Int32, width: int) -> list[Any]:
    """Codes in ``width`` bytes each; the separator has the largest value of that width."""
    parts = []
    for begin in range(0, len(codes), CHUNK_TOKENS):
        chunk = codes[begin : begin + CHUNK_TOKENS].astype("<u4" if width == 3 else "<u2")
        if width == 3:
            chunk = np.ascontiguousarray(chunk.view(np.uint8).reshape(-1, 4)[:, :3])
        parts.append(chunk)
    return parts
