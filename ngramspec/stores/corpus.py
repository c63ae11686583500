"""A corpus: text that drafts are copied from, in one immutable file shared by processes."""

from __future__ import annotations

import contextlib
import json
import mmap
import weakref
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any

from ngramspec._native.store_corpus import CorpusIndex, check_corpus
from ngramspec.stores import corpus_build
from ngramspec.stores.base import Source, fingerprint, vocabulary_size
from ngramspec.stores.files import (
    FileKind,
    Section,
    StoreFileError,
    check_checksums,
    open_regular,
    read_header,
    write_file,
)

SUFFIX = ".ngc"
REHEARSED_TOKENS = 512  # measured in docs/internals/value-engine.md
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
    the same file.

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
        header = self._content[: KIND.header_size]
        self._fields, self._sections = read_header(self.path, KIND, header, len(self._content))
        self._checked: weakref.ref[Any] | None = None
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
        29 bytes per token; ``corpus_build`` lists what it consists of.

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
        text, count = corpus_build.gather(documents, tokenizer)
        if count == 0:
            raise ValueError("documents must hold at least one token, got none")
        largest = int(text[text != corpus_build.SEPARATOR].max())
        sections = corpus_build.sections_of(text, largest, progress)
        sections.append([json.dumps(recipe or {}).encode()])
        width = 2 if largest < corpus_build.NARROW_IDS else 3
        fields = (width, largest, size, 0, len(text), len(text) - count - 1, count, known)
        progress("writing")
        write_file(Path(path), KIND, fields, sections)
        return cls(path)

    def info(self) -> CorpusInfo:
        """The file's metadata."""
        width, largest, size, _, _, tokens, documents, known = self._fields
        return CorpusInfo(
            path=str(self.path),
            bytes=len(self._content),
            tokens=tokens,
            documents=documents,
            places=len(self.index),
            width=width,
            largest_id=largest,
            vocabulary=size,
            tokenizer=known.hex() if any(known) else "",
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
        check_checksums(self.path, KIND, self._sections, lambda each: [self._part(each)])
        try:
            check_corpus(self.index)
        except AssertionError as error:
            raise StoreFileError(f"{self.path} is broken: {error}") from error

    def check_tokenizer(self, tokenizer: Any) -> None:
        """Raise a ValueError if the corpus was built with another tokenizer.

        For a corpus that was built without a tokenizer, only the largest id is compared.
        """
        if self._checked is not None and self._checked() is tokenizer:
            return
        info = self.info()
        own = fingerprint(tokenizer)
        if info.tokenizer and info.tokenizer != own:
            raise ValueError(
                f"{self.path} was built with another tokenizer: its fingerprint is"
                f" {info.tokenizer}, that of the given one {own}; build it again with that one"
            )
        self.check_vocabulary(vocabulary_size(tokenizer))
        with contextlib.suppress(TypeError):  # not every type supports weak references
            self._checked = weakref.ref(tokenizer)

    def check_vocabulary(self, size: int) -> None:
        """Raise a ValueError if the corpus has ids outside a vocabulary of ``size``."""
        largest = self.info().largest_id
        if largest >= size:
            raise ValueError(
                f"{self.path} has token id {largest}, the vocabulary has {size}: it was built with"
                " another tokenizer"
            )

    def description(self) -> str:
        """Its path."""
        return str(self.path)

    def sizeof(self) -> int:
        """Bytes allocated, without the file's mapped pages."""
        return int(self.index.sizeof())

    def __len__(self) -> int:
        """Number of tokens."""
        return int(self._fields[5])

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

    def _part(self, section: Section) -> memoryview:
        return memoryview(self._content)[section.offset : section.offset + section.size]
