"""Plain-Python twin of the value engine: which token is drafted at a position, and why.

Same methods, arguments and results as the native one, to the last bit: what decides is computed in
float32 and in the native order, so that both round alike. Nothing at run time uses it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ngramspec._reference.structures import Tokens

Real = np.float32
ZERO = Real(0)
LEADERS, FADE_AT = 3, 255
RATE, CONSTANT, STRONGEST = Real(0.02), Real(0.3), Real(7.6)
GUESS = 0.05  # P(right) of the most frequent token where nothing else is known
ALONE = (0, None)  # the set of weights there
PRIOR, PRIOR_SHARE, HALVE_AT = Real(4), Real(100), 600
HOPELESS, LOOKAHEAD, MOOD_RATE = Real(0.01), 12, Real(0.15)
HOPELESS_NODE, FAINT, LIKELY = Real(0.004), Real(0.0597), Real(0.5)  # in trees
MORE = Real(1.0001)  # by which a node must be reached more probably to go before another
RECENT, OLDEST, HALVE_SHARE_AT, FADED = 64, 6, 10000, 2048
FAR, BEFORE, BEHIND = 64, 16, 32
SKIP = 32  # seed of the context that skips a token
Situation = tuple[Any, ...]

# Of buckets: the count, the length. Of contexts with one continuation so far: 1 - P(it again).
COUNT_OF = (0, 1, 2, 3, 5, 9, 15)
LENGTH_OF = (2, 2, 2, 3, 4, 5, 6, 8, 12, 20, 40, 60)
SURPRISE = (0.4, 0.2, 0.1, 0.4)
WEIGHTS = {"context 3": 0.05, "resume": 0.05, "session": 0.1, "bias": 0.4}

LN2 = Real(0.69314718)
LN = (0.99998116, -0.49947178, 0.32824221, -0.22589801, 0.13467453, -0.05514520, 0.01076451)


def _log(x: Real) -> Real:
    """The natural logarithm as the native one approximates it: a polynomial of the mantissa."""
    mantissa, exponent = math.frexp(x)
    m, total = Real(2 * mantissa - 1), Real(0)
    for factor in reversed(LN):
        total = m * (Real(factor) + total)
    return Real(exponent - 1) * LN2 + total


def _squash(odds: Real) -> Real:
    """The probability of log-odds."""
    return Real(1 / (1 + math.exp(-float(odds))))


def _clipped(x: Real, most: Real) -> Real:
    return min(max(x, -most), most)


def _length_bucket(n: int) -> int:
    return n if n <= 6 else next(i for i, most in enumerate((8, 12, 20, 40, n), 7) if n <= most)


def _count_bucket(n: int) -> int:
    return n if n <= 3 else 4 if n <= 5 else 5 if n <= 9 else 6


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
        """How often ``token`` followed, as far as that is kept."""
        return next((count for each, count in self.leaders if each == token), 0)


class ContextTable:
    """Leading continuations by (seed, context)."""

    def __init__(self) -> None:
        self.slots: dict[tuple[int, tuple[int, ...]], Slot] = {}

    def __len__(self) -> int:
        return len(self.slots)

    def add(self, context: Tokens, token: int, at: int, seed: int = 0) -> None:
        """Count that ``token``, at position ``at``, followed a context."""
        key = (seed, tuple(int(each) for each in context))
        self.slots.setdefault(key, Slot()).note(token, at)

    def get(self, context: Tokens, seed: int = 0) -> tuple[list[tuple[int, int]], int, int] | None:
        """([(token, count), ...] by recency, total, last position), or None if never seen."""
        slot = self.slots.get((seed, tuple(int(each) for each in context)))
        if slot is None:
            return None
        return [(token, count) for token, count in slot.leaders], slot.total, slot.last


@dataclass
class Cell:
    """How many candidates in a situation were right, and how many tested; both fade."""

    right: Real
    tested: Real
    stretched: Real | None = None  # what stretch() said of these counts

    def count(self, right: bool, halve_at: int) -> None:
        """Count a tested candidate, and halve the counts when they are full."""
        self.right += Real(right)
        self.tested += Real(1)
        if self.tested > halve_at:
            self.right, self.tested = self.right / Real(2), self.tested / Real(2)
        self.stretched = None

    def share(self) -> Real:
        """The share of right candidates."""
        return self.right / self.tested

    def stretch(self) -> Real:
        """Log-odds of that share, within +-STRONGEST."""
        if self.stretched is None:
            wrong = self.tested - self.right
            odds = _log(self.right) - _log(wrong) if wrong > 0 else STRONGEST
            self.stretched = _clipped(odds, STRONGEST)
        return self.stretched


class Calibration:
    """How often candidates in which situation were right, and weights to mix what that tells."""

    def __init__(self) -> None:
        self.cells: dict[Situation, Cell] = {}
        self.weights: dict[tuple[Situation, str], Real] = {}

    def cell(self, situation: Situation) -> Cell:
        """A situation's counts; a new one begins with its prior."""
        if situation not in self.cells:
            tested = PRIOR_SHARE if situation[0] == "recent" else PRIOR
            self.cells[situation] = Cell(tested * Real(self.prior(situation)), tested)
        return self.cells[situation]

    def prior(self, situation: Situation) -> Any:
        """A guess at P(right) before anything was seen."""
        kind, *rest = situation
        if kind == "context":
            m, seen, others, newest = rest
            count = COUNT_OF[seen]
            if seen == 0:
                return 0.02
            if not newest:
                return 0.6 - 0.04 * others
            if others == 0:
                return 1 - float(Real(SURPRISE[m]) / Real(count))
            return float(max((count - 0.8) / (count + COUNT_OF[others]), 0.18))
        if kind == "recent":
            age, seen = rest
            share = 0.006 * max(seen, 0.5)
            return share / 2 if age in (0, OLDEST) else share
        if kind == "session":
            return 0.1 + 0.08 * min(rest[1], 3) if rest[1] else GUESS
        if kind == "resume":
            return 0.25
        if kind == "near":
            length = max(rest[1], 1)
            return float(length / (length + 2)) if rest[-1] else 0.06
        least = LENGTH_OF[rest[0]]
        return 1 - 1 / least if rest[-1] else 0.15 / least

    def weight(self, set: Situation, name: str) -> Real:
        """The weight of an input in a set; a new one begins as WEIGHTS says, 0.3 elsewhere."""
        if (set, name) in self.weights:
            return self.weights[set, name]
        begin = Real(WEIGHTS.get(name, 0.3))
        if name == "match":
            begin = Real(float(begin) + 0.05 * set[0])
        if set == ALONE and name in ("session", "bias"):
            begin = Real(name == "session")
        return begin


