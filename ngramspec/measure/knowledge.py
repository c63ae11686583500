"""Text that all drafters of a replay know in addition to each request."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from ngramspec.draft import Int32
from ngramspec.drafters.base import Drafter
from ngramspec.measure.traces import Trace
from ngramspec.stores import Corpus, SharedStore

SEPARATOR_ID = 0  # after each document of an .npy file
NAMESPACE = "replay"
STORE_BYTES = 256 << 20  # bytes of a store of earlier requests


class Known(Protocol):
    """Text that drafters know in addition to each request.

    Attributes:
        shares: whether requests add their text. Then the first token of an output is not part of
            the prompt.
    """

    shares: bool

    def given_to(self, drafter: Drafter, trace: Trace) -> Drafter:
        """A drafter that knows what belongs to a trace."""
        ...


class Earlier:
    """The outputs of earlier traces, for drafters that support stores.

    Args:
        write: "outputs", or "all" for prompts, too (which other projects always leave out).
    """

    shares = True

    def __init__(self, write: str) -> None:
        self.write = write
        self._last: tuple[Drafter, Drafter] | None = None

    def given_to(self, drafter: Drafter, trace: Trace) -> Drafter:
        """A drafter with a store that all traces of one run share.

        Ours get a namespace. One that has ``sharing``, as Arctic's, keeps the responses.
        """
        if self._last is None or self._last[0] is not drafter:
            self._last = (drafter, self._with(drafter))
        return self._last[1]

    def _with(self, drafter: Any) -> Drafter:
        if hasattr(drafter, "sharing"):
            return drafter.sharing()  # type: ignore[no-any-return]
        store = SharedStore(STORE_BYTES, namespace_bytes=STORE_BYTES, write=self.write)
        try:
            return drafter.with_stores([store[NAMESPACE]])  # type: ignore[no-any-return]
        except ValueError:
            return drafter  # type: ignore[no-any-return]


class Knowledge:
    """A corpus for all traces, or one for each repository that traces name.

    Args:
        place: a corpus; or a folder with ``REPO.ngc`` or ``REPO.npy`` for each trace's ``repo``:
            a corpus, or token ids with a 0 after each document.

    Raises:
        OSError: it cannot be read.
        ValueError: it is not a corpus.
    """

    shares = False

    def __init__(self, place: Path) -> None:
        self.place = place
        self._corpora: dict[str, Corpus] = {}
        self._last: tuple[Drafter, str, Drafter] | None = None
        self._folder = tempfile.TemporaryDirectory(prefix="ngramspec-")
        if not place.is_dir():
            self._corpora[""] = Corpus.open(place)

    def corpus(self, repo: str) -> Corpus:
        """A repository's corpus; from an .npy file it is built once, if it exists."""
        name = repo if self.place.is_dir() else ""
        if name not in self._corpora:
            path = self.place / f"{name}.ngc"
            if not path.is_file():
                tokens = np.load(path.with_suffix(".npy"))
                path = Path(self._folder.name) / path.name
                Corpus.build(np.split(tokens, np.flatnonzero(tokens == SEPARATOR_ID) + 1), path)
            self._corpora[name] = Corpus.open(path)
        return self._corpora[name]

    def given_to(self, drafter: Drafter, trace: Trace) -> Drafter:
        """A drafter that knows the trace's corpus, or the same drafter if it supports none.

        Ours get the corpus as a store. One that has ``with_documents``, as Arctic's, reads each
        document as an earlier response.
        """
        repo = trace.repo if self.place.is_dir() else ""
        last = self._last
        if last is None or last[0] is not drafter or last[1] != repo:
            self._last = None  # one at a time: suffix trees take much memory
            last = self._last = (drafter, repo, self._with(drafter, self.corpus(repo)))
        return last[2]

    def _with(self, drafter: Any, corpus: Corpus) -> Drafter:
        if hasattr(drafter, "with_documents"):
            known: Drafter = drafter.with_documents(list(documents_of(corpus)))
            return known
        try:
            return drafter.with_stores([corpus])  # type: ignore[no-any-return]
        except ValueError:
            return drafter  # type: ignore[no-any-return]


def documents_of(corpus: Corpus) -> list[Int32]:
    """The documents of a corpus, in order."""
    found, at, end = [], 1, corpus.index.n
    while at < end:
        document = corpus.index.tokens_at(at, end - at)
        found.append(document.copy())
        at += len(document) + 1
    return found
