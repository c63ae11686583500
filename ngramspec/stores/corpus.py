"""A corpus: text that drafts are copied from, in one immutable file shared by processes.

The suffix array is built over the reversed text, so that it sorts places by the text before them.
libdivsufsort sorts bytes. Token ids are therefore first renumbered among those that occur, as two
big-endian bytes where there are fewer than 65536. Of the sorted suffixes, only those that begin at
a token are kept.

Peak memory of the arrays for N tokens while building: 18 N bytes with fewer than 65536 different
ids, else 25 N. From 2 ** 31 bytes on (2 ** 30 or 2 ** 30 * 2 / 3 tokens) it is 26 N and 37 N.
Measured for the whole process: 19 N at 100 million tokens and 29 N at 10 million.
"""

from __future__ import annotations

import json
import logging
import mmap
import os
import threading
from collections import UserDict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ngramspec._native import BORDER, STRIDE, CorpusIndex, check_corpus, keys
from ngramspec.draft import Int32
from ngramspec.files import open_regular
from ngramspec.stores import Source, encode, fingerprint, vocabulary_size
from ngramspec.stores.files import (
    FileKind,
    FileSection,
    StoreFileError,
    check_checksums,
    read_header,
    write_file,
)

MAX_TOKEN_ID = (1 << 21) - 2  # three tokens share 64 bits of a key
MAX_CODES = (1 << 31) - 1
NARROW_IDS = (1 << 16) - 1  # ids below it take two bytes
CHUNK_TOKENS = 1 << 22
QUIET_MS = 2000  # without a change before a rebuild
POLL_MS = 500  # between checks of ``stop``

logger = logging.getLogger("ngramspec")
watch_logger = logging.getLogger("ngramspec.watch")


def gather(documents: Iterable[Any], tokenizer: Any) -> tuple[Int32, int]:
    """The text as codes, a separator around each document with tokens; number of documents."""
    border = np.array([BORDER], np.int32)
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
    array = isinstance(document, np.ndarray) and document.ndim == 1
    if not array or document.dtype.kind not in "iu":
        kind = getattr(document, "dtype", type(document).__name__)
        raise TypeError(f"{where} must be a text or a one-dimensional integer array, got {kind}")
    if len(document) and not 0 <= int(document.min()) <= int(document.max()) <= MAX_TOKEN_ID:
        raise ValueError(
            f"{where}: token ids must be in 0..{MAX_TOKEN_ID}, got {document.min()}"
            f"..{document.max()}"
        )
    return np.ascontiguousarray(document, np.int32)


def sections_of(text: Int32, width: int, progress: Callable[[str], None]) -> list[list[Any]]:
    """The sections of a corpus: text, places and keys, as parts to be written."""
    progress("sorting")
    places = sorted_places(text)
    progress("keys")
    level = keys(text, places, width, STRIDE)
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
        message = "building a corpus needs pydivsufsort: pip install pydivsufsort"
        raise ImportError(message) from error
    order = divsufsort(content)
    places = np.empty(len(text), np.uint32)
    borders = text == BORDER
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
    tokens = text != BORDER
    used = np.zeros(int(text[tokens].max(initial=0)) + 1, bool)
    used[text[tokens]] = True
    number = (np.cumsum(used) - 1).astype(np.uint32)
    separator = int(number[-1]) + 1  # a number above all tokens
    each = 1 if separator < 1 << 8 else 2 if separator < 1 << 16 else 3
    codes = np.full(len(text), separator, ">u4" if each == 3 else f">u{each}")
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


REHEARSED_TOKENS = 512
MAX_RECIPE_BYTES = 1 << 20  # longer recipes are truncated when read, and so refused
KIND = FileKind(
    magic=b"\x89NGC\r\n\x1a\n",
    name="ngramspec corpus",
    version=2,
    fields="IIIIQQQ32s",
    sections=("text", "places", "keys", "recipe"),
)


@dataclass(frozen=True, slots=True)
class CorpusInfo:
    """The metadata of a corpus file."""

    path: str  # the file
    bytes: int  # its size
    tokens: int  # number of tokens in all documents
    documents: int  # number of documents that have tokens
    places: int  # number of positions with a token before and a token after
    width: int  # bytes per token, 2 or 3
    largest_id: int  # largest token id
    vocabulary: int  # the tokenizer's largest id plus one; 0: not known
    tokenizer: str  # the tokenizer's fingerprint; empty: not known


