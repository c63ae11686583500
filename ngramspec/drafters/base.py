"""The interface that every drafter implements."""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from collections.abc import Sequence

from ngramspec.draft import EMPTY_DRAFT, Draft, Float32, Int32


class DraftSession(ABC):
    """The drafting of one sequence. One thread at a time.

    The order of a step is propose, observe, extend. Any of them may raise any Exception: that costs
    the step's draft, and the session is closed and begun anew. After four such faults in a row the
    drafter is not asked any more in this generation.
    """

    @abstractmethod
    def propose(self, gamma: int, cost: Float32 | None = None, *, tree: bool = False) -> Draft:
        """Guess what follows the committed tokens.

        Args:
            gamma: at most so many nodes, >= 0.
            cost: float32 (gamma + 2,), cost[n] of a forward of n positions in units of a
                one-position forward, index 0 unused: the draft ends where the expected tokens per
                cost are highest. None: up to gamma nodes. A drafter that has no estimate of its
                acceptance ignores it.
            tree: whether a tree may be returned instead of a chain.

        Returns:
            A Draft itself, no subclass, of at most ``gamma`` nodes; an empty one when nothing was
            found. Its arrays are plain NumPy ones and stay valid after the next call. The target
            verifies a copy of them; ``observe`` gets this draft, or under tiers a copy of it. If it
            has a ``proposal``, the session promises what ``Proposal`` says.
        """

    def propose_after(self, drafted: Int32, gamma: int) -> Draft:
        """Guess what follows the committed tokens and then ``drafted``, int32 (n,).

        This lets a drafter continue what a higher tier began. The default knows how to continue
        nothing but the committed tokens themselves.
        """
        return EMPTY_DRAFT if len(drafted) else self.propose(gamma)

    def observe(self, draft: Draft, accepted: Sequence[int], tested: int | None = None) -> None:
        """Learn what the target made of a draft; by default nothing.

        Args:
            draft: what propose returned; if less of it was verified, its head.
            accepted: the accepted nodes' indices, in order.
            tested: how many nodes were judged (see Verdict); None: all that can have been, as
                nothing but a rejection came between.
        """
        return None

    @abstractmethod
    def extend(self, tokens: Int32) -> None:
        """Append committed tokens, int32 (n,); legal without propose or observe before."""

    def begin_sampling(self, temperature: float, seed: Sequence[int]) -> None:
        """Take note that the request samples, before the first propose.

        Args:
            temperature: that it samples at.
            seed: to draw drafts with; another one for each call, row and beginning of a session.
        """
        former = getattr(self, "heat", None)
        if former is not None:
            warnings.warn(
                f"{type(self).__name__}.heat is called begin_sampling now; rename it",
                DeprecationWarning,
                stacklevel=2,
            )
            former(temperature, seed)

    def sizeof(self) -> int | None:
        """Bytes of the session's own structures; None if it does not know."""
        return None

    def close(self) -> None:
        """End the sequence. What was learned goes to the shared store, if there is one."""
        return None


class Drafter(ABC):
    """A recipe for drafting, and what all its sequences share. Thread-safe.

    Attributes:
        tiers: names of the sources its drafts come from, 1 to 128 strings; Draft.source indexes
            them. They are read when a session starts.
        spec: the string that build_drafter makes an equal drafter from, or None.
        estimates: whether its drafts carry confidence and end where ``cost`` says.
        branches: whether its trees, too, end where ``cost`` says, and cost hardly more than its
            chains: then ``tree="auto"`` asks for them.
    """

    tiers: tuple[str, ...] = ("drafter",)
    spec: str | None = None
    estimates: bool = False
    branches: bool = False

    @abstractmethod
    def start(self, tokens: Int32) -> DraftSession:
        """Begin a sequence with its committed tokens so far, int32 (n,), n >= 0.

        All tokens that a session is given lie in the target's vocabulary: others were left out.
        """
