"""Twin of the places in a store that a sequence follows, and what comes next at them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

PLACES, AHEAD, LEADERS, SURE = 32, 64, 8, 12
FAR_OFF, COPIED = 2**31 - 1, 3


@dataclass
class Followed:
    """A place that is followed: ``at`` is the position of the next token.

    ``distance`` is that from where the last copy goes on.
    """

    at: int
    length: int
    kin: int
    distance: int = FAR_OFF

    def moved(self, n: int) -> Followed:
        return replace(self, at=self.at + n, length=self.length + n)


@dataclass
class Votes:
    """What comes next at the places that a path follows.

    ``counts`` holds (among the longest matches of nearest kin, among others) by token, the first
    ``LEADERS`` tokens only; ``total`` and ``others`` count all places that go on. ``distance``
    holds the shortest distance of a token's places.
    """

    length: int = 0
    total: int = 0
    others: int = 0
    counts: dict[int, tuple[int, int]] = field(default_factory=dict)
    distance: dict[int, int] = field(default_factory=dict)

    @property
    def leading(self) -> int:
        """The token with the highest count among the longest matches, the first of equals."""
        return max(self.counts, key=lambda token: self.counts[token][0])

    @property
    def leading_other(self) -> int:
        return max(self.counts, key=lambda token: self.counts[token][1])

    @property
    def nearest(self) -> int | None:
        """The token at the shortest distance from where the last copy would go on."""
        return min(self.distance, key=lambda token: self.distance[token], default=None)


class StorePrior:
    """What a conversation's requests learn about a store, one after another."""

    def __init__(self) -> None:
        self.copied_to: int | None = None  # where the last copy would go on


class StoreReader:
    """What one sequence follows in a store."""

    def __init__(self, source: Any, familiar: StorePrior | None = None) -> None:
        self.source = source
        self.familiar = familiar or StorePrior()
        self.places: list[Followed] = []
        self.longest = 0
        self.earlier = False  # of the longest match
        self.asked = False
        self.look_ups = self.hits = 0

    def find(self, text: Sequence[int], most: int) -> list[Followed]:
        self.asked = self.longest < SURE
        if self.asked:
            self.look_ups += 1
            self.places = [Followed(*place) for place in self.source.look(text, most)]
            self.longest = self.places[0].length if self.places else 0
            self.earlier = bool(self.places) and self.source.earlier(self.places[0].at)
        for place in self.places:
            place.distance = FAR_OFF
            if self.familiar.copied_to is not None:
                place.distance = min(abs(place.at - self.familiar.copied_to), FAR_OFF)
        return self.places

    def token(self, place: Followed, depth: int) -> int | None:
        """The token ``depth`` after the next one at a place."""
        if depth >= AHEAD:
            return None
        tokens = [self.source.token(place.at + i) for i in range(depth + 1)]
        return None if None in tokens else int(tokens[-1])

    def vote(self, live: list[Followed], depth: int) -> Votes:
        """Count what comes next at places, ``depth`` tokens after the text."""
        votes, kin = Votes(), 0
        for place in live:
            token = self.token(place, depth)
            if token is None:
                continue
            if not votes.length:
                votes.length, kin = place.length + depth, place.kin
            longest = (place.length + depth, place.kin) == (votes.length, kin)
            votes.total += longest
            votes.others += not longest
            if token in votes.counts or len(votes.counts) < LEADERS:
                count, other = votes.counts.get(token, (0, 0))
                votes.counts[token] = (count + longest, other + (not longest))
                distance = min(votes.distance.get(token, FAR_OFF), place.distance)
                votes.distance[token] = distance
        return votes

    def matching(self, live: list[Followed], depth: int, token: int) -> list[Followed]:
        return [place for place in live if self.token(place, depth) == token]

    def follow(self, new: Sequence[int]) -> None:
        """Move on over tokens just committed; drop the places that went on otherwise."""
        n = len(new)
        if n > AHEAD:
            self.places, self.longest, self.asked = [], 0, False
            self.familiar.copied_to = None
            return
        agreements = [self.agreement(place, new) for place in self.places]
        self.note_copied(agreements, n)
        follow = zip(self.places, agreements, strict=True)
        kept = [place.moved(n) for place, agrees in follow if agrees == n]
        self.hits += self.asked and any(agreements)
        self.asked = False
        longest = self.longest + n
        self.longest = longest if kept and kept[0].length == longest else 0
        self.places = kept

    def agreement(self, place: Followed, new: Sequence[int]) -> int:
        """How many of the new tokens, from the first on, come next at a place."""
        agrees = 0
        while agrees < len(new) and self.token(place, agrees) == new[agrees]:
            agrees += 1
        return agrees

    def note_copied(self, agreements: Sequence[int], n: int) -> None:
        """Note where the last copy goes on: so many of the ``n`` new tokens came at each place."""
        last: tuple[int, Followed] | None = None
        for agrees, place in zip(agreements, self.places, strict=True):
            if (
                agrees
                and place.length + agrees >= COPIED
                and (last is None or (agrees, -place.distance) > (last[0], -last[1].distance))
            ):
                last = agrees, place
        if last is not None:
            self.familiar.copied_to = last[1].at
        if self.familiar.copied_to is not None:
            self.familiar.copied_to += n

    def count_anew(self) -> None:
        self.look_ups = self.hits = 0
