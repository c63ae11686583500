"""Twin of the candidates: what may come at a position, how probably, and what came."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from tests.twins.calibration import (
    HALVE_SHARE_AT,
    Calibration,
    Candidate,
    Real,
    Situation,
    count_bucket,
    distance_bucket,
    length_bucket,
)
from tests.twins.reader import Followed, StorePrior, StoreReader, Votes
from tests.twins.text import ORDERS, SKIP, CommittedText, Place, Slot
from tests.twins.top_tokens import (
    FAINT,
    FAINT_CHANCE,
    HeadRow,
    HeadRows,
    Row,
    TopTokens,
    Unemitted,
    age_bucket,
)


@dataclass
class Position:
    """Behind the committed text and a path of drafted tokens.

    ``match`` and ``near`` are the places whose tokens the path consists of.
    """

    path: list[int]
    reach: Real
    match: Place | None
    near: Place | None
    length: int  # of the match, while the path follows it
    live: list[Followed] = field(default_factory=list)  # the store's places that the path follows
    votes: Votes = field(default_factory=Votes)
    candidates: list[Candidate] = field(default_factory=list)
    head: HeadRow | None = None  # a drafting head's row
    placed: list[int | None] = field(default_factory=list)  # the token at each place
    ranked: int = 0  # candidates from here on only a drafting head gives
    recycled: int = 0  # candidates from here on only the target's top-k candidates give

    @property
    def best(self) -> Candidate:
        """The most probable candidate, the first of equals."""
        return max(self.candidates, key=lambda each: each.odds)


class Estimator:
    """Estimates P(next) of the candidates of one sequence; see the native one's arguments."""

    def __init__(
        self,
        calibration: Calibration,
        copies: bool = True,
        counts: bool = True,
        falls_back: bool = True,
        min_match: int = 2,
        store: Any = None,
        recycles: bool = False,
        headed: bool = False,
        familiar: StorePrior | None = None,
    ) -> None:
        self.calibration = calibration
        self.counts, self.falls_back = counts, falls_back
        self.committed = CommittedText(min_match if copies else 0)
        self.store = None if store is None else StoreReader(store, familiar)
        self.top_tokens = TopTokens() if recycles else None
        self.head = HeadRows() if headed else None
        self.unemitted: list[Unemitted] = []  # what the target left unemitted before the last tree

    def estimate(self, at: Position, least: Real) -> None:
        """Find a position's candidates, in the order of preference, with their probabilities."""
        depth = len(at.path)
        own = self.committed.text
        text = own + at.path
        resume = self.committed.places.resume
        at.placed = [
            None if place is None or place.at + depth >= len(there) else there[place.at + depth]
            for place, there in ((at.match, text), (resume, own), (at.near, own))
        ]
        known = self.committed.known(at.path)
        orders = sum(m < ORDERS for m in known)
        length = length_bucket(max(at.length, orders))
        resumed = at.placed[1]
        at.votes = Votes() if self.store is None else self.store.vote(at.live, depth)
        earlier = self.store is not None and self.store.earlier
        stored = store_class(max(at.length, orders), at.votes.length, earlier)
        row = None  # the target's top-k candidates after the last token, where known
        if self.top_tokens is not None and text:
            row = self.top_tokens.rows.get(text[-1])
        at.head = None if self.head is None else self.head.at(at.path)
        for token in self.collect(at, known, row, least):
            situations = self.situations(token, at, known, length)
            if row is not None:
                situations["top"] = self.top_situation(token, row)
            if at.head is not None:
                situations |= self.head_situations(token, at, at.head, known)
            agrees = None if resumed is None else resumed == token
            standing = self.standing(token, at, known)
            candidate = Candidate(
                token, situations, (length, agrees, stored, at.head is not None), standing
            )
            at.candidates.append(self.calibration.mix(candidate))

    def situations(
        self, token: int, at: Position, known: dict[int, Slot], length: int
    ) -> dict[str, Situation]:
        """A candidate's situation by input; ``length`` is a bucket."""
        found: dict[str, Situation] = {}
        depth, places = len(at.path), self.committed.places
        for m, slot in known.items():
            count = slot.count(token)
            others = count_bucket(slot.total - count)
            newest = slot.leaders[0][0] == token
            found[f"context {m}"] = ("context", m, count_bucket(count), others, newest)
        match, resumed, near = (None if other is None else other == token for other in at.placed)
        if match is not None:
            found["match"] = ("match", length, match)
        if resumed is not None and places.resume is not None:
            copied = length_bucket(places.resume.length)
            found["resume"] = ("resume", min(places.resume.since + depth, 5), copied, resumed)
        if near is not None and places.near is not None and places.resume is not None:
            where = (
                min(places.resume.since, 7),
                min(places.near.length + depth, 8),
                min(length_bucket(places.near.since) // 2, 5),
            )
            found["near"] = ("near", *where, near)
        found["session"] = ("session", length)
        return found | self.store_situations(token, at)

    def store_situations(self, token: int, at: Position) -> dict[str, Situation]:
        found: dict[str, Situation] = {}
        if self.store is None:
            return found
        votes, length = at.votes, length_bucket(at.votes.length)
        earlier = self.store.earlier
        count, other = votes.counts.get(token, (0, 0))
        if votes.total:
            rest = count_bucket(votes.total - count)
            found["store"] = ("store", earlier, length, count_bucket(count), rest)
        if votes.others:
            rest = count_bucket(votes.others - other)
            found["store other"] = ("store other", earlier, length, count_bucket(other), rest)
        if votes.nearest is not None:
            shortest = votes.distance[votes.nearest]
            rank = 2 if votes.distance.get(token) == shortest else int(token in votes.distance)
            found["nearest"] = ("nearest", earlier, rank, distance_bucket(shortest), length)
        return found

    def standing(self, token: int, at: Position, known: dict[int, Slot]) -> Situation | None:
        """What the text and the store say of a candidate: which further weights count.

        None where the store says nothing: none of them.
        """
        own = self.own_standing(token, at, known)
        counts = at.votes.counts
        if not counts or self.store is None:
            return None
        says = int(token in counts)
        if says:
            says += (token == at.votes.leading_other) + 2 * (token == at.votes.leading)
        return (self.store.earlier, own, says, length_bucket(at.votes.length))

    def own_standing(self, token: int, at: Position, known: dict[int, Slot]) -> int:
        """What the text says of a candidate: nothing, it followed, it leads, the match's token."""
        longest = max((m for m in known if m < ORDERS), default=None)
        if token == at.placed[0]:
            return 3
        if longest is not None and known[longest].leader() == token:
            return 2
        return int(any(slot.count(token) for slot in known.values()))

    def head_situations(
        self, token: int, at: Position, row: HeadRow, known: dict[int, Slot]
    ) -> dict[str, Situation]:
        own = self.own_standing(token, at, known)
        if token in at.votes.counts:
            own = max(own, 2 if token == at.votes.leading else 1)
        rank, chance = 8, row.chances[0]
        if token in row.tokens:
            rank = row.tokens.index(token)
            chance = row.chances[rank]
        return {"head": ("head", 4 if rank == 8 else min(rank, 3), chance, own)}

    def count_unemitted(self) -> None:
        if self.top_tokens is not None:
            recent = {token for token, _ in self.committed.recent.leaders}
            self.unemitted = self.top_tokens.unemitted(self.committed.text, recent)

    def top_situation(self, token: int, row: Row) -> Situation:
        """What the target said of a candidate when it last saw the token before."""
        age = age_bucket(len(self.committed.text) - row.since)
        if token in row.tokens:
            rank = row.tokens.index(token)
            return ("top", min(rank, 3), row.buckets[rank], age)
        return ("top", 4, row.buckets[0] if row.buckets else FAINT, age)

    def collect(
        self, at: Position, known: dict[int, Slot], row: Row | None, least: Real
    ) -> list[int]:
        """The different tokens that may come next, in the order of preference among equals."""
        leaders = {m: slot.leader() for m, slot in known.items()} if self.counts else {}
        match, resumed, near = at.placed
        head = None if at.head is None else at.head.tokens[0]
        order = [match, head, leaders.get(2), leaders.get(1), leaders.get(0)]
        order += [resumed, near, *self.stored(at.votes, least), leaders.get(SKIP)]
        if self.counts and least <= 1:
            for slot in (known[m] for m in (2, 1, 0) if m in known):
                share = least * Real(slot.total)
                order += [token for token, count in slot.leaders if count > share]
        tokens = list(dict.fromkeys(token for token in order if token is not None))
        at.recycled = len(tokens)
        if row is not None:
            pairs = enumerate(zip(row.tokens, row.buckets, strict=True))
            fit = [token for i, (token, b) in pairs if i == 0 or (least <= 1 and b < FAINT)]
            tokens = list(dict.fromkeys(tokens + fit))
        at.ranked = len(tokens)
        if at.head is not None and least <= 1:
            others = list(zip(at.head.tokens, at.head.chances, strict=True))[1:]
            fit = [token for token, chance in others if chance < FAINT_CHANCE]
            tokens = list(dict.fromkeys(tokens + fit))
        if not tokens and self.falls_back and self.committed.unigrams.total:
            tokens = [self.committed.unigrams.leader()]
            at.recycled = at.ranked = 1
        return tokens

    def stored(self, votes: Votes, least: Real) -> list[int | None]:
        """A store's tokens: the leading one by either count, or all with a share."""
        order: list[int | None] = []
        if least <= 1:
            order += [
                token
                for token, (count, other) in votes.counts.items()
                if count > least * Real(votes.total) or other > least * Real(votes.others)
            ]
        elif votes.counts:
            order.append(votes.leading)
            if votes.others:
                order.append(votes.leading_other)
            order.append(votes.nearest)
        return order

    def others(self, at: Position) -> list[tuple[int, Situation]]:
        """The recent tokens that are no candidates, with situations; then the unemitted ones."""
        known = {each.token for each in at.candidates}
        unemitted = [] if at.path else self.unemitted
        offered = known | {each.token for each in unemitted}
        recent: list[tuple[int, Situation]] = [
            (token, ("recent", age.bit_length(), count_bucket(count)))
            for age, (token, count) in enumerate(self.committed.recent.leaders)
            if token not in offered
        ]
        return recent + [
            (each.token, ("unemitted", each.back, each.bucket, each.recent))
            for each in unemitted
            if each.token not in known
        ]

    def source(self, at: Position, token: int) -> int:
        """0 for copy, 1 for a resumed copy, 2 for n-grams, 3 for frequent or recent tokens.

        4 for a store, 5 for the target's top-k candidates, 6 for a drafting head.
        """
        if token == at.placed[0]:
            return 0
        if at.head is not None and token == at.head.tokens[0]:
            return 6
        if token in at.placed:
            return 1
        if token in at.votes.counts:
            return 4
        if token in (each.token for each in at.candidates[at.ranked :]):
            return 6
        if token in (each.token for each in at.candidates[at.recycled :]):
            return 5
        mine = next((each for each in at.candidates if each.token == token), None)
        if mine is None and at.head is not None and token == at.head.fixed:
            return 6
        if mine is None and not at.path and token in (each.token for each in self.unemitted):
            return 5
        counted = mine is not None and any(name.startswith("context") for name in mine.situations)
        return 2 if self.counts and counted else 3

    def learn_position(self, at: Position, token: int, tree: bool) -> None:
        """Compare a position's candidates, in a tree recent tokens too, with what came there."""
        for each in at.candidates:
            self.calibration.learn(each, each.token == token)
        if not tree or not self.falls_back or any(each.token == token for each in at.candidates):
            return
        for other, situation in self.others(at):
            self.calibration.cell(situation).count(other == token, HALVE_SHARE_AT)


def store_class(own: int, length: int, earlier: bool) -> int:
    """Which weights: by the lengths of the text's own match and of the store's."""
    known = 1 if length < own else 2 if length < 8 else 3
    return 0 if length == 0 else 3 * earlier + known
