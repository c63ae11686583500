"""Twin of the calibration: acceptance counts, and weights to mix them.

What decides is computed in float32 and in the native order, so that both round alike.
"""

from __future__ import annotations

import math
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ngramspec._native.value import starting  # type: ignore[import-not-found]

Real = np.float32
RATE, RATE_STORE, RATE_FURTHER = Real(0.02), Real(0.005), Real(0.00125)
CONSTANT, STRONGEST = Real(0.3), Real(7.6)
GUESS = 0.05  # P(right) of the most frequent token where nothing else is known
ALONE = (0, None, 0, False)  # the set of weights there
PRIOR, PRIOR_STORE, PRIOR_HEAD, PRIOR_SHARE = Real(4), Real(64), Real(16), Real(100)
HALVE_AT, HALVE_SHARE_AT = 600, 10000
OLDEST = 6  # bucket of the age of recent tokens
SAYS = 5  # number of things that a store can say about a candidate
INPUTS = (  # that have fitted initial weights
    *("context 0", "context 1", "context 2", "context 3", "match", "resume", "near", "session"),
    *("store", "store other", "top", "nearest", "bias"),
)
Situation = tuple[Any, ...]

# Of buckets: the count, the length. Of contexts with one continuation so far: 1 - P(it again).
COUNT_OF = (0, 1, 2, 3, 5, 9, 15)
LENGTH_OF = (2, 2, 2, 3, 4, 5, 6, 8, 12, 20, 40, 60)
SURPRISE = (0.4, 0.2, 0.1, 0.4)
WEIGHTS = {
    **{"context 3": 0.05, "resume": 0.05, "session": 0.1, "bias": 0.4, "store": 0.4},
    **{"store other": 0.2, "top": 0.25, "nearest": 0.1, "head": 0.45},
}
BESIDE_HEAD = Real(0.4)  # factor on the other weights where a head has a row
# P(right) of a head's candidate by its probability bucket, of another token by the first one's.
HEAD = (0.95, 0.88, 0.82, 0.75, 0.65, 0.55, 0.45, 0.33, 0.18, 0.08, 0.03, 0.01)
NO_HEAD = (0.01, 0.02, 0.03, 0.04, 0.05, 0.06, 0.08, 0.1, 0.1, 0.1, 0.1, 0.1)
AGREES = (0.7, 1, 1.5, 3)  # factors on its odds by what else suggests the candidate
# Tested candidates that a situation begins with, PRIOR elsewhere.
STRENGTH = {"recent": PRIOR_SHARE, "unemitted": PRIOR_SHARE} | dict.fromkeys(
    ("store", "store other", "nearest"), PRIOR_STORE
)
STRENGTH |= {"head": PRIOR_HEAD}
# P(right) of a top-k candidate by its probability bucket; of another token by that of the first.
TOP = (0.6, 0.5, 0.4, 0.3, 0.17, 0.1, 0.05, 0.03, 0.03)
NO_TOP = (0.03, 0.03, 0.03, 0.03, 0.03, 0.04, 0.03, 0.03, 0.03)
UNEMITTED_SHARE = (0.015, 0.005, 0.003, 0.002)
STORE_SURE = (0.25, 0.25, 0.35, 0.55, 0.7, 1, 1.3, 2, 3.3, 6, 15, 40)
# Odds of what comes at its nearest place, by the match's length.
PLACE_SURE = (0.2, 0.25, 0.6, 1, 1.4, 1.7, 2.3, 2.8, 4, 6, 12, 40)

TABLES = ("BY_KNOWN", "BY_LENGTH", "BY_AGREEMENT", "BY_STANDING", "BY_STORE_LENGTH")
STARTS = {name: starting(name) for name in TABLES}

LN2 = Real(0.69314718)
LN = (0.99998116, -0.49947178, 0.32824221, -0.22589801, 0.13467453, -0.05514520, 0.01076451)


