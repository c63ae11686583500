"""The server's corpora by name, reopened when their files are replaced."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Mapping

from ngramspec.stores import Corpus

logger = logging.getLogger("ngramspec.server")


class Shelf(Mapping[str, Corpus]):
    """Corpora by name. Each access compares the file's state, which takes microseconds.

    A request that uses a corpus keeps it: a replaced file exists while it is mapped. If the new
    file cannot be opened, this is logged and the old corpus is kept.
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
    """Inode, time and size, which change when a file is replaced; None: it does not exist."""
    try:
        found = os.stat(corpus.path)
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns, found.st_size
