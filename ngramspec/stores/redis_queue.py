"""Text that waits to be published, bounded by its number of tokens."""

from __future__ import annotations

import itertools
import threading
from collections import deque
from dataclasses import dataclass

import numpy as np

from ngramspec.draft import Int32
from ngramspec.stores.redis_entries import MAX_ENTRY_TOKENS

MAX_QUEUED_TOKENS = 1 << 20


@dataclass(slots=True, eq=False)
class Queued:
    """A piece of a document, or the deletion of a namespace."""

    namespace: str
    document: int
    tokens: Int32 | None  # (n,), n at most MAX_ENTRY_TOKENS; None: the namespace is to be deleted
    end: bool  # whether the document ends here
    number: int = -1  # rises with each piece that is taken out

    def __len__(self) -> int:
        return 0 if self.tokens is None else len(self.tokens)


class PublishQueue:
    """Pieces in the order in which they were put. Any number of threads put, one takes."""

    def __init__(self) -> None:
        self.lost = 0  # tokens that were dropped because the queue was full, the oldest first
        self._lock = threading.RLock()
        self._waiting: deque[Queued] = deque()
        self._taken: list[Queued] = []
        self._tokens = 0
        self._numbers = itertools.count()

    def __bool__(self) -> bool:
        return bool(self._waiting or self._taken)

    def put(self, namespace: str, document: int, tokens: Int32, *, end: bool) -> None:
        """Add tokens, int32 (n,), which are copied."""
        with self._lock:
            for at in range(0, max(len(tokens), 1), MAX_ENTRY_TOKENS):
                after = at + MAX_ENTRY_TOKENS
                piece = np.array(tokens[at:after], np.int32)
                self._add(Queued(namespace, document, piece, end and after >= len(tokens)))

    def _add(self, piece: Queued) -> None:
        """Add a piece, or append it to the last one where that belongs to the same document."""
        last = self._waiting[-1] if self._waiting else None
        if (
            last is not None
            and last.tokens is not None
            and piece.tokens is not None
            and (last.namespace, last.document, last.end)
            == (piece.namespace, piece.document, False)
            and len(last) + len(piece) <= MAX_ENTRY_TOKENS
        ):
            last.tokens = np.concatenate([last.tokens, piece.tokens])
            last.end = piece.end
        else:
            self._waiting.append(piece)
        self._tokens += len(piece)
        while self._tokens > MAX_QUEUED_TOKENS:
            dropped = next(i for i, each in enumerate(self._waiting) if each.tokens is not None)
            self._tokens -= len(self._waiting[dropped])
            self.lost += len(self._waiting[dropped])
            del self._waiting[dropped]

    def put_clear(self, namespace: str) -> None:
        """Add the deletion of a namespace; its text that still waits is dropped."""
        with self._lock:
            self.discard(namespace)
            self._waiting.append(Queued(namespace, 0, None, True))

    def discard(self, namespace: str) -> None:
        """Drop a namespace's text that waits."""

        def stays(piece: Queued) -> bool:
            return piece.namespace != namespace or piece.tokens is None

        with self._lock:
            self._waiting = deque(filter(stays, self._waiting))
            self._taken = list(filter(stays, self._taken))
            self._tokens = sum(map(len, self._waiting))

    def take(self, most: int) -> list[Queued]:
        """The next pieces. They stay in the queue until ``remove``; call it before the next."""
        with self._lock:
            while self._waiting and len(self._taken) < most:
                piece = self._waiting.popleft()
                self._tokens -= len(piece)
                piece.number = next(self._numbers)
                self._taken.append(piece)
            return list(self._taken)

    def remove(self, pieces: list[Queued]) -> None:
        """Remove pieces that were published."""
        with self._lock:
            self._taken = [piece for piece in self._taken if piece not in pieces]
