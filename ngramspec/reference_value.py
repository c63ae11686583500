"""Plain-Python twin of the value engine: which token is drafted at a position, and why.

Same methods, arguments and results as the native one, over the twins of its structures; in double
precision, so that confidences agree to float32's precision. Nothing at run time uses it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from ngramspec.reference import CopyIndex, NGramTable, Tokens

RATE, WEIGHT, BIAS, STRONGEST = 0.02, 0.4, 0.3, 7.6
PRIOR, HALVE_AT = 4.0, 600
HOPELESS, LOOKAHEAD, MOOD_RATE = 0.01, 12, 0.15
Situation = tuple[Any, ...]


def _length_bucket(n: int) -> int:
    return n if n <= 6 else next(i for i, most in enumerate((8, 12, 20, 40, n), 7) if n <= most)


def _count_bucket(n: int) -> int:
    return n if n <= 3 else 4 if n <= 5 else 5 if n <= 9 else 6


class Calibration:
    """How often candidates in which situation were right, and weights to mix what that tells."""

    def __init__(self) -> None:
        self.cells: dict[Situation, list[float]] = {}
        self.weights: dict[tuple[Situation, str], float] = {}

    def cell(self, situation: Situation) -> list[float]:
        """[right, tested] of a situation; a new one begins with its prior."""
        if situation not in self.cells:
            self.cells[situation] = [PRIOR * self.prior(situation), PRIOR]
        return self.cells[situation]

    def prior(self, situation: Situation) -> float:
        """A guess at P(right) before anything was seen."""
        kind, *rest = situation
        if kind == "context":
            _, count, others = rest
            return (count + 0.3) / (count + others + 1.2) if count else 0.05
        if kind == "session":
            return 0.5
        likely, unlikely = (0.6, 0.1) if kind == "copy" else (0.5, 0.2)
        return likely if rest[-1] else unlikely

    def stretch(self, situation: Situation) -> float:
        """Log-odds of a situation's share of right candidates, within +-STRONGEST."""
        right, tested = self.cell(situation)
        odds = right / (tested - right) if tested > right else math.inf
        x = math.log(odds) if odds > 0 else -math.inf
        return min(max(x, -STRONGEST), STRONGEST)


@dataclass
class Candidate:
    """A token that may come next, the situations that speak for it, and P(it is next)."""

    token: int
    situations: dict[str, Situation]
    set: Situation
    p: float = 0.0