def log(x: Real) -> Real:
    """The natural logarithm as the native one approximates it: a polynomial of the mantissa."""
    mantissa, exponent = math.frexp(x)
    m, total = Real(2 * mantissa - 1), Real(0)
    for factor in reversed(LN):
        total = m * (Real(factor) + total)
    return Real(exponent - 1) * LN2 + total


def squash(odds: Real) -> Real:
    """The probability of log-odds."""
    return Real(1 / (1 + math.exp(-float(odds))))


def clipped(x: Real, most: Real) -> Real:
    return min(max(x, -most), most)


def length_bucket(n: int) -> int:
    """0..6 as they are, then up to 8, 12, 20, 40, and more: 0..11."""
    return n if n <= 6 else next(i for i, most in enumerate((8, 12, 20, 40, n), 7) if n <= most)


def count_bucket(n: int) -> int:
    """0..3 as they are, then up to 5, 9, and more: 0..6."""
    return n if n <= 3 else 4 if n <= 5 else 5 if n <= 9 else 6


def distance_bucket(n: int) -> int:
    """0, then up to 4, 32, 256, 1024, 4096, and more; 7: not known."""
    known = (0, 4, 32, 256, 1024, 4096, 2**31 - 2)
    return next((i for i, most in enumerate(known) if n <= most), 7)


def nearest_prior(rank: int, bucket: int, length: int) -> float:
    """P(right) of what comes at a near place, by rank, distance and the match's length."""
    if rank < 2:
        return 0.08 + 0.015 * length if rank else 0.03
    odds = Real(PLACE_SURE[length])
    odds = max(odds, Real(1.5 if bucket < 2 else 1)) if bucket < 3 else odds * Real(0.625)
    return float(odds) / (1 + float(odds))


def head_prior(ranked: bool, chance: int, agreement: int) -> float:
    """P(right) of a candidate by the head's bucket, and by what else suggests it."""
    p = float(Real(HEAD[chance] if ranked else NO_HEAD[chance]))
    odds = float(Real(p / (1 - p) * float(Real(AGREES[agreement]))))
    return odds / (1 + odds)


def store_prior(length: int, seen: int, others: int) -> float:
    """P(right) of what followed a store's match, by buckets of its length and counts."""
    count, faint = Real(COUNT_OF[seen]), 0.06 if length < 8 else 0.02
    if seen == 0:
        return faint
    if others == 0:
        return 1 - 1 / (1 + float(Real(STORE_SURE[length]) * count))
    share = 0.8 * (float(count) - 0.5) / (float(count) + COUNT_OF[others] + 0.5)
    return float(max(share, faint))


def known_weight(set: Situation, i: int) -> Real:
    """The weight of the ``i``-th input that a set begins with where a store knows something."""
    length, agrees, stored, _ = set
    agreement = 0 if agrees is None else 1 if agrees else 2
    rows = STARTS["BY_KNOWN"][(stored - 1) % 3], STARTS["BY_LENGTH"][length]
    return Real(rows[0][i]) + Real(rows[1][i]) + Real(STARTS["BY_AGREEMENT"][agreement][i])


def further_weight(standing: Situation, i: int) -> Real:
    """The weight of the ``i``-th input that a further set begins with."""
    _, own, says, length = standing
    standing_row = STARTS["BY_STANDING"][SAYS * own + says]
    return Real(standing_row[i]) + Real(STARTS["BY_STORE_LENGTH"][length][i])


@dataclass
class Candidate:
    """A token that may come next, the situations that speak for it, and P(it is next)."""

    token: int
    situations: dict[str, Situation]
    set: Situation
    standing: Situation | None
    odds: Real = field(default_factory=Real)
    p: Real = field(default_factory=Real)


@dataclass
class Cell:
    """How many candidates in a situation were right, and how many verified; both fade."""

    right: Real
    verified: Real
    stretched: Real | None = None  # what stretch() said of these counts

    def count(self, right: bool, halve_at: int) -> None:
        self.right += Real(right)
        self.verified += Real(1)
        if self.verified > halve_at:
            self.right, self.verified = self.right / Real(2), self.verified / Real(2)
        self.stretched = None

    def share(self) -> Real:
        return self.right / self.verified

    def stretch(self) -> Real:
        """Log-odds of that share, within +-STRONGEST."""
        if self.stretched is None:
            wrong = self.verified - self.right
            odds = log(self.right) - log(wrong) if wrong > 0 else STRONGEST
            self.stretched = clipped(odds, STRONGEST)
        return self.stretched


