"""Confidence for drafters that have none of their own, from how often they were right."""

from __future__ import annotations

import threading
from collections.abc import Sequence

import numpy as np

from ngramspec.analysis import worthwhile
from ngramspec.draft import Draft, Drafter, DraftSession, Float32, Int32

DEPTHS = 16  # positions told apart; those behind count as the last
HALVE_AT = 600  # tested tokens at which a count is halved, so that old ones fade
PRIOR_ACCEPTED, PRIOR_TESTED = 2.0, 4.0


class CalibratedSession(DraftSession):
    """A session whose drafts get confidence and end where the expected tokens per cost say.

    It learns in ``extend``, from what was committed, so that tokens behind the cut count as well;
    ``observe`` goes to the session inside.
    """

    def __init__(self, drafter: CalibratedDrafter, session: DraftSession) -> None:
        self.drafter = drafter
        self.session = session
        self.last: Draft | None = None

    def propose(self, gamma: int, cost: Float32 | None = None, *, tree: bool = False) -> Draft:
        draft = self.session.propose(gamma)
        self.last = draft if len(draft) else None
        if self.last is None:
            return draft
        confidence = self.drafter.confidence(draft)
        n = len(draft) if cost is None else worthwhile([confidence], cost)
        return Draft(draft.tokens, None, confidence, draft.proposal, draft.source).head(n)

    def observe(self, draft: Draft, accepted: Sequence[int], tested: int | None = None) -> None:
        self.session.observe(draft, accepted, tested)

    def extend(self, tokens: Int32) -> None:
        if self.last is not None:
            self.drafter.learn(self.last, tokens)
            self.last = None
        self.session.extend(tokens)

    def sizeof(self) -> int | None:
        return self.session.sizeof()

    def close(self) -> None:
        self.session.close()


class CalibratedDrafter(Drafter):
    """Another drafter's chains, each token with the acceptance of its tier at its position.

    The counts are shared by the drafter's sequences: (accepted + 2) / (tested + 4), fading.

    Args:
        inner: a drafter of chains.
    """

    estimates = True

    def __init__(self, inner: Drafter) -> None:
        self.inner = inner
        self.tiers = inner.tiers
        self.spec = inner.spec
        self._lock = threading.Lock()
        self._accepted = np.full((len(self.tiers), DEPTHS), PRIOR_ACCEPTED, np.float32)
        self._tested = np.full((len(self.tiers), DEPTHS), PRIOR_TESTED, np.float32)

    def start(self, tokens: Int32) -> DraftSession:
        return CalibratedSession(self, self.inner.start(tokens))

    def confidence(self, draft: Draft) -> Float32:
        """P(accepted | parent accepted) of each token of a chain, float32 (n,)."""
        cells = self._cells(draft)
        with self._lock:
            confidence: Float32 = self._accepted[cells] / self._tested[cells]
        return confidence

    def learn(self, draft: Draft, committed: Int32) -> None:
        """Count a chain's tokens up to the first that was not committed."""
        n = min(len(draft), len(committed))
        agree = draft.tokens[:n] == committed[:n]
        tested = n if agree.all() else int(agree.argmin()) + 1
        tier, depth = (each[:tested] for each in self._cells(draft))
        with self._lock:
            np.add.at(self._accepted, (tier, depth), agree[:tested])
            np.add.at(self._tested, (tier, depth), 1)
            faded = self._tested > HALVE_AT
            self._accepted[faded] /= 2
            self._tested[faded] /= 2

    def _cells(self, draft: Draft) -> tuple[Int32, Int32]:
        depth = np.minimum(np.arange(len(draft), dtype=np.int32), DEPTHS - 1)
        if draft.source is None:
            return np.zeros(len(draft), np.int32), depth
        return draft.source.astype(np.int32), depth
