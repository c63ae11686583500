"""Text to draft from that outlives a request: each user's recent answers, and corpora."""

from __future__ import annotations

import logging
import os
from collections import UserDict
from collections.abc import Iterable, Mapping
from typing import Any

from ngramspec.server.auth import ANYONE_NAMESPACE
from ngramspec.stores import Corpus, SharedStore
from ngramspec.stores.redis import RedisSync

logger = logging.getLogger("ngramspec.server")


class SharedText:
    """A SharedStore for each user, so that users do not displace each other's text.

    ``max_bytes`` is the size of all stores together. Without ``users``, one store serves all
    requests. ``sync`` is the address of a Redis server, see SharedStore. A ValueError says that it
    is none, or that there is too little memory for each user.
    """

    def __init__(
        self, max_bytes: int, users: Iterable[str], tokenizer: Any, sync: str | None = None
    ) -> None:
        names = list(users) or [ANYONE_NAMESPACE]
        each = max_bytes // len(names)
        shared = None if sync is None else RedisSync(sync, tokenizer)
        self._stores = {name: SharedStore(each, tokenizer=tokenizer, sync=shared) for name in names}

    def __getitem__(self, namespace: str) -> Any:
        """The store of the namespace USER or USER/NAME, to be passed as ``stores``."""
        return self._stores[namespace.partition("/")[0]][namespace]


class Shelf(UserDict[str, Corpus]):
    """Corpora by name. Each access compares the file's state, which takes microseconds.

    A request that uses a corpus keeps it: a replaced file exists while it is mapped. If the new
    file cannot be opened, this is logged and the old corpus is kept.
    """

    def __init__(self, corpora: Mapping[str, Corpus]) -> None:
        super().__init__(corpora)
        self._states = {name: _state(corpus) for name, corpus in corpora.items()}

    def __getitem__(self, name: str) -> Corpus:
        corpus = self.data[name]
        state = _state(corpus)
        if state not in (None, self._states[name]):
            self._states[name] = state
            try:
                self.data[name] = Corpus.open(corpus.path)
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