class Corpus(Source):
    """Indexed text that outputs may resemble, such as a repository.

    Immutable and memory-mapped: opening reads only the header, and processes that open the same
    file share its pages. Any number of threads may use it. The places of the longest match of a
    context's end are found in microseconds. No match spans two documents. Copies and pickles open
    the same file. Corpora of the same file are equal.

    Example:
        >>> corpus = Corpus.build([np.array([5, 6, 7, 8], np.int32)], "own.ngc")
        >>> len(corpus)
        4
    """

    rehearsed = REHEARSED_TOKENS

    def __init__(self, path: str | PathLike[str]) -> None:
        self.path = Path(path)
        with open_regular(self.path) as file:
            try:
                self._content = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
            except ValueError as error:
                raise StoreFileError(f"{self.path} cannot be mapped: {error}") from error
            opened = os.fstat(file.fileno())
        self._file = opened.st_dev, opened.st_ino
        header = self._content[: KIND.header_size]
        self._fields, self._sections = read_header(self.path, KIND, header, len(self._content))
        self.index = self._make_index()

    @classmethod
    def open(cls, path: str | PathLike[str]) -> Corpus:
        """Open a file written by ``build`` or ``ngramspec corpus build``.

        Raises:
            OSError: it cannot be read, or is not a regular file.
            StoreFileError: it is not a corpus, or is broken; the message names the fault.
            ImportError: xxhash is not installed.
        """
        return cls(path)

    @classmethod
    def build(
        cls,
        documents: Iterable[Any],
        path: str | PathLike[str],
        *,
        tokenizer: Any = None,
        recipe: dict[str, Any] | None = None,
        on_stage: Callable[[str], None] | None = None,
    ) -> Corpus:
        """Write a corpus, replacing any existing file, and open it.

        Takes about a microsecond per token in addition to tokenizing. Measured peak memory is 19 to
        29 bytes per token.

        Args:
            documents: texts, or one-dimensional integer arrays of token ids in 0..2097150; at
                least one of them must have tokens.
            path: the file, by convention ``.ngc``. It is written under a temporary name in the same
                folder and renamed.
            tokenizer: encodes the texts and supplies the fingerprint: a transformers tokenizer or
                a ``tokenizers.Tokenizer``.
            recipe: JSON values that say where the documents came from; ``recipe`` returns them.
            on_stage: called with the name of each stage as it begins.

        Raises:
            TypeError, ValueError: a document cannot be used; the message has its index.
            ImportError: pydivsufsort or xxhash is not installed.
            OSError: the file cannot be written.
        """
        if isinstance(documents, str | bytes):
            raise TypeError("documents must be several texts or arrays, got one text")
        progress = on_stage or (lambda stage: None)
        size = 0 if tokenizer is None else vocabulary_size(tokenizer)
        known = bytes(32) if tokenizer is None else bytes.fromhex(fingerprint(tokenizer))
        text, count = gather(documents, tokenizer)
        if count == 0:
            raise ValueError("documents must hold at least one token, got none")
        largest = int(text[text != BORDER].max())
        width = 2 if largest < NARROW_IDS else 3
        sections = sections_of(text, width, progress)
        sections.append([json.dumps(recipe or {}).encode()])
        fields = (width, largest, size, 0, len(text), len(text) - count - 1, count, known)
        progress("writing")
        write_file(Path(path), KIND, fields, sections)
        return cls(path)

    def request(self, limit: int = 0, session: str | None = None) -> Corpus:
        """The corpus; a StoreFileError if its file was truncated: reading it would crash."""
        size = self._content.size()
        if size < len(self._content):
            raise StoreFileError(
                f"{self.path} was truncated from {len(self._content)} to {size} bytes while it was"
                " open; open it again, and replace files by renaming"
            )
        return self

    def info(self) -> CorpusInfo:
        """The file's metadata."""
        width, largest, size, _, _, tokens, documents, _ = self._fields
        return CorpusInfo(
            path=str(self.path),
            bytes=len(self._content),
            tokens=tokens,
            documents=documents,
            places=len(self.index),
            width=width,
            largest_id=largest,
            vocabulary=size,
            tokenizer=self.tokenizer,
        )

    def recipe(self) -> dict[str, Any]:
        """Where the documents came from, as passed to ``build``; it may raise a StoreFileError."""
        try:
            recipe = json.loads(bytes(self._part(self._sections[-1])[:MAX_RECIPE_BYTES]))
        except (ValueError, RecursionError) as error:
            raise StoreFileError(f"{self.path}: section recipe is broken: {error}") from error
        if not isinstance(recipe, dict):
            raise StoreFileError(f"{self.path}: section recipe must hold an object")
        return recipe

    def verify(self) -> None:
        """Read the whole file and check its checksums and every entry, some microseconds per token.

        A StoreFileError says what is broken.
        """
        check_checksums(self.path, KIND, self._sections, map(self._part, self._sections))
        try:
            check_corpus(self.index)
        except AssertionError as error:
            raise StoreFileError(f"{self.path} is broken: {error}") from error

    @property
    def tokenizer(self) -> str:
        """The fingerprint of the tokenizer it was built with; empty: not known."""
        return self._fields[-1].hex() if any(self._fields[-1]) else ""

    def _check(self, tokenizer: Any) -> None:
        super()._check(tokenizer)
        self.check_vocabulary(vocabulary_size(tokenizer))  # it may have ids outside it

    def largest_id(self) -> int:
        """The largest token id."""
        return int(self._fields[1])

    def description(self) -> str:
        """Its path."""
        return str(self.path)

    def sizeof(self) -> int:
        """Bytes allocated, without the file's mapped pages."""
        return int(self.index.sizeof())

    def __len__(self) -> int:
        """Number of tokens."""
        return int(self._fields[5])

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Corpus) and self._file == other._file

    def __hash__(self) -> int:
        return hash(self._file)

    def __repr__(self) -> str:
        return f"Corpus({str(self.path)!r}, {len(self):,} tokens)"

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (str(self.path),)

    def _make_index(self) -> CorpusIndex:
        """The native index, which reads the mapped sections in place."""
        width, largest, _, _, codes, tokens, documents, _ = self._fields
        try:
            index = CorpusIndex(list(map(self._part, self._sections[:-1])), width, largest + 1)
        except ValueError as error:
            raise StoreFileError(f"{self.path} is broken: {error}") from error
        if not 0 < documents <= codes == index.n or tokens != codes - documents - 1:
            raise StoreFileError(
                f"{self.path} is broken: {tokens} tokens in {documents} documents, {index.n} codes"
            )
        return index

    def _part(self, section: FileSection) -> memoryview:
        self.request()  # it can be read
        return memoryview(self._content)[section.offset : section.offset + section.size]


