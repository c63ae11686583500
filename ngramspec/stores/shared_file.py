"""The file of a shared store: the text of its namespaces. Indexes are rebuilt on loading.

    text    the codes of all namespaces: token ids, and a border before each document
    names   a line of JSON for each namespace, least recently used first: its name, its number of
            codes, and the counts of its statistics

A file does not decide how much memory is allocated: section sizes are checked before reading,
sections are read in pieces, and their content is checked before use.
"""

from __future__ import annotations

import json
import logging
import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from ngramspec._native.store_ring import BORDER, BYTES_PER_CODE, StoreRing, StoreStream
from ngramspec.draft import Int32
from ngramspec.stores.files import (
    FileKind,
    StoreFileError,
    check_checksums,
    chunks_of,
    read_header,
    write_file,
)

logger = logging.getLogger("ngramspec")

KIND = FileKind(
    magic=b"\x89NGS\r\n\x1a\n",
    name="ngramspec shared store",
    version=2,
    fields="QII32s",
    sections=("text", "names"),
)
COUNTS_PER_ENTRY = 4  # tokens ever, look-ups, hits, accepted tokens
MAX_COUNT = 1 << 62
MAX_NAME_LENGTH = 256  # characters of a namespace's name
MIN_NAMESPACE_BYTES = 4096  # memory of a namespace
MAX_LINE_BYTES = 4096  # a name of 256 characters, each escaped as two of \\uxxxx, and five numbers
MEMORY_PER_FILE_BYTE = BYTES_PER_CODE // 4  # memory of a code for each byte of it in the file


@dataclass(frozen=True, slots=True)
class Entry:
    """A namespace in a file: its name, the number of its codes, and its counts."""

    name: str
    codes: int
    counts: tuple[int, ...]


def save(path: Path, fields: tuple[Any, ...], rings: Mapping[str, StoreRing]) -> None:
    """Write namespaces. Each one's lock is held for a bounded number of codes at a time."""
    names: list[bytes] = []
    text: list[Int32] = []
    for name, ring in rings.items():
        pieces = list(pieces_of(ring))
        entry = [name, sum(map(len, pieces)), *ring.counts()[1:]]
        names.append(json.dumps(entry).encode() + b"\n")
        text += [piece.astype("<i4", copy=False) for piece in pieces]
    write_file(path, KIND, fields, [text, names])


def pieces_of(ring: StoreRing) -> Iterator[Int32]:
    """The codes that a namespace has now, in pieces, without those that are overwritten meanwhile.

    Codes that are added meanwhile are not copied, so the number of pieces is bounded.
    """
    at, end = 0, ring.written
    while at < end:
        begin, codes = ring.codes(at)
        if 0 < at < begin < end:  # the codes in between were overwritten meanwhile
            yield np.array([BORDER], np.int32)
        codes = codes[: max(end - begin, 0)]
        if not len(codes):
            return
        yield codes
        at = begin + len(codes)


