"""Twin of the places in a store that a sequence follows, and what comes next at them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

PLACES, AHEAD, LEADERS, SURE, PATIENCE, LONGEST_PAUSE = 32, 64, 8, 12, 16, 64


class Source(Protocol):
    """A store: places behind a context, and their text."""

    def look(self, context: Sequence[int], most: int) -> list[tuple[int, int]]:
        """(position, tokens that agree) of at most ``most`` places, the longest first."""
        ...

    def token(self, at: int) -> int | None:
        """The token at a position, None at a document's end."""
        ...

    def earlier(self, at: int) -> bool:
        """Whether a position is in what earlier requests said."""
        ...


@dataclass
class Followed:
    """A place that is followed: ``at`` is the position of the next token."""

    at: int
    length: int


@dataclass
class Votes:
    """What comes next at the places that a path follows.

    ``counts`` holds (among the longest matches, among shorter ones) by token, the first
    ``LEADERS`` tokens only; ``total`` and ``others`` count all places that go on.
    """

    length: int = 0
    total: int = 0
    others: int = 0
    counts: dict[int, tuple[int, int]] = field(default_factory=dict)
    resumed: int | None = None


class StoreReader:
    """What one sequence follows in a store."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self.places: list[Followed] = []
        self.resume: Followed | None = None
        self.since = 0
        self.longest = 0
        self.earlier = self.resume_earlier = False  # of the longest match, and of the place left
        self.asked = False
        self.missed = self.pause = self.look_ups = self.hits = 0

    def find(self, text: Sequence[int], most: int) -> list[Followed]:
        """The places behind a text."""
        self.asked = self.longest < SURE and self.pause == 0
        if self.asked:
            self.look_ups += 1
            self.places = [Followed(at, length) for at, length in self.source.look(text, most)]
            self.longest = self.places[0].length if self.places else 0
            self.earlier = bool(self.places) and self.source.earlier(self.places[0].at)
        return self.places

    def token(self, place: Followed, depth: int) -> int | None:
        """The token ``depth`` behind the next one at a place."""
        if depth >= AHEAD:
            return None
        for i in range(depth + 1):
            token = self.source.token(place.at + i)
            if token is None:
                return None
        return token

    def vote(self, live: list[Followed], depth: int) -> Votes:
        """Count what comes next at places, ``depth`` tokens behind the text."""
        votes = Votes()
        if self.resume is not None:
            votes.resumed = self.token(self.resume, depth)
        for place in live:
            token = self.token(place, depth)
            if token is None:
                continue
            votes.length = votes.length or place.length + depth
            longest = place.length + depth == votes.length
            votes.total += longest
            votes.others += not longest
            if token in votes.counts or len(votes.counts) < LEADERS:
                count, other = votes.counts.get(token, (0, 0))
                votes.counts[token] = (count + longest, other + (not longest))
        return votes

    def matching(self, live: list[Followed], depth: int, token: int) -> list[Followed]:
        """Those of the places where ``token`` comes next."""
        return [place for place in live if self.token(place, depth) == token]

    def follow(self, new: Sequence[int]) -> None:
        """Move on over tokens just committed; drop the places that went on otherwise."""
        n = len(new)
        self.pause = max(self.pause - n, 0)
        if n > AHEAD:
            self.places, self.longest, self.resume, self.asked = [], 0, None, False
            return
        if self.resume is not None:
            self.since += n
            self.resume = self.passed(self.resume, n)
        kept, furthest, best = [], 0, None
        for place in self.places:
            agrees = 0
            while agrees < n and self.token(place, agrees) == new[agrees]:
                agrees += 1
            if agrees == n:
                kept.append(Followed(place.at + n, place.length + n))
            elif agrees > furthest:
                furthest, best = agrees, place
        if not kept and best is not None:
            self.since = n - furthest - 1
            self.resume_earlier = self.source.earlier(best.at)
            self.resume = self.passed(Followed(best.at, best.length + furthest), n)
        self.judge(bool(kept or furthest))
        longest = self.longest + n
        self.longest = longest if kept and kept[0].length == longest else 0
        self.places = kept

    def count_anew(self) -> None:
        """Forget how many look-ups there were, and that they failed."""
        self.missed = self.pause = self.look_ups = self.hits = 0

    def passed(self, place: Followed, n: int) -> Followed | None:
        """A place that was left, ``n`` tokens on; None past its document's end."""
        if n and self.token(place, n - 1) is None:
            return None
        return Followed(place.at + n, place.length)

    def judge(self, right: bool) -> None:
        """Note whether any place of the last look-up went on as the sequence did."""
        if not self.asked:
            return
        self.asked = False
        self.hits += right
        self.missed = 0 if right else self.missed + 1
        if self.missed >= PATIENCE:
            self.pause = min(2 ** min(self.missed - PATIENCE + 1, 6), LONGEST_PAUSE)
