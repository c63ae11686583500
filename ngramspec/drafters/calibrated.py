"""Confidence for drafters that have none of their own, from how often they were right."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from ngramspec.draft import Draft, Float32, Int32
from ngramspec.draft_length.optimal import worthwhile_nodes
from ngramspec.drafters.base import Drafter, DraftSession
from ngramspec.drafters.learning import LearningDrafter
from ngramspec.drafters.prefix_tree import order, reach
from ngramspec.drafters.validation import check_tiers

DEPTHS = 16  # positions told apart; those behind count as the last
RANKS = 4  # and places among siblings
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
        if cost is not None and self.drafter.draws and not tree:
            return self.drawn(self.drafter.worth_drawing(gamma, cost), gamma)
        draft = self.session.propose(gamma, tree=tree)
        self.drafter.draws |= draft.proposal is not None
        self.last = draft if len(draft) else None
        if self.last is None:
            return draft
        confidence = self.drafter.confidence(draft)
        whole = replace(draft, confidence=confidence)
        reached = reach(whole)
        if draft.parents is not None and draft.proposal is None:
            whole, reached = order(whole, reached), -np.sort(-reached)
        if cost is None or draft.proposal is not None:
            return whole
        return whole.first(worthwhile_nodes(reached, cost))

    def drawn(self, length: int, gamma: int) -> Draft:
        """A draft that is drawn, of a length that was decided before.

        Where the tokens drawn decided how many of them are verified, those that are would not be
        distributed as their proposal says, and the text not as the target's.
        """
        draft = self.session.propose(min(length + 1, gamma))  # one more is drawn, to learn from
        if not len(draft):
            return draft
        self.last = draft
        return replace(draft, confidence=self.drafter.confidence(draft)).first(length)

    def observe(self, draft: Draft, accepted: Sequence[int], tested: int | None = None) -> None:
        self.session.observe(draft, accepted, tested)

    def extend(self, tokens: Int32) -> None:
        if self.last is not None:
            self.drafter.learn(self.last, tokens)
            self.last = None
        self.session.extend(tokens)

    def begin_sampling(self, temperature: float, seed: Sequence[int]) -> None:
        self.session.begin_sampling(temperature, seed)

    def sizeof(self) -> int | None:
        return self.session.sizeof()

    def close(self) -> None:
        self.session.close()


class CalibratedDrafter(LearningDrafter):
    """Another drafter's drafts, each token with the acceptance of its tier at its position.

    In trees the position is the depth and the place among siblings.

    The counts are shared by the drafter's sequences: (accepted + 2) / (tested + 4), fading.

    Args:
        inner: any drafter.
    """

    estimates = True
    learned = ("draws", "_lock", "_accepted", "_tested")

    def __init__(self, inner: Drafter) -> None:
        self.inner = inner
        self.tiers = check_tiers(inner.tiers)
        self.spec = inner.spec
        self.forget()

    def forget(self) -> None:
        self.draws = False  # whether drafts are drawn, as was seen
        self._lock = threading.Lock()
        shape = (len(self.tiers), DEPTHS, RANKS)
        self._accepted = np.empty(shape, np.float32)
        self._accepted[:] = PRIOR_ACCEPTED / (1 + np.arange(RANKS))
        self._tested = np.full(shape, PRIOR_TESTED, np.float32)

    def start(self, tokens: Int32) -> DraftSession:
        return CalibratedSession(self, self.inner.start(tokens))

    def confidence(self, draft: Draft) -> Float32:
        """P(accepted | parent accepted) of each node of a draft, float32 (n,)."""
        cells = self._cells(draft)
        with self._lock:
            confidence: Float32 = self._accepted[cells] / self._tested[cells]
        return confidence

    def worth_drawing(self, gamma: int, cost: Float32) -> int:
        """How many tokens to draw, by how often those at each depth stood, of whichever tier."""
        with self._lock:
            confidence = self._accepted[:, :, 0].sum(axis=0) / self._tested[:, :, 0].sum(axis=0)
        depths = np.minimum(np.arange(gamma), DEPTHS - 1)
        return worthwhile_nodes(np.cumprod(confidence[depths]), cost)

    def learn(self, draft: Draft, committed: Int32) -> None:
        """Count the nodes behind the committed ones: which token came there is known."""
        tested: list[int] = []
        agree: list[bool] = []
        children, tokens, parent = draft.children(), draft.tokens.tolist(), -1
        for token in committed.tolist():
            below = children[parent + 1]
            tested += below
            agree += [tokens[node] == token for node in below]
            parent = next((node for node in below if tokens[node] == token), -1)
            if parent == -1:
                break
        cells = tuple(each[tested] for each in self._cells(draft))
        with self._lock:
            np.add.at(self._accepted, cells, agree)
            np.add.at(self._tested, cells, 1)
            faded = self._tested > HALVE_AT
            self._accepted[faded] /= 2
            self._tested[faded] /= 2

    def _cells(self, draft: Draft) -> tuple[Int32, Int32, Int32]:
        """Tier, depth and place among siblings of each node."""
        n = len(draft)
        tier = np.zeros(n, np.int32) if draft.source is None else draft.source.astype(np.int32)
        depth, rank = np.arange(n, dtype=np.int32), np.zeros(n, np.int32)
        if draft.parents is not None:
            for parent, below in enumerate(draft.children(), -1):
                depth[below] = depth[parent] + 1 if parent >= 0 else 0
                rank[below] = np.arange(len(below))
        return tier, np.minimum(depth, DEPTHS - 1), np.minimum(rank, RANKS - 1)