@dataclass
class Candidate:
    """A token that may come next, the situations that speak for it, and P(it is next)."""

    token: int
    situations: dict[str, Situation]
    set: Situation
    odds: Real = ZERO
    p: Real = ZERO


@dataclass
class Position:
    """What may come after the committed text and the drafted tokens of a path behind it."""

    path: list[int]
    reach: Real
    along: Place | None
    near: Place | None
    length: int  # of the match, while it is read along
    found: list[Candidate] = field(default_factory=list)
    votes: list[int | None] = field(default_factory=list)

    @property
    def best(self) -> Candidate:
        """The most probable candidate, the first of equals."""
        return max(self.found, key=lambda each: each.odds)


@dataclass
class Node:
    """A token that may be drafted: P(it is next), P(the path to it and it), the position behind."""

    token: int
    p: Real
    reach: Real
    parent: int
    at: Position
    source: int
    behind: Position | None = None


@dataclass
class Place:
    """Somewhere in the text that is being read along.

    ``length`` tokens matched before; ``since``: of a resumed copy, tokens since it was left; of a
    place near it, the distance from there.
    """

    at: int
    length: int
    since: int = 0


class ValueEngine:
    """One sequence's structures, and the drafting over them; see the native one's arguments."""

    def __init__(
        self,
        calibration: Calibration,
        copies: bool = True,
        counts: bool = True,
        falls_back: bool = True,
        min_match: int = 2,
    ) -> None:
        self.calibration = calibration
        self.copies, self.counts, self.falls_back = copies, counts, falls_back
        self.min_match = min_match
        self.table = ContextTable()
        self.unigrams = Slot()
        self.text: list[int] = []
        self.recent = Slot(most=RECENT)
        self.recent_n = 0  # tokens of the text that it has seen
        self.root: Position | None = None  # of the last proposal
        self.nodes: list[Node] = []  # by reach
        self.tree = False
        self.match: Place | None = None
        self.resume: Place | None = None
        self.near: Place | None = None
        self.mood = Real(0.5)

    def __len__(self) -> int:
        return len(self.text)

    def draft(self, gamma: int, cost: Any = None) -> tuple[Any, Any, Any]:
        """(tokens int32, confidence float32, source int8) of the chain worth verifying."""
        tokens, _, confidence, source = self.propose(gamma, cost, tree=False)
        return tokens, confidence, source

    def draft_tree(self, gamma: int, cost: Any = None) -> tuple[Any, Any, Any, Any]:
        """(tokens, parents int32, confidence float32, source int8) of the tree worth verifying."""
        return self.propose(gamma, cost, tree=True)

    def propose(self, gamma: int, cost: Any, *, tree: bool) -> tuple[Any, Any, Any, Any]:
        """Draft best-first: the node reached most probably, then what may come behind it."""
        self.tree = tree
        self.nodes = []
        if tree:
            for at in range(max(self.recent_n, len(self.text) - FADED), len(self.text)):
                self.recent.note(self.text[at], at)
            self.recent_n = len(self.text)
        self.find_match()
        self.find_near()
        length = 0 if self.match is None else self.match.length
        self.root = Position([], Real(1), self.match, self.near, length)
        self.look_at(self.root, -1, gamma)
        expected, best = Real(1), 0
        highest = Real(0) if cost is None else Real(1) / Real(cost[1])
        for k in range(gamma):
            if k >= len(self.nodes):
                break
            node = self.nodes[k]
            expected += node.reach
            value = Real(0) if cost is None else expected / Real(cost[k + 2])
            if cost is None or value >= highest:
                best, highest = k + 1, value
            hopeless = HOPELESS_NODE if tree else HOPELESS
            if node.reach < hopeless or k + 1 >= best + LOOKAHEAD or k + 1 == gamma:
                break
            full = len(self.nodes) == gamma and node.reach <= self.nodes[-1].reach
            copied = node.at.along is not None and node.token == node.at.votes[0]
            if not tree or (node.reach > (HOPELESS if copied else FAINT) and not full):
                node.behind = self.behind(node)
                self.look_at(node.behind, k, gamma)
        drafted = self.nodes[:best]
        return (
            np.array([node.token for node in drafted], np.int32),
            np.array([node.parent for node in drafted], np.int32),
            np.array([node.p for node in drafted], np.float32),
            np.array([node.source for node in drafted], np.int8),
        )

    def behind(self, node: Node) -> Position:
        """The position behind a node: places are read along while the path is theirs."""
        at = node.at
        along = at.along if node.token == at.votes[0] else None
        near = at.near if node.token == at.votes[2] else None
        length = 0 if along is None else at.length + 1
        return Position([*at.path, node.token], node.reach, along, near, length)

    def look_at(self, at: Position, parent: int, gamma: int) -> None:
        """Find what may come at a position and offer it: in a chain the best, in a tree all.

        What the candidates leave of the probability is shared by the tokens used lately.
        """
        self.judge(at)
        if not self.tree:
            if at.found:
                self.offer(at, parent, gamma, at.best.token, at.best.p)
            return
        rest = Real(1)
        for each in at.found:
            rest -= each.p
        scale = Real(1) if rest >= 0 else Real(1 / (1 - float(rest)))
        for each in at.found:
            self.offer(at, parent, gamma, each.token, each.p * scale)
        if not self.falls_back or rest * at.reach <= LIKELY:
            return
        for token, situation in self.others(at):
            p = rest * self.calibration.cell(situation).share()
            if at.reach * p > HOPELESS_NODE:
                self.offer(at, parent, gamma, token, p)

    def offer(self, at: Position, parent: int, gamma: int, token: int, p: Real) -> None:
        """Insert a node among the best ``gamma``, behind those reached as probably."""
        reach = at.reach * p
        ahead = (
            next(
                (
                    i
                    for i in reversed(range(len(self.nodes)))
                    if self.nodes[i].reach * MORE >= reach
                ),
                -1,
            )
            + 1
        )
        self.nodes.insert(ahead, Node(token, p, reach, parent, at, self.source(at, token)))
        del self.nodes[gamma:]

    def others(self, at: Position) -> list[tuple[int, Situation]]:
        """The tokens used lately that are no candidates, and their situations."""
        known = {each.token for each in at.found}
        return [
            (token, ("recent", age.bit_length(), _count_bucket(count)))
            for age, (token, count) in enumerate(self.recent.leaders)
            if token not in known
        ]

    def source(self, at: Position, token: int) -> int:
        """0 for copy, 1 for a resumed copy, 2 for counts, 3 for tokens used often or lately."""
        if token in at.votes:
            return min(at.votes.index(token), 1)
        mine = next((each for each in at.found if each.token == token), None)
        counted = mine is not None and any(name.startswith("context") for name in mine.situations)
        return 2 if self.counts and counted else 3

    def known(self, text: Sequence[int]) -> dict[int, Slot]:
        """The contexts of 1, 2 and 3 tokens (0..2) and the one that skips a token (3)."""
        found: dict[int, Slot] = {}
        for m in range(min(len(text), 3)):
            slot = self.table.slots.get((m + 2, tuple(text[len(text) - m - 1 :])))
            if slot is None:
                break
            found[m] = slot
        skip = None if len(text) < 2 else self.table.slots.get((SKIP, (text[-2],)))
        if skip is not None:
            found[3] = skip
        return found

    def judge(self, at: Position) -> None:
        """Find a position's candidates, with their probabilities, in the order of preference."""
        ahead = len(at.path)
        text = self.text + at.path
        at.votes = [
            None if place is None or place.at + ahead >= len(known) else known[place.at + ahead]
            for place, known in ((at.along, text), (self.resume, self.text), (at.near, self.text))
        ]
        votes = at.votes
        known = self.known(text)
        orders = sum(m < 3 for m in known)
        tokens = self.gather(known, votes, at.reach)
        bucket = _length_bucket(max(at.length, orders))
        mood = min(int(Real(5) * self.mood), 4)
        for token in tokens:
            situations: dict[str, Situation] = {}
            for m, slot in known.items():
                count = slot.count(token)
                others = _count_bucket(slot.total - count)
                newest = slot.leaders[0][0] == token
                situations[f"context {m}"] = ("context", m, _count_bucket(count), others, newest)
            copied, resumed, nearby = (None if vote is None else vote == token for vote in votes)
            if copied is not None:
                situations["match"] = ("match", bucket, mood, copied)
            if resumed is not None and self.resume is not None:
                run = _length_bucket(self.resume.length)
                situations["resume"] = ("resume", min(self.resume.since + ahead, 5), run, resumed)
            if nearby is not None and self.near is not None and self.resume is not None:
                where = (
                    min(self.resume.since, 7),
                    min(self.near.length + ahead, 8),
                    min(_length_bucket(self.near.since) // 2, 5),
                )
                situations["near"] = ("near", *where, nearby)
            situations["session"] = ("session", mood, bucket)
            at.found.append(self.mix(Candidate(token, situations, (bucket, resumed))))

    def gather(self, known: dict[int, Slot], votes: Sequence[int | None], reach: Real) -> list[int]:
        """The different tokens that may come next, in the order of preference among equals."""
        leaders = {m: slot.leader() for m, slot in known.items()} if self.counts else {}
        order = [votes[0], leaders.get(2), leaders.get(1), leaders.get(0)]
        order += [votes[1], votes[2], leaders.get(3)]
        if self.counts and self.tree and reach > FAINT:
            for slot in (known[m] for m in (2, 1, 0) if m in known):
                least = FAINT / reach * Real(slot.total)
                order += [token for token, count in slot.leaders if count > least]
        tokens = list(dict.fromkeys(token for token in order if token is not None))
        if not tokens and self.falls_back and self.unigrams.total:
            tokens = [self.unigrams.leader()]
        return tokens

    def mix(self, candidate: Candidate) -> Candidate:
        """Set a candidate's probability: logistic mixing of its situations' log-odds."""
        weight = self.calibration.weight
        z = weight(candidate.set, "bias") * CONSTANT
        for name, situation in candidate.situations.items():
            z += weight(candidate.set, name) * self.calibration.cell(situation).stretch()
        candidate.odds = _clipped(z, Real(12))
        candidate.p = _squash(candidate.odds)
        return candidate

    def agreement(self, at: int, most: int) -> int:
        """How many tokens before ``at`` equal those at the text's end, counted up to ``most``."""
        n = 0
        while n < min(most, at) and self.text[at - 1 - n] == self.text[-1 - n]:
            n += 1
        return n

    def find_match(self) -> None:
        """The longest of the match so far and the last occurrences of the last few tokens."""
        if not self.copies:
            return
        at, length = (-1, 0) if self.match is None else (self.match.at, self.match.length)
        known = self.known(self.text)
        for m in (2, 1, 0):
            if m + 1 < min(self.min_match, 2) or m not in known or length >= FAR:
                continue
            other = known[m].last
            agrees = self.agreement(other, FAR)
            if other != at and agrees > length:
                at, length = other, agrees
        self.match = None if length < self.min_match else Place(at, length)

    def find_near(self) -> None:
        """The place around the resumed copy that agrees longest, the nearest of equals."""
        self.near = None
        if self.resume is None:
            return
        wanted = self.resume.at
        for at in range(max(wanted - BEFORE, 1), min(wanted + BEHIND, len(self.text))):
            agrees = self.agreement(at, 8)
            taken = at == wanted or (self.match is not None and at == self.match.at)
            if agrees == 0 or taken:
                continue
            distance = abs(at - wanted)
            if self.near is None or (agrees, -distance) > (self.near.length, -self.near.since):
                self.near = Place(at, agrees, distance)

    def extend(self, tokens: Tokens) -> None:
        """Append committed tokens and learn how the last draft's candidates did."""
        new = [int(token) for token in tokens]
        if not new:
            return
        self.learn_from(new)
        for token in new:
            self.append(token)
        self.follow(len(new))

    def learn_from(self, new: Sequence[int]) -> None:
        """Compare what was judged for the last proposal with what was committed."""
        at, above = self.root, -1
        for token in new:
            if at is None:
                break
            for each in at.found:
                self.learn(each, each.token == token)
            if at.found:
                self.mood += MOOD_RATE * (Real(at.best.token == token) - self.mood)
            if self.tree and self.falls_back and all(each.token != token for each in at.found):
                for other, situation in self.others(at):
                    cell = self.calibration.cell(situation)
                    cell.count(other == token, HALVE_SHARE_AT)
            at, above = next(
                (
                    (node.behind, k)
                    for k, node in enumerate(self.nodes)
                    if node.parent == above and node.token == token
                ),
                (None, above),
            )
        self.root = None
        self.nodes = []

    def append(self, token: int) -> None:
        """Count one token after each of its contexts."""
        at = len(self.text)
        for m in range(min(at, 3)):
            self.table.add(self.text[at - m - 1 :], token, at, m + 2)
        if at >= 2:
            self.table.add(self.text[-2:-1], token, at, SKIP)
        self.unigrams.note(token, at)
        self.text.append(token)

    def along(self, place: Place | None, n: int) -> int:
        """How many of the ``n`` tokens just committed equal those at a place."""
        if place is None:
            return 0
        there, new = self.text[place.at : place.at + n], self.text[-n:]
        return next((i for i in range(n) if there[i] != new[i]), n)

    def follow(self, n: int) -> None:
        """Move the places on over the ``n`` tokens just committed."""
        copied, nearby = self.along(self.match, n), self.along(self.near, n)
        if copied and self.match is not None:
            left = max(n - copied - 1, 0)
            self.resume = Place(self.match.at + n, self.match.length + copied, left)
        elif nearby and self.near is not None:
            self.resume = Place(self.near.at + n, self.near.length + nearby, n - nearby)
        elif self.resume is not None:
            self.resume = Place(self.resume.at + n, self.resume.length, self.resume.since + n)
        if self.resume is not None and self.resume.at >= len(self.text) - n:
            self.resume = None
        self.near = None
        if self.match is not None and copied == n:
            self.match = Place(self.match.at + n, self.match.length + n)
        else:
            self.match = None

    def learn(self, candidate: Candidate, right: bool) -> None:
        """One step down the coding cost's gradient for the weights; count in every cell."""
        weights, weight = self.calibration.weights, self.calibration.weight
        error = (Real(right) - candidate.p) * RATE
        for name, situation in candidate.situations.items():
            cell = self.calibration.cell(situation)
            weights[candidate.set, name] = weight(candidate.set, name) + error * cell.stretch()
            cell.count(right, HALVE_AT)
        weights[candidate.set, "bias"] = weight(candidate.set, "bias") + error * CONSTANT
