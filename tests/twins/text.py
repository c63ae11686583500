"""Twin of the committed text: its contexts, places, frequent and recent tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from tests.twins.common import Tokens

LEADERS, FADE_AT = 3, 255
FAR, BEFORE, AFTER, NEAR_LENGTH = 64, 16, 32, 8
CONTEXTS, ORDERS = 4, 3
SKIP, SKIP_SEED = 3, 32  # the context that skips a token: its index, its seed
RECENT, RECENT_SPAN = 64, 2048


@dataclass
class Slot:
    """One context: its leading continuations, the most recent first, and all that followed."""

    leaders: list[list[int]] = field(default_factory=list)  # [token, count]
    total: int = 0
    last: int = -1
    most: int = LEADERS  # continuations kept

    def note(self, token: int, at: int) -> None:
        """Count a continuation; a new one takes the place of the rarest, the oldest of equals."""
        mine = next((each for each in self.leaders if each[0] == token), None)
        if mine is None:
            if len(self.leaders) == self.most:
                rarest = min(count for _, count in self.leaders)
                self.leaders.remove([each for each in self.leaders if each[1] == rarest][-1])
            mine = [token, 0]
        else:
            self.leaders.remove(mine)
        self.leaders.insert(0, [token, mine[1] + 1])
        self.total += 1
        self.last = at
        if self.total == FADE_AT:
            self.total = FADE_AT // 2
            for each in self.leaders:
                each[1] //= 2

    def leader(self) -> int:
        """The most frequent continuation, the most recent of equals."""
        return max(self.leaders, key=lambda each: each[1])[0]

    def count(self, token: int) -> int:
        return next((count for each, count in self.leaders if each == token), 0)


class ContextTable:
    """Leading continuations by (seed, context)."""

    def __init__(self) -> None:
        self.slots: dict[tuple[int, tuple[int, ...]], Slot] = {}

    def add(self, context: Tokens, token: int, at: int, seed: int = 0) -> None:
        key = (seed, tuple(int(each) for each in context))
        self.slots.setdefault(key, Slot()).note(token, at)


@dataclass
class Place:
    """Somewhere in the text that is followed: ``at`` is the position of the next token.

    ``length`` tokens matched before; ``since``: of a resumed copy, tokens since it was left; of a
    place near it, the distance from there.
    """

    at: int
    length: int
    since: int = 0


@dataclass
class Places:
    """The longest known match, where the last copy would go on, and the best match near there."""

    match: Place | None = None
    resume: Place | None = None
    near: Place | None = None

    def find_match(self, text: Sequence[int], ends: Sequence[int]) -> None:
        """Go to the longest of the match so far and the last occurrences that end at ``ends``."""
        at, length = (-1, 0) if self.match is None else (self.match.at, self.match.length)
        for end in ends:
            agrees = agreement(text, end, FAR)
            if end != at and length < FAR and agrees > length:
                at, length = end, agrees
        self.match = None if length == 0 else Place(at, length)

    def find_near(self, text: Sequence[int]) -> None:
        """Go to the place around the resumed copy that agrees longest, the nearest of equals."""
        self.near = None
        if self.resume is None:
            return
        resumed = self.resume.at
        for at in range(max(resumed - BEFORE, 1), min(resumed + AFTER, len(text))):
            agrees = agreement(text, at, NEAR_LENGTH)
            taken = at == resumed or (self.match is not None and at == self.match.at)
            if agrees == 0 or taken:
                continue
            distance = abs(at - resumed)
            if self.near is None or (agrees, -distance) > (self.near.length, -self.near.since):
                self.near = Place(at, agrees, distance)

    def follow(self, text: Sequence[int], n: int) -> None:
        """Move on over the last ``n`` tokens of the text, which were just committed."""
        copied, nearby = continued(text, self.match, n), continued(text, self.near, n)
        if copied and self.match is not None:
            left = max(n - copied - 1, 0)
            self.resume = Place(self.match.at + n, self.match.length + copied, left)
        elif nearby and self.near is not None:
            self.resume = Place(self.near.at + n, self.near.length + nearby, n - nearby)
        elif self.resume is not None:
            self.resume = Place(self.resume.at + n, self.resume.length, self.resume.since + n)
        if self.resume is not None and self.resume.at >= len(text) - n:
            self.resume = None
        self.near = None
        if self.match is not None and copied == n:
            self.match = Place(self.match.at + n, self.match.length + n)
        else:
            self.match = None


def agreement(text: Sequence[int], at: int, most: int) -> int:
    """How many tokens before ``at`` equal those at the text's end, counted up to ``most``."""
    n = 0
    while n < min(most, at) and text[at - 1 - n] == text[-1 - n]:
        n += 1
    return n


def continued(text: Sequence[int], place: Place | None, n: int) -> int:
    """How many of the text's last ``n`` tokens, from the first on, equal those at a place."""
    if place is None:
        return 0
    there, new = text[place.at : place.at + n], text[-n:]
    return next((i for i in range(n) if there[i] != new[i]), n)


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
        at = len(self.text)
        for m in range(min(at, ORDERS)):
            self.table.add(self.text[at - m - 1 :], token, at, m + 2)
        if at >= 2:
            self.table.add(self.text[-2:-1], token, at, SKIP_SEED)
        self.unigrams.note(token, at)
        self.text.append(token)

    def known(self, path: Sequence[int]) -> dict[int, Slot]:
        """The known contexts after the text and a path, by index: 0..2, and SKIP."""
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
        if self.min_match:
            known = self.known([])
            orders = [m for m in (2, 1, 0) if m in known and m + 1 >= min(self.min_match, 2)]
            self.places.find_match(self.text, [known[m].last for m in orders])
            match = self.places.match
            if match is not None and match.length < self.min_match:
                self.places.match = None
        self.places.find_near(self.text)

    def count_recent(self) -> None:
        for at in range(max(self.recent_n, len(self.text) - RECENT_SPAN), len(self.text)):
            self.recent.note(self.text[at], at)
        self.recent_n = len(self.text)