class ValueEngine:
    """One sequence's twin structures, and the drafting over them."""

    def __init__(self, calibration: Calibration) -> None:
        self.calibration = calibration
        self.copy = CopyIndex()
        self.table = NGramTable(4)
        self.text: list[int] = []
        self.nodes: list[tuple[list[Candidate], Candidate, bool]] = []
        self.match: tuple[int, int] | None = None  # (position of the next token, length)
        self.resume: tuple[int, int] | None = None
        self.since = 0
        self.mood = 0.5

    def draft(self, gamma: int, cost: Any = None) -> tuple[Any, Any, Any]:
        """(tokens int32, confidence float32, source int8) of the draft worth verifying."""
        length, end = self.copy.longest_match()
        self.match = (end, length) if length >= 2 else None
        copying = self.match is not None
        self.nodes = []
        drafted: list[int] = []
        source: list[int] = []
        reach = expected = 1.0
        best, highest = 0, 0.0 if cost is None else 1 / float(cost[1])
        for j in range(max(gamma, 1)):
            copied = (self.text + drafted)[end + j] if copying else None
            resumed = None
            if self.resume is not None and self.resume[0] + j < len(self.text):
                resumed = self.text[self.resume[0] + j]
            context = (self.text + drafted)[-3:]
            found = self.candidates(context, copied, resumed, length, self.since + j)
            if not found:
                break
            chosen = max(found, key=lambda each: each.p)  # the first of equals
            self.nodes.append((found, chosen, chosen.token == copied))
            drafted.append(chosen.token)
            source.append(0 if chosen.token == copied else 1 if chosen.token == resumed else 2)
            reach *= chosen.p
            expected += reach
            if copying and chosen.token != copied:
                copying, length = False, 0
            elif length:
                length += 1
            if j < gamma:
                value = 0.0 if cost is None else expected / float(cost[j + 2])
                if cost is None or value >= highest:
                    best, highest = j + 1, value
            if reach < HOPELESS or j + 1 >= best + LOOKAHEAD:
                break
        confidence = [chosen.p for _, chosen, _ in self.nodes[:best]]
        return (
            np.array(drafted[:best], np.int32),
            np.array(confidence, np.float32),
            np.array(source[:best], np.int8),
        )

    def candidates(
        self, context: list[int], copied: int | None, resumed: int | None, length: int, since: int
    ) -> list[Candidate]:
        """A position's candidates with their probabilities, in the order of preference."""
        contexts = [np.array(context[-m:], np.int32) for m in range(1, len(context) + 1)]
        known = []
        for each in contexts:
            if self.table.total(each) == 0:
                break
            known.append(each)
        tokens = [] if copied is None else [copied]
        for each in reversed(known):
            best = self.table.best(each)
            if best is not None and len(tokens) < 3 and best[0] not in tokens:
                tokens.append(best[0])
        if resumed is not None and resumed not in tokens:
            tokens.append(resumed)
        bucket = _length_bucket(max(length, len(known)))
        mood = min(int(5 * self.mood), 4)
        found = []
        for token in tokens:
            situations: dict[str, Situation] = {}
            for m, each in enumerate(known):
                count = self.table.count(each, token)
                others = _count_bucket(self.table.total(each) - count)
                situations[f"context {m}"] = ("context", m, _count_bucket(count), others)
            if copied is not None:
                situations["copy"] = ("copy", bucket, mood, token == copied)
            if resumed is not None and self.resume is not None:
                run = _length_bucket(self.resume[1])
                situations["resume"] = ("resume", min(since, 5), run, token == resumed)
            situations["session"] = ("session", mood, bucket)
            weights = (bucket, None if resumed is None else token == resumed)
            found.append(self.mix(Candidate(token, situations, weights)))
        return found

    def mix(self, candidate: Candidate) -> Candidate:
        """Set a candidate's probability: logistic mixing of its situations' log-odds."""
        weigh = self.calibration.weights
        z = weigh.get((candidate.set, "bias"), WEIGHT) * BIAS
        for name, situation in candidate.situations.items():
            z += weigh.get((candidate.set, name), WEIGHT) * self.calibration.stretch(situation)
        candidate.p = 1 / (1 + math.exp(-min(max(z, -12.0), 12.0)))
        return candidate

    def extend(self, tokens: Tokens) -> None:
        """Append committed tokens and learn how the last draft's candidates did."""
        new = [int(token) for token in tokens]
        if not new:
            return
        right = followed = 0
        for (found, chosen, copying), token in zip(self.nodes, new, strict=False):
            for each in found:
                self.learn(each, each.token == token)
            self.mood += MOOD_RATE * ((chosen.token == token) - self.mood)
            if chosen.token != token:
                break
            right += 1
            followed += copying
        if self.match is not None and right >= 1 and followed == right:
            self.resume = (self.match[0] + len(new), self.match[1] + right)
            self.since = 0
        elif self.resume is not None:
            self.resume = (self.resume[0] + len(new), self.resume[1])
            self.since += len(new)
        if self.resume is not None and self.resume[0] >= len(self.text):
            self.resume = None
        self.nodes, self.match = [], None
        self.text += new
        self.copy.extend(new)
        self.table.extend(new)

    def learn(self, candidate: Candidate, right: bool) -> None:
        """One step down the coding cost's gradient for the weights; count in every cell."""
        weigh = self.calibration.weights
        error = (right - candidate.p) * RATE
        for name, situation in candidate.situations.items():
            key = (candidate.set, name)
            weigh[key] = weigh.get(key, WEIGHT) + error * self.calibration.stretch(situation)
            cell = self.calibration.cell(situation)
            cell[0] += right
            cell[1] += 1
            if cell[1] > HALVE_AT:
                cell[0], cell[1] = cell[0] / 2, cell[1] / 2
        key = (candidate.set, "bias")
        weigh[key] = weigh.get(key, WEIGHT) + error * BIAS
