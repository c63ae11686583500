"""Twin of the committed text: its contexts, places, frequent and recent tokens."""

from __future__ import annotations

from collections.abc import Sequence

from tests.twins.contexts import ContextTable, Slot
from tests.twins.places import Places

CONTEXTS, ORDERS = 4, 3
SKIP, SKIP_SEED = 3, 32  # the context that skips a token: its index, its seed
RECENT, RECENT_SPAN = 64, 2048


class CommittedText:
    """One sequence's own text as a source of candidates.

    Args:
        min_match: shortest match to copy from, >= 1; 0: no place is followed.
    """

    def __init__(self, min_match: int) -> None:
        self.min_match = min_match
        self.text: list[int] = []
        self.table = ContextTable()
        self.unigrams = Slot()
        self.recent = Slot(most=RECENT)
        self.recent_n = 0  # tokens of the text that it has seen
        self.places = Places()

    def append(self, token: int) -> None:
        """Count one token behind each of its contexts."""
        at = len(self.text)
        for m in range(min(at, ORDERS)):
            self.table.add(self.text[at - m - 1 :], token, at, m + 2)
        if at >= 2:
            self.table.add(self.text[-2:-1], token, at, SKIP_SEED)
        self.unigrams.note(token, at)
        self.text.append(token)

    def known(self, path: Sequence[int]) -> dict[int, Slot]:
        """The known contexts behind the text and a path, by index: 0..2, and SKIP."""
        text = [*self.text[-ORDERS:], *path]
        found: dict[int, Slot] = {}
        for m in range(min(len(text), ORDERS)):
            slot = self.table.slots.get((m + 2, tuple(text[len(text) - m - 1 :])))
            if slot is None:
                break
            found[m] = slot
        skip = None if len(text) < 2 else self.table.slots.get((SKIP_SEED, (text[-2],)))
        if skip is not None:
            found[SKIP] = skip
        return found

    def find_places(self) -> None:
        """Find where to copy from."""
        if self.min_match:
            known = self.known([])
            orders = [m for m in (2, 1, 0) if m in known and m + 1 >= min(self.min_match, 2)]
            self.places.find_match(self.text, [known[m].last for m in orders])
            match = self.places.match
            if match is not None and match.length < self.min_match:
                self.places.match = None
        self.places.find_near(self.text)

    def count_recent(self) -> None:
        """Count the recent tokens up to the text's end."""
        for at in range(max(self.recent_n, len(self.text) - RECENT_SPAN), len(self.text)):
            self.recent.note(self.text[at], at)
        self.recent_n = len(self.text)
