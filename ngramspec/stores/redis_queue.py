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
    number: int  # rises with each piece that is put

    def __len__(self) -> int:
        return 0 if self.tokens is None else len(self.tokens)


class PublishQueue:
    """Pieces of each namespace in the order in which they were put.

    Any number of threads put, one takes. A namespace has at most one deletion that waits, and it is
    first. An operation takes time in the number of namespaces that wait only where text is dropped
    because the queue is full.
    """

    def __init__(self) -> None:
        self.lost = 0  # tokens that were dropped because the queue was full, the oldest first
        self._lock = threading.RLock()
        self._waiting: dict[str, deque[Queued]] = {}  # by namespace, none of them empty
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
                number = next(self._numbers)
                self._add(Queued(namespace, document, piece, end and after >= len(tokens), number))
            while self._tokens > MAX_QUEUED_TOKENS:
                self._drop_oldest()

    def _add(self, piece: Queued) -> None:
        """Add a piece, or append it to the last one where that belongs to the same document."""
        pieces = self._waiting.setdefault(piece.namespace, deque())
        last = pieces[-1] if pieces else None
        if (
            last is not None
            and last.tokens is not None
            and piece.tokens is not None
            and (last.document, last.end) == (piece.document, False)
            and len(last) + len(piece) <= MAX_ENTRY_TOKENS
        ):
            last.tokens = np.concatenate([last.tokens, piece.tokens])
            last.end = piece.end
        else:
            pieces.append(piece)
        self._tokens += len(piece)

    def _drop_oldest(self) -> None:
        """Drop the oldest piece of text of all namespaces, but no deletion."""
        texts = [(pieces, int(pieces[0].tokens is None)) for pieces in self._waiting.values()]
        whole = [(pieces[at].number, at, pieces) for pieces, at in texts if at < len(pieces)]
        _, at, pieces = min(whole, key=lambda each: each[0])
        dropped = pieces[at]
        del pieces[at]
        if not pieces:
            del self._waiting[dropped.namespace]
        self._tokens -= len(dropped)
        self.lost += len(dropped)

    def put_clear(self, namespace: str) -> None:
        """Add the deletion of a namespace, which replaces all that still waits for it."""
        with self._lock:
            self.discard(namespace)
            self._waiting[namespace] = deque(
                [Queued(namespace, 0, None, True, next(self._numbers))]
            )

    def discard(self, namespace: str) -> int:
        """Drop a namespace's text that waits; return its number of tokens."""
        with self._lock:
            pieces = self._waiting.pop(namespace, deque())
            dropped = sum(map(len, pieces))
            self._tokens -= dropped
            if pieces and pieces[0].tokens is None:
                self._waiting[namespace] = deque([pieces[0]])
            own = [each for each in self._taken if each.namespace == namespace]
            self._taken = [each for each in self._taken if each not in own or each.tokens is None]
            return dropped + sum(map(len, own))

    def take(self, most: int) -> list[Queued]:
        """The next pieces. They stay in the queue until ``remove``; call it before the next."""
        with self._lock:
            for namespace in list(itertools.islice(self._waiting, most)):
                if len(self._taken) == most:
                    break
                pieces = self._waiting.pop(namespace)
                while pieces and len(self._taken) < most:
                    self._taken.append(pieces.popleft())
                    self._tokens -= len(self._taken[-1])
                if pieces:
                    self._waiting[namespace] = pieces  # last, so that the others are next
            return list(self._taken)

    def remove(self, pieces: list[Queued]) -> None:
        """Remove pieces that were published."""
        with self._lock:
            self._taken = [piece for piece in self._taken if piece not in pieces]
