"""The pure-Python twin as a drafter: how far the native code has come from it."""

from __future__ import annotations

from ngramspec._reference.calibration import Calibration
from ngramspec._reference.value import ValueEngine
from ngramspec.draft import Int32
from ngramspec.drafters.base import Drafter, DraftSession
from ngramspec.drafters.value import ValueDrafter, ValueSession


class TwinSession(ValueSession):
    """One sequence of the value engine's twin, whose size nobody counts."""

    def sizeof(self) -> None:
        return None


class TwinDrafter(Drafter):
    """What the ValueDrafter does, in plain Python."""

    tiers = ValueDrafter.tiers
    estimates = True

    def __init__(self) -> None:
        self.calibration = Calibration()

    def start(self, tokens: Int32) -> DraftSession:
        return TwinSession(ValueEngine(self.calibration), tokens)
