"""Twin of the places: where a sequence copies from, and how they move on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

FAR, BEFORE, AFTER, NEAR_LENGTH = 64, 16, 32, 8


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
