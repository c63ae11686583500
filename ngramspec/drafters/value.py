"""Drafting by value: copying, resumed copies and n-gram counts under one calibrated estimate."""

from __future__ import annotations

from ngramspec._native.calibration import Calibration
from ngramspec._native.value import ValueEngine
from ngramspec.draft import Draft, Drafter, DraftSession, Float32, Int32


class ValueSession(DraftSession):
    """The drafting of one sequence; learns in ``extend`` from what was committed."""

    def __init__(self, calibration: Calibration, tokens: Int32) -> None:
        self.engine = ValueEngine(calibration)
        self.engine.extend(tokens)

    def propose(self, gamma: int, cost: Float32 | None = None, *, tree: bool = False) -> Draft:
        tokens, confidence, source = self.engine.draft(gamma, cost)
        return Draft(tokens, None, confidence, None, source)

    def extend(self, tokens: Int32) -> None:
        self.engine.extend(tokens)


class ValueDrafter(Drafter):
    """At every position the candidate most likely to be the next token, and no further than pays.

    Its sequences share one calibration: how often candidates in which situation were right. That
    is counts and weights, never text.
    """

    tiers = ("copy", "resume", "ngram")
    spec = "value"

    def __init__(self) -> None:
        self.calibration = Calibration()

    def start(self, tokens: Int32) -> DraftSession:
        return ValueSession(self.calibration, tokens)
