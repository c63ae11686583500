"""Jump-forward decoding: where a call's constraints allow only one token, it is drafted."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence

import numpy as np

from ngramspec.draft import EMPTY_DRAFT, Draft, Evidence, Float32, Int32
from ngramspec.draft_length.optimal import worthwhile_nodes
from ngramspec.drafters.base import (
    Drafter,
    DraftSession,
    ForwardingSession,
    call_observe,
    verified_count,
)
from ngramspec.drafters.validation import MAX_SOURCES

logger = logging.getLogger("ngramspec")

FORCED_SOURCE = "forced"
# Prior counts of accepted and verified forced tokens, not tuned: all but the last, and the last,
# which a longer token may replace.
PRIOR_COUNTS, PRIOR_COUNTS_LAST = (19, 20), (1, 2)


class Forced(ABC):
    """The tokens that a call's constraints determine, from the last ``reach`` tokens."""

    reach: int = 1

    @abstractmethod
    def after(self, context: Sequence[int], most: int) -> list[int]:
        """The tokens that have to follow, of which ``most`` >= 1 are needed; empty: a choice.

        ``context`` has the last ``reach`` committed tokens, or all if there are fewer.
        """


class ForcedDrafter(Drafter):
    """Drafts forced tokens where there are any, otherwise what another drafter drafts.

    The text does not depend on it, because forced tokens are verified like all draft tokens. A
    grammar forces characters, and the target may encode them in other tokens. Each session counts
    how often the target does, separately for the last token of a forced continuation.
    """

    def __init__(self, inner: Drafter, forced: Forced) -> None:
        self.inner = inner
        self.forced = forced
        self.estimates = inner.estimates
        self.branches = inner.branches
        self.evidence, self.assistants = inner.evidence, inner.assistants

    @property
    def source_names(self) -> tuple[str, ...]:  # type: ignore[override]
        """The inner drafter's sources, and one for forced tokens."""
        return (*self.inner.source_names, FORCED_SOURCE)

    def start(self, tokens: Int32) -> DraftSession:
        return _ForcedSession(self, self.inner.start(tokens), tokens)


class ForcedBefore:
    """The drafter of one row: the current one, preceded by forced tokens."""

    def __init__(self, current: Callable[[], Drafter], forced: Forced) -> None:
        self._current = current
        self._forced = forced
        self._made: ForcedDrafter | None = None

    def __call__(self) -> Drafter:
        """Return the same object as long as the current drafter is the same."""
        current = self._current()
        if len(current.source_names) >= MAX_SOURCES:
            return current
        if self._made is None or self._made.inner is not current:
            self._made = ForcedDrafter(current, self._forced)
        return self._made


class _ForcedSession(ForwardingSession):
    def __init__(self, drafter: ForcedDrafter, inner: DraftSession, tokens: Int32) -> None:
        super().__init__(inner)
        self._forced = drafter.forced
        self._source = len(drafter.source_names) - 1
        self._context = tokens[-self._forced.reach :].tolist()
        self._counts = [list(PRIOR_COUNTS), list(PRIOR_COUNTS_LAST)]
        self._broken = False
        self._mine = 0  # forced tokens of the last draft; 0: the inner session drafted it

    def propose(self, gamma: int, cost: Float32 | None = None, *, tree: bool = False) -> Draft:
        """Draft the forced tokens, unless the inner draft begins with them and is longer."""
        forced = self._after(gamma)
        confidence = self._confidence(len(forced))
        if forced and cost is not None:
            forced = forced[: worthwhile_nodes(np.cumprod(confidence, dtype=np.float64), cost)]
        self._mine = len(forced)
        if not forced:
            return self.inner.propose(gamma, cost, tree=tree)
        draft = self.inner.propose(gamma, cost)
        agrees = draft.proposal is None and draft.tokens[: len(forced)].tolist() == forced
        if agrees and draft.parents is None:
            self._mine = 0
            return draft
        source = np.full(len(forced), self._source, np.int8)
        return Draft(np.array(forced, np.int32), None, confidence[: len(forced)], None, source)

    def _after(self, most: int) -> list[int]:
        """The forced tokens; always empty after an error, which is logged."""
        if most < 1 or self._broken:
            return []
        try:
            return self._forced.after(self._context, most)[:most]
        except Exception as error:
            self._broken = True
            kind = type(error).__name__  # the message can quote the text
            logger.warning("jump-forward decoding is disabled after an error: %s", kind)
            return []

    def _confidence(self, count: int) -> Float32:
        """P(accepted | those before accepted) of each of ``count`` forced tokens, float32."""
        within, last = (accepted / verified for accepted, verified in self._counts)
        return np.array([within] * (count - 1) + [last] * (count > 0), np.float32)

    def observe(
        self,
        draft: Draft,
        accepted: Sequence[int],
        verified: int | None = None,
        evidence: Evidence | None = None,
    ) -> None:
        if not self._mine:
            super().observe(draft, accepted, verified, evidence)
            return
        if evidence is not None:
            call_observe(self.inner, EMPTY_DRAFT, (), None, evidence)
        for node in range(verified_count(draft, accepted, verified)):
            counts = self._counts[node == self._mine - 1]
            counts[0] += node < len(accepted)
            counts[1] += 1

    def extend(self, tokens: Int32) -> None:
        self._context = [*self._context, *tokens.tolist()][-self._forced.reach :]
        super().extend(tokens)
