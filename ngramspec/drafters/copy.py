"""Copying: what followed an earlier occurrence of the longest suffix of the committed tokens."""

from __future__ import annotations

from ngramspec._native import MOST_TOKENS, CopyIndex
from ngramspec.draft import NO_TOKENS, Draft, Float32, Int32
from ngramspec.drafters.base import Drafter, DraftSession
from ngramspec.drafters.priority import pack
from ngramspec.errors import check_int

MAX_TREE_COPIES = 4  # occurrences that a tree copies from, in addition to the best one; not tuned


class CopySession(DraftSession):
    """One sequence's copy index."""

    def __init__(self, index: CopyIndex, min_match: int, tokens: Int32) -> None:
        self.index = index
        self.min_match = min_match
        index.extend(tokens)

    def propose(self, gamma: int, cost: Float32 | None = None, *, tree: bool = False) -> Draft:
        best = self.propose_after(NO_TOKENS, gamma)
        if not tree:
            return best
        copies = self.index.copies(gamma, MAX_TREE_COPIES, self.min_match)
        return pack([best, *(Draft(tokens) for tokens in copies)], gamma)

    def propose_after(self, drafted: Int32, gamma: int) -> Draft:
        return Draft(self.index.draft(gamma, drafted, self.min_match)[0])

    def extend(self, tokens: Int32) -> None:
        self.index.extend(tokens)

    def sizeof(self) -> int:
        return int(self.index.sizeof())


class CopyDrafter(Drafter):
    """Copies from the context (Leviathan et al., 3.6; prompt lookup), at any match length.

    ``min_match`` is the shortest match to copy from, in tokens, 1..2**30 (no text is longer).
    """

    source_names = ("copy",)

    def __init__(self, min_match: int = 2) -> None:
        self.min_match = check_int("min_match", min_match, 1, MOST_TOKENS)
        self.spec = f"copy(min_match={min_match})"

    def start(self, tokens: Int32) -> DraftSession:
        return CopySession(CopyIndex(), self.min_match, tokens)
