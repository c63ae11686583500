"""The drafter that never drafts: every step is a plain step."""

from __future__ import annotations

from ngramspec.draft import EMPTY_DRAFT, Draft, Float32, Int32
from ngramspec.drafters.base import Drafter, DraftSession


class NullSession(DraftSession):
    """Drafts nothing."""

    def propose(self, gamma: int, cost: Float32 | None = None, *, tree: bool = False) -> Draft:
        return EMPTY_DRAFT

    def extend(self, tokens: Int32) -> None:
        return None


class NullDrafter(Drafter):
    """Drafts nothing."""

    source_names = ("none",)
    spec = "none"

    def start(self, tokens: Int32) -> DraftSession:
        return NullSession()