class SavedStore:
    """An open file of a shared store. Everything but the names and codes is checked on opening.

    Sections of more than ``max_bytes`` bytes are refused before they are read. Codes take
    ``MEMORY_PER_FILE_BYTE`` times as many bytes in memory as in the file. So a file can be loaded
    with 1 / ``MEMORY_PER_FILE_BYTE`` of the ``max_bytes`` of the store that was saved.
    """

    def __init__(self, file: BinaryIO, max_bytes: int) -> None:
        self._file, self._path, self._max_bytes = file, Path(file.name), max_bytes
        path, size = self._path, os.fstat(file.fileno()).st_size
        fields, sections = read_header(path, KIND, file.read(KIND.header_size), size)
        self.namespace_bytes, self.write, self.live, known = fields  # see SharedStore.save
        self.tokenizer = known.hex() if any(known) else ""
        if self.namespace_bytes < 1 or self.write > 2 or self.live > 1:
            raise StoreFileError(f"{path} has broken settings: {', '.join(map(str, fields[:3]))}")
        self._text, self._names = sections
        for name, section in zip(KIND.sections, sections, strict=True):
            if section.size > max_bytes:
                raise StoreFileError(
                    f"{path}: section {name} must have at most max_bytes={max_bytes} bytes, got"
                    f" {section.size}; pass a larger max_bytes"
                )
        if self._text.size % 4:
            raise StoreFileError(
                f"{path}: section text has {self._text.size} bytes, no multiple of 4"
            )
        check_checksums(path, KIND, sections, partial(chunks_of, file))

    def restore(self, ring_of: Callable[[str], StoreRing], limit: int) -> None:
        """Add the most recently used namespaces, at most ``limit``, to a store.

        Text that does not fit is left out, the oldest first, which is logged.
        """
        entries, passed_over = self._last_entries(limit)
        codes = _Codes(chunks_of(self._file, self._text))
        left_out = _count_tokens(codes.take(passed_over))
        for entry in entries:
            ring = ring_of(entry.name)
            fitting = min(entry.codes, ring.capacity - 1)
            left_out += _count_tokens(codes.take(entry.codes - fitting))
            stream = StoreStream(ring)
            for piece in codes.take(fitting):
                if int(piece.min()) < 0:
                    raise StoreFileError(f"{self._path}: section text has a negative token id")
                stream.append_documents(piece)
            stream.finish()
            ring.count_on(entry.counts)
        if left_out:
            logger.warning(
                "%s: the oldest text does not fit into the store; tokens left out: %d",
                self._path,
                left_out,
            )

    def _last_entries(self, limit: int) -> tuple[Sequence[Entry], int]:
        """The last entries, at most ``limit``, and the number of codes before them."""
        entries: deque[Entry] = deque(maxlen=limit)
        total = self._text.size // 4
        max_known = MEMORY_PER_FILE_BYTE * self._max_bytes // MIN_NAMESPACE_BYTES
        codes = 0
        try:
            for count, line in enumerate(self._lines(), 1):
                if count > max_known:
                    raise StoreFileError(
                        f"{self._path} must have at most {max_known} namespaces with max_bytes="
                        f"{self._max_bytes}, got more; pass a larger max_bytes"
                    )
                entries.append(_checked_entry(json.loads(line)))
                codes += entries[-1].codes
            if len({entry.name for entry in entries}) < len(entries):
                raise ValueError("it has a name twice")
            if codes != total:
                raise ValueError(f"it has {codes} codes, section text has {total}")
        except StoreFileError:
            raise
        except (ValueError, RecursionError) as error:
            raise StoreFileError(f"{self._path}: section names is broken: {error}") from error
        return entries, total - sum(entry.codes for entry in entries)

    def _lines(self) -> Iterator[bytes]:
        """The lines of the section of names."""
        self._file.seek(self._names.offset)
        left = self._names.size
        while left:
            line = self._file.readline(min(left, MAX_LINE_BYTES))
            if not line.endswith(b"\n"):
                raise ValueError(f"a line must have at most {MAX_LINE_BYTES} bytes, and an end")
            left -= len(line)
            yield line


class _Codes:
    """Codes that are read one after the other."""

    def __init__(self, chunks: Iterator[bytes]) -> None:
        self._chunks = chunks
        self._left = np.empty(0, np.int32)

    def take(self, count: int) -> Iterator[Int32]:
        """The next ``count`` codes, in pieces."""
        while count:
            if not len(self._left):
                self._left = np.frombuffer(next(self._chunks), "<i4").astype(np.int32, copy=False)
            piece, self._left = self._left[:count], self._left[count:]
            count -= len(piece)
            yield piece


def _count_tokens(pieces: Iterable[Int32]) -> int:
    return sum(int(np.count_nonzero(piece != BORDER)) for piece in pieces)


def _checked_entry(element: Any) -> Entry:
    """A namespace from its element of the section names; a ValueError if it is none."""
    if not isinstance(element, list) or len(element) != 2 + COUNTS_PER_ENTRY:
        raise ValueError("an element is no namespace")
    name, *numbers = element
    if not isinstance(name, str) or not 1 <= len(name) <= MAX_NAME_LENGTH:
        raise ValueError(f"a name must be a string of 1..{MAX_NAME_LENGTH} characters")
    if not all(type(each) is int and 0 <= each < MAX_COUNT for each in numbers):
        raise ValueError(f"counts must be integers in 0..{MAX_COUNT - 1}")
    return Entry(name, numbers[0], tuple(numbers[1:]))
