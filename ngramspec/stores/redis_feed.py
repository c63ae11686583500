"""The text of other processes, as it arrives from Redis, in a namespace's ring."""

from __future__ import annotations

from collections import OrderedDict

from ngramspec._native.store_ring import StoreRing, StoreStream
from ngramspec.draft import Int32
from ngramspec.stores.conversations import Conversations
from ngramspec.stores.redis_entries import NO_ENTRY, Entry, EntryId

MAX_OPEN_DOCUMENTS = 256  # documents that may still continue, per namespace
MAX_PRODUCERS = 1024
STALE_MILLISECONDS = 600_000  # that text from before a deletion may take to arrive. Not tuned


class Feed:
    """Adds the entries of a namespace's stream to its ring. One thread."""

    def __init__(self, ring: StoreRing, conversations: Conversations) -> None:
        self.ring, self.conversations = ring, conversations
        self.last: EntryId | None = None  # that was read; None: the stream's tail was not read yet
        self.cleared = NO_ENTRY  # the last deletion of the namespace that is known
        self._documents: OrderedDict[tuple[bytes, int], StoreStream] = OrderedDict()
        self._numbers: OrderedDict[bytes, int] = OrderedDict()  # each producer's last entry

    def add(self, at: EntryId, entry: Entry, own: bytes) -> int | None:
        """Add an entry with the id ``at``; ``own`` is the identity of this process.

        Returns how many tokens were added; None: another process deleted the namespace.
        Entries that arrive twice, text from before a deletion, this process's own entries, and
        entries that name a deletion after themselves are skipped.
        """
        if entry.tokens is None:
            return self._clear(at, entry.producer == own)
        late = entry.cleared < self.cleared and at[0] < self.cleared[0] + STALE_MILLISECONDS
        twice = entry.number <= self._numbers.get(entry.producer, -1)
        if entry.producer == own or entry.cleared >= at or late or twice:
            return 0
        self.cleared = max(self.cleared, entry.cleared)
        self._numbers[entry.producer] = entry.number
        self._numbers.move_to_end(entry.producer)
        if len(self._numbers) > MAX_PRODUCERS:
            self._numbers.popitem(last=False)
        self._append(entry, entry.tokens)
        return len(entry.tokens)

    def _append(self, entry: Entry, tokens: Int32) -> None:
        name = entry.producer, entry.document
        document = self._documents.pop(name, None) or StoreStream(self.ring)
        document.append(tokens)
        if entry.end:
            document.finish()
            return
        document.publish()
        self._documents[name] = document
        if len(self._documents) > MAX_OPEN_DOCUMENTS:
            self._documents.popitem(last=False)[1].finish()

    def _clear(self, at: EntryId, own: bool) -> int | None:
        """Delete all text. This process deleted its ring's at once if the deletion is its own."""
        if at <= self.cleared:
            return 0
        self.cleared = at
        self._documents.clear()
        if own:
            return 0
        self.conversations.clear()
        self.ring.clear()
        return None
