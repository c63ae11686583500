"""The conversations of a namespace: which request continues which, and what its prompt repeats."""

from __future__ import annotations

import threading
from collections import OrderedDict
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ngramspec._native import StorePrior, StoreStream, salt
from ngramspec.draft import Int32

BLOCK = 64  # tokens of a prompt that are recognized together
CONVERSATION_BYTES = 6 << 10  # memory of one, with its marks
MARKS_EACH = 64  # marks of blocks for each conversation that is kept
MAX_CONVERSATIONS = 4096
SHARE = 16  # conversations use at most 1/SHARE of the bytes of a namespace


class TextHash:
    """Hashes of all prefixes of a text that grows: those of equal prefixes are equal."""

    def __init__(self) -> None:
        self._salt, self._base = np.uint64(salt() >> 33), np.uint64(salt() | 1)
        self._power, self.value, self.length = np.uint64(1), np.uint64(0), 0
        self.blocks: list[NDArray[np.uint64]] = []  # hashes of the prefixes of whole blocks

    def add(self, tokens: Int32) -> NDArray[np.uint64]:
        """Append tokens, int32 (n,); return the hash after each, uint64 (n,)."""
        n = len(tokens)
        if not n:
            return np.empty(0, np.uint64)
        powers = np.full(n + 1, self._base)
        powers[0] = self._power
        powers = np.multiply.accumulate(powers)
        mixed = (tokens.astype(np.uint64) ^ self._salt) * np.uint64(0x9E3779B97F4A7C15)
        hashes = self.value + np.add.accumulate((mixed ^ (mixed >> np.uint64(32))) * powers[:-1])
        blocks = hashes[(-self.length - 1) % BLOCK :: BLOCK]
        self.blocks += [blocks] if len(blocks) else []
        self._power, self.value, self.length = powers[-1], hashes[-1], self.length + n
        return hashes


@dataclass(slots=True)
class Conversation:
    """A conversation after one of its requests."""

    stream: StoreStream  # the request's, which knows where the conversation's text is
    familiar: StorePrior  # what its requests learned about the store


@dataclass(frozen=True, slots=True)
class Begun:
    """What a namespace knows about a prompt."""

    end: tuple[int, int] | None  # length and hash of the prefix that ends an earlier request
    earlier: Conversation | None  # which this request continues
    familiar: StorePrior  # what earlier requests of the session learned
    known: int  # tokens at the prompt's beginning that an earlier request of the namespace had
    clears: int  # how often the namespace was cleared before


class Conversations:
    """The latest conversations of a namespace. Thread-safe.

    A request continues the conversation whose text is the longest prefix of its prompt, by hashes.
    A session's name also connects what requests learned whose prompts share no prefix. What a
    request knows is not kept if the namespace was cleared while it ran. Memory:
    CONVERSATION_BYTES for each conversation, at most 1/SHARE of ``namespace_bytes``.
    """

    def __init__(self, namespace_bytes: int) -> None:
        self.max_kept = min(namespace_bytes // SHARE // CONVERSATION_BYTES, MAX_CONVERSATIONS)
        self._lock = threading.Lock()
        self._clears = 0
        self.clear()

    def clear(self) -> None:
        """Forget all conversations."""
        with self._lock:
            self._ends: OrderedDict[tuple[int, int], Conversation] = OrderedDict()
            self._sessions: OrderedDict[str, StorePrior] = OrderedDict()
            self._marks = np.zeros(self.max_kept * MARKS_EACH, np.uint64)
            self._clears += 1

    @property
    def bytes(self) -> int:
        """Maximum memory in bytes."""
        return self.max_kept * CONVERSATION_BYTES

    def begin(self, prompt: Int32, session: str | None) -> tuple[Begun, TextHash]:
        """Find what is known of a prompt, int32 (n,), and hash it."""
        text = TextHash()
        hashes = text.add(prompt)
        with self._lock:
            ends = (end for end in self._ends if 0 < end[0] <= len(hashes))
            same = (end for end in ends if int(hashes[end[0] - 1]) == end[1])
            end = max(same, default=None)
            earlier, familiar = None, StorePrior()
            if end is not None:
                self._ends.move_to_end(end)
                earlier = self._ends[end]
                familiar = earlier.familiar
            if session is not None and self.max_kept:
                familiar = self._sessions.setdefault(session, familiar)
                self._sessions.move_to_end(session)
                _drop_oldest(self._sessions, self.max_kept)
            known = max(self._marked(text.blocks), 0 if end is None else end[0])
            return Begun(end, earlier, familiar, known, self._clears), text

    def mark(self, begun: Begun, text: TextHash) -> None:
        """Remember that the namespace has a text, which later prompts may begin with."""
        with self._lock:
            kept = len(self._marks) and begun.clears == self._clears
            for hashes in text.blocks if kept else ():
                self._marks[hashes % np.uint64(len(self._marks))] = hashes

    def end(self, begun: Begun, text: TextHash, stream: StoreStream) -> Begun:
        """Keep a conversation after a request that ended with a text."""
        end = text.length, int(text.value)
        with self._lock:
            if begun.clears != self._clears or (
                begun.end == end and begun.earlier is not None and begun.earlier.stream is stream
            ):
                return begun
            if begun.end is not None and self._ends.get(begun.end) is begun.earlier:
                self._ends.pop(begun.end, None)
            kept = self._ends[end] = Conversation(stream, begun.familiar)
            _drop_oldest(self._ends, self.max_kept)
        return replace(begun, end=end, earlier=kept)

    def _marked(self, parts: list[NDArray[np.uint64]]) -> int:
        """Number of tokens in the first blocks that are all known. Under the lock."""
        blocks = np.concatenate(parts) if parts else np.empty(0, np.uint64)
        if not len(self._marks) or not len(blocks):
            return 0
        known = self._marks[blocks % np.uint64(len(self._marks))] == blocks
        return BLOCK * (len(known) if known.all() else int(known.argmin()))


NO_CONVERSATIONS = Conversations(0)  # keeps nothing; of all namespaces too small to keep one


def _drop_oldest(entries: OrderedDict[Any, Any], limit: int) -> None:
    while len(entries) > limit:
        entries.popitem(last=False)
