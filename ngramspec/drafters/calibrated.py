"""Confidence for drafters that provide none, from how often they were right."""

from __future__ import annotations

import copy
import threading
from dataclasses import replace
from typing import Self

import numpy as np

from ngramspec.draft import Draft, Float32, Int32
from ngramspec.draft_length.optimal import reach_of, worthwhile_nodes
from ngramspec.drafters.base import Drafter, DraftSession, ForwardingSession, LearningDrafter
from ngramspec.drafters.prefix_tree import order, path_along
from ngramspec.drafters.validation import check_source_names

DEPTH_CELLS = 16  # depths with separate counts; deeper nodes share the last
SIBLING_CELLS = 4  # places among siblings with separate counts
HALVE_AT_VERIFIED = 600  # verified tokens at which counts are halved, so old ones fade; not tuned
PRIOR_ACCEPTED, PRIOR_VERIFIED = 2.0, 4.0  # initial counts; not tuned


class CalibratedSession(ForwardingSession):
    """A session whose drafts get confidence and end where expected tokens per cost are highest.

    It learns in ``extend`` from the committed tokens, so that draft tokens after the verified ones
    count as well. ``observe`` goes to the inner session.
    """

    def __init__(self, drafter: CalibratedDrafter, session: DraftSession) -> None:
        super().__init__(session)
        self.drafter = drafter
        self.last: Draft | None = None

    def propose(self, gamma: int, cost: Float32 | None = None, *, tree: bool = False) -> Draft:
        if cost is not None and self.drafter.samples and not tree:
            return self.propose_sampled(self.drafter.sampled_length(gamma, cost), gamma)
        draft = self.inner.propose(gamma, tree=tree)
        self.drafter.samples |= draft.proposal is not None
        self.last = draft if len(draft) else None
        if self.last is None:
            return draft
        confidence = self.drafter.confidence(draft)
        whole = replace(draft, confidence=confidence)
        reached = reach_of(draft.parents, confidence)
        if draft.parents is not None and draft.proposal is None:
            whole, reached = order(whole, reached), -np.sort(-reached)
        if cost is None or draft.proposal is not None:
            return whole
        return whole.first(worthwhile_nodes(reached, cost))

    def propose_sampled(self, length: int, gamma: int) -> Draft:
        """Sample a draft of a length that was decided beforehand.

        If sampled tokens decided the length, the output would be biased: the verified ones would
        not have the distribution that their proposal gives.
        """
        draft = self.inner.propose(min(length + 1, gamma))  # the extra token is only learned from
        if not len(draft):
            return draft
        self.last = draft
        return replace(draft, confidence=self.drafter.confidence(draft)).first(length)

    def extend(self, tokens: Int32) -> None:
        if self.last is not None:
            self.drafter.learn(self.last, tokens)
            self.last = None
        super().extend(tokens)


class CalibratedDrafter(LearningDrafter):
    """Another drafter's drafts, with the acceptance rate of each node's source, depth and place.

    The place is the index among its siblings: 0 in a chain. Confidence is (accepted + 2) /
    (verified + 4) of its counts (float32, 8 bytes for each source, depth and place). The counts are
    halved when full and shared by the drafter's sequences. Thread-safe: one lock guards them. A
    node costs O(1).

    Args:
        inner: any drafter.
    """

    estimates = True
    learned = ("samples", "_lock", "_accepted", "_verified")

    def __init__(self, inner: Drafter) -> None:
        self.inner = inner
        self.source_names = check_source_names(inner.source_names)
        self.spec = inner.spec
        self.evidence, self.assistants = inner.evidence, inner.assistants
        self.forget()

    def with_calibration(self, *, by_request: bool) -> Self:
        other = super().with_calibration(by_request=by_request)
        other.inner = self.inner.with_calibration(by_request=by_request)
        return other

    def forget(self) -> None:
        self.samples = False  # whether a draft with a proposal was seen
        self._lock = threading.Lock()
        shape = (len(self.source_names), DEPTH_CELLS, SIBLING_CELLS)
        self._accepted = np.empty(shape, np.float32)
        self._accepted[:] = PRIOR_ACCEPTED / (1 + np.arange(SIBLING_CELLS))
        self._verified = np.full(shape, PRIOR_VERIFIED, np.float32)

    def start(self, tokens: Int32) -> DraftSession:
        drafter = copy.copy(self) if self.by_request else self  # copies have learned nothing
        return CalibratedSession(drafter, self.inner.start(tokens))

    def confidence(self, draft: Draft) -> Float32:
        """P(accepted | parent accepted) of each node of a draft, float32 (n,)."""
        cells = self._cells(draft)
        with self._lock:
            confidence: Float32 = self._accepted[cells] / self._verified[cells]
        return confidence

    def sampled_length(self, gamma: int, cost: Float32) -> int:
        """Number of tokens to sample, at most gamma, from the acceptance rate at each depth."""
        with self._lock:
            confidence = self._accepted[:, :, 0].sum(axis=0) / self._verified[:, :, 0].sum(axis=0)
        depths = np.minimum(np.arange(gamma), DEPTH_CELLS - 1)
        return worthwhile_nodes(np.cumprod(confidence[depths]), cost)

    def learn(self, draft: Draft, committed: Int32) -> None:
        """Count the nodes whose parents were committed, because the token after them is known.

        ``committed``, int32 (n,), are the tokens committed after the draft.
        """
        path, children = path_along(draft, committed.tolist()), draft.children()
        parents = [-1, *path][: len(committed)]
        verified = [node for parent in parents for node in children[parent + 1]]
        cells = tuple(each[verified] for each in self._cells(draft))
        with self._lock:
            np.add.at(self._accepted, cells, np.isin(verified, path))
            np.add.at(self._verified, cells, 1)
            faded = self._verified > HALVE_AT_VERIFIED
            self._accepted[faded] /= 2
            self._verified[faded] /= 2

    def _cells(self, draft: Draft) -> tuple[Int32, Int32, Int32]:
        """Source, depth and place among siblings of each node, int32 (n,) each."""
        n = len(draft)
        source = np.zeros(n, np.int32) if draft.source is None else draft.source.astype(np.int32)
        depth, place = np.arange(n, dtype=np.int32), np.zeros(n, np.int32)
        if draft.parents is not None:
            for parent, below in enumerate(draft.children(), -1):
                depth[below] = depth[parent] + 1 if parent >= 0 else 0
                place[below] = np.arange(len(below))
        return source, np.minimum(depth, DEPTH_CELLS - 1), np.minimum(place, SIBLING_CELLS - 1)