class Shelf(UserDict[str, Corpus]):
    """Corpora by name, of a tokenizer. Each access compares the file's state, in microseconds."""

    def __init__(self, corpora: Mapping[str, Corpus], tokenizer: Any) -> None:
        super().__init__(corpora)
        self._tokenizer = tokenizer
        self._states = {name: _state(corpus) for name, corpus in corpora.items()}

    def __getitem__(self, name: str) -> Corpus:
        corpus = self.data[name]
        state = _state(corpus)
        if state not in (None, self._states[name]):
            self._states[name] = state
            try:
                opened = Corpus.open(corpus.path)
                opened.check_tokenizer(self._tokenizer)
                self.data[name] = opened
            except (OSError, ValueError) as error:
                logger.warning("the corpus %s cannot be opened again: %s", name, str(error))
        return self.data[name]


def _state(corpus: Corpus) -> tuple[int, int, int] | None:
    """Inode, time and size, which change when a file is replaced; None: it does not exist."""
    try:
        found = os.stat(corpus.path)
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns, found.st_size


def watch(
    paths: Iterable[Path],
    corpus: Path,
    rebuild: Callable[[], Any],
    *,
    stop: threading.Event | None = None,
    quiet: int = QUIET_MS,
) -> None:
    """Call ``rebuild`` whenever files have changed, until ``stop`` is set or Ctrl-C is pressed."""
    try:
        import watchfiles
    except ModuleNotFoundError as error:
        error.msg = "watching needs watchfiles: pip install watchfiles"
        raise
    own = corpus.absolute()
    usual = watchfiles.DefaultFilter()

    def of_sources(change: Any, path: str) -> bool:
        itself = Path(path).parent == own.parent and Path(path).name.startswith(own.name)
        return not itself and bool(usual(change, path))

    times = {"debounce": 10 * quiet, "step": quiet, "rust_timeout": POLL_MS}
    changes = watchfiles.watch(*paths, watch_filter=of_sources, stop_event=stop, **times)
    for changed in changes:
        watch_logger.info("%d files changed", len(changed))
        try:
            rebuild()
        except (OSError, ValueError) as error:
            watch_logger.warning("not rebuilt, the old corpus stays: %s", error)
