"""The server's corpora by name, opened again when their files have been replaced."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Mapping

from ngramspec.stores import Corpus

logger = logging.getLogger("ngramspec.server")


class Shelf(Mapping[str, Corpus]):
    """Corpora by name. Each look compares the file's state, which takes microseconds.

    A corpus in use stays as it was: the replaced file lives as long as it is mapped. A file that is
    gone or broken is logged, and the corpus stays as it was.

    Args:
        corpora: by name.
    """

    def __init__(self, corpora: Mapping[str, Corpus]) -> None:
        self._held = {name: (corpus, _state(corpus)) for name, corpus in corpora.items()}

    def __getitem__(self, name: str) -> Corpus:
        corpus, known = self._held[name]
        state = _state(corpus)
        if state is not None and state != known:
            try:
                corpus = Corpus.open(corpus.path)
            except (OSError, ValueError) as error:
                logger.warning("the corpus %s cannot be opened again: %s", name, error)
            self._held[name] = corpus, state
        return corpus

    def __iter__(self) -> Iterator[str]:
        return iter(self._held)

    def __len__(self) -> int:
        return len(self._held)


def _state(corpus: Corpus) -> tuple[int, int, int] | None:
    """What changes when a file is replaced; None: it is gone."""
    try:
        found = os.stat(corpus.path)
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns, found.st_size
