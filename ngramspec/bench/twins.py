"""The pure-Python twin as a drafter: how far the native code has come from it."""

from __future__ import annotations

from ngramspec.draft import Draft, Drafter, DraftSession, Float32, Int32
from ngramspec.reference_value import Calibration, ValueEngine


class TwinSession(DraftSession):
    """One sequence of the value engine's twin."""

    def __init__(self, engine: ValueEngine, tokens: Int32) -> None:
        self.engine = engine
        engine.extend(tokens)

    def propose(self, gamma: int, cost: Float32 | None = None, *, tree: bool = False) -> Draft:
        tokens, confidence, source = self.engine.draft(gamma, cost)
        return Draft(tokens, None, confidence, None, source)

    def extend(self, tokens: Int32) -> None:
        self.engine.extend(tokens)


class TwinDrafter(Drafter):
    """What the ValueDrafter does, in plain Python."""

    tiers = ("copy", "resume", "ngram", "unigram")
    estimates = True

    def __init__(self) -> None:
        self.calibration = Calibration()

    def start(self, tokens: Int32) -> DraftSession:
        return TwinSession(ValueEngine(self.calibration), tokens)