class Calibration:
    """How often candidates in which situation were right, and weights to mix what that tells."""

    def __init__(self) -> None:
        self.cells: dict[Situation, Cell] = {}
        self.weights: dict[tuple[Situation, str], Real] = {}
        self.further: dict[tuple[Situation, str], Real] = {}  # by standing, added to those

    def copy(self) -> Calibration:
        return deepcopy(self)

    def cell(self, situation: Situation) -> Cell:
        """A situation's counts; a new one begins with its prior."""
        if situation not in self.cells:
            verified = STRENGTH.get(situation[0], PRIOR)
            self.cells[situation] = Cell(verified * Real(self.prior(situation)), verified)
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
        if kind in ("store", "store other"):
            return store_prior(*rest[1:])
        if kind == "nearest":
            return nearest_prior(*rest[1:])
        if kind == "top":
            rank, bucket, _ = rest
            return NO_TOP[bucket] if rank == 4 else TOP[bucket]
        if kind == "head":
            rank, bucket, agreement = rest
            return head_prior(rank < 4, bucket, agreement)
        if kind == "unemitted":
            return float(Real(UNEMITTED_SHARE[rest[0]]) * Real(1 + rest[-1]))
        if kind == "session":
            return 0.1 + 0.08 * min(rest[0], 3) if rest[0] else GUESS
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
        if set[3] and name != "head":
            return BESIDE_HEAD * self.initial((*set[:3], False), name)
        return self.initial(set, name)

    def initial(self, set: Situation, name: str) -> Real:
        if set[2] and name in INPUTS:
            return known_weight(set, INPUTS.index(name))
        begin = Real(WEIGHTS.get(name, 0.3))
        if name == "match":
            begin = Real(float(begin) + 0.05 * set[0])
        if set == ALONE and name in ("session", "bias"):
            begin = Real(name == "session")
        return begin

    def mix(self, candidate: Candidate) -> Candidate:
        """Set a candidate's probability: logistic mixing of its situations' log-odds."""
        z = self.both(candidate, "bias") * CONSTANT
        for name, situation in candidate.situations.items():
            z += self.both(candidate, name) * self.cell(situation).stretch()
        candidate.odds = clipped(z, Real(12))
        candidate.p = squash(candidate.odds)
        return candidate

    def both(self, candidate: Candidate, name: str) -> Real:
        """The weight of an input, and what is added to it."""
        weight = self.weight(candidate.set, name)
        if candidate.standing is None:
            return weight
        return weight + self.added(candidate.standing, name)

    def added(self, standing: Situation, name: str) -> Real:
        """What is added to the weight of an input."""
        if (standing, name) in self.further:
            return self.further[standing, name]
        if name not in INPUTS:
            return Real(0)
        return further_weight(standing, INPUTS.index(name))

    def learn(self, candidate: Candidate, right: bool) -> None:
        """One step down the coding cost's gradient for the weights; count in every cell."""
        wrong = Real(right) - candidate.p
        for name, situation in candidate.situations.items():
            cell = self.cell(situation)
            self.add(candidate, name, wrong, cell.stretch())
            cell.count(right, HALVE_AT)
        self.add(candidate, "bias", wrong, CONSTANT)

    def add(self, candidate: Candidate, name: str, wrong: Real, value: Real) -> None:
        key = candidate.set, name
        rate = RATE_STORE if candidate.set[2] else RATE
        self.weights[key] = self.weight(*key) + wrong * rate * value
        if candidate.standing is not None:
            added = self.added(candidate.standing, name) + wrong * RATE_FURTHER * value
            self.further[candidate.standing, name] = added
