"""A shared store's file: the text of its namespaces; what finds it is made anew.

    text    the codes of all namespaces: token ids, a border before each document
    names   JSON: for each namespace, the one used longest ago first: its name, its codes, and the
            counts of its statistics

Everything in a file is checked before it is used, and it decides nothing about memory.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ngramspec._native.store_ring import BORDER, StoreRing
from ngramspec._native.store_stream import StoreStream
from ngramspec.draft import Int32
from ngramspec.stores.file_format import (
    FileKind,
    StoreFileError,
    check_checksums,
    map_file,
    read_header,
    write_file,
)

logger = logging.getLogger("ngramspec")

KIND = FileKind(
    magic=b"\x89NGS\r\n\x1a\n",
    name="ngramspec shared store",
    version=1,
    fields="QII32s",
    sections=("text", "names"),  # the last one is never empty
)
COUNTS = 4  # tokens ever, look-ups, hits, accepted tokens
MOST_COUNT = 1 << 62
MOST_NAMES = 1 << 26  # bytes of JSON that are read


@dataclass(frozen=True, slots=True)
class Header:
    """A store's settings.

    Attributes:
        namespace_bytes: of each namespace.
        write: what requests add, by its place among SharedStore's choices.
        live: 1 if they add while they run, else 0.
        tokenizer: its fingerprint; empty: not known.
    """

    namespace_bytes: int
    write: int
    live: int
    tokenizer: str


@dataclass(frozen=True, slots=True)
class Saved:
    """A namespace in a file: its name, its codes int32 (n,), and its counts."""

    name: str
    codes: Int32
    counts: tuple[int, ...]


def save(path: Path, header: Header, rings: Mapping[str, StoreRing]) -> None:
    """Write namespaces; the lock of each is held for a bounded number of codes at a time."""
    names: list[Any] = []
    parts: list[Int32] = []
    for name, ring in rings.items():
        pieces = pieces_of(ring)
        names.append([name, sum(map(len, pieces)), *ring.counts()[1:]])
        parts += pieces
    fields = (
        header.namespace_bytes,
        header.write,
        header.live,
        bytes.fromhex(header.tokenizer) if header.tokenizer else bytes(32),
    )
    text = [part.astype("<i4", copy=False) for part in parts]
    write_file(path, KIND, fields, [text, [json.dumps(names).encode()]])


def pieces_of(ring: StoreRing) -> list[Int32]:
    """The codes of a namespace, in order, in pieces."""
    pieces: list[Int32] = []
    at = end = 0
    while True:
        at, codes = ring.codes(at)
        if not len(codes):
            return pieces
        if at > end and pieces:  # what lay between was overwritten meanwhile
            pieces.append(np.array([BORDER], np.int32))
        pieces.append(codes)
        at = end = at + len(codes)


def load(path: Path) -> tuple[Header, list[Saved]]:
    """The settings and the namespaces of a file, checked.

    Raises:
        OSError: it cannot be read.
        StoreFileError: it is no shared store, or broken.
    """
    content = map_file(path)
    fields, sections = read_header(path, KIND, content)
    check_checksums(path, KIND, content, sections)
    namespace_bytes, write, live, known = fields
    if namespace_bytes < 1 or write > 2 or live > 1:
        raise StoreFileError(f"{path} has broken settings: {namespace_bytes}, {write}, {live}")
    header = Header(namespace_bytes, write, live, known.hex() if any(known) else "")
    text, names = sections
    if names.size > MOST_NAMES:
        raise StoreFileError(f"{path}: section names has {names.size} bytes, at most {MOST_NAMES}")
    if text.size % 4:
        raise StoreFileError(f"{path}: section text has {text.size} bytes, no multiple of 4")
    codes = np.frombuffer(content, "<i4", text.size // 4, text.offset)
    if codes.size and int(codes.min()) < 0:
        raise StoreFileError(f"{path}: section text has a negative token id")
    found = _names(path, content[names.offset : names.offset + names.size], len(codes))
    ends = np.cumsum([entry[1] for entry in found], dtype=np.int64).tolist()
    return header, [
        Saved(entry[0], codes[end - entry[1] : end], tuple(entry[2:]))
        for entry, end in zip(found, ends, strict=True)
    ]


def _names(path: Path, content: bytes, codes: int) -> list[list[Any]]:
    """The entries of the first section, each what it should be, and as many codes as there are."""
    try:
        names = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise StoreFileError(f"{path}: section names is broken: {error}") from error
    if not isinstance(names, list) or not all(map(_is_entry, names)):
        raise StoreFileError(f"{path}: section names is broken: it holds no list of namespaces")
    if len({entry[0] for entry in names}) < len(names):
        raise StoreFileError(f"{path}: section names is broken: it has a name twice")
    if sum(entry[1] for entry in names) != codes:
        raise StoreFileError(f"{path}: section names is broken: it is not of {codes} codes")
    return names


def _is_entry(entry: Any) -> bool:
    """Whether this is a namespace: its name, its codes, its counts."""
    if not isinstance(entry, list) or len(entry) != 2 + COUNTS:
        return False
    name, *counts = entry
    named = isinstance(name, str) and 1 <= len(name) <= 256
    return named and all(type(each) is int and 0 <= each < MOST_COUNT for each in counts)


def restore(
    path: Path, saved: Sequence[Saved], ring_of: Callable[[str], StoreRing], most: int
) -> None:
    """Add saved namespaces to a store, as far as they fit.

    Args:
        path: of the file, for messages.
        saved: the namespaces, the one used longest ago first.
        ring_of: a namespace's text, by its name.
        most: namespaces at most.
    """
    left_out = sum(len(each.codes) for each in saved[:-most])
    for each in saved[-most:]:
        ring = ring_of(each.name)
        codes = each.codes[-ring.capacity + 1 :]
        left_out += len(each.codes) - len(codes)
        borders = np.flatnonzero(codes == BORDER)
        for document in np.split(codes, borders):
            tokens = document[document != BORDER]
            if len(tokens):
                stream = StoreStream(ring)
                stream.append(np.ascontiguousarray(tokens, np.int32))
                stream.finish()
        ring.count_on(each.counts)
    if left_out:
        logger.warning("%s: %d tokens do not fit into the store and are left out", path, left_out)
