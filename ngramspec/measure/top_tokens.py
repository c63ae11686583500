"""Records and replays the target's top-k candidates."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ngramspec.draft import Draft, Evidence, EvidenceRequest, Float32, Int32
from ngramspec.drafters.base import Drafter, DraftSession, ForwardingSession
from ngramspec.measure.traces import TopTokens


class RecordingSession(ForwardingSession):
    """Another session's drafts; records what the target computed at committed positions."""

    def __init__(self, owner: RecordingDrafter, session: DraftSession) -> None:
        super().__init__(session)
        self.owner = owner
        self.last: Evidence | None = None

    @property
    def wants_evidence(self) -> bool:
        return True

    def observe(
        self,
        draft: Draft,
        accepted: Sequence[int],
        verified: int | None = None,
        evidence: Evidence | None = None,
    ) -> None:
        self.last = evidence
        if len(draft):
            self.inner.observe(draft, accepted, verified)

    def extend(self, tokens: Int32) -> None:
        if self.last is not None:  # None: the last accepted token ended the text
            rows = list(self.last.accepted[: len(tokens)])
            self.owner.ids.append(self.last.ids[rows])
            self.owner.log_probs.append(self.last.log_probs[rows])
            self.last = None
        super().extend(tokens)


class RecordingDrafter(Drafter):
    """Drafts as another drafter, and keeps the target's candidates of one sequence at a time.

    The inner drafter must not ask for evidence itself. ``top_k`` >= 1 candidates are kept of each
    position.
    """

    def __init__(self, inner: Drafter, top_k: int) -> None:
        self.inner, self.source_names = inner, inner.source_names
        self.estimates, self.branches = inner.estimates, inner.branches
        self.evidence = EvidenceRequest(top_k=top_k)
        self.ids: list[Int32] = []
        self.log_probs: list[Float32] = []

    def start(self, tokens: Int32) -> DraftSession:
        return RecordingSession(self, self.inner.start(tokens))

    def take(self, length: int) -> TopTokens | None:
        """Return the candidates recorded since the last call, for an output of ``length`` tokens.

        The first position is missing if the prefill verified no draft, because no session ran.
        """
        ids, log_probs, self.ids, self.log_probs = self.ids, self.log_probs, [], []
        if not ids:
            return None
        known = np.concatenate(ids)
        missing = length - len(known)
        before = np.full((missing, known.shape[1]), -1, np.int32)
        zeros = np.zeros((missing, known.shape[1]), np.float32)
        return TopTokens(
            np.concatenate((before, known)), np.concatenate((zeros, *log_probs), dtype=np.float32)
        )


def replayed(
    top_tokens: TopTokens, output: Sequence[int], before: int, at: int, emitted: int
) -> Evidence:
    """The evidence of a step from a recording: that of the accepted positions.

    The step commits ``emitted`` tokens after the first ``at`` ones of the output; ``before`` is the
    last committed token.
    """
    rows = slice(at, at + emitted)
    return Evidence(
        np.array([before, *output[at : at + emitted - 1]], np.int32),
        np.arange(-1, emitted - 1, dtype=np.int32),
        tuple(range(emitted)),
        top_tokens.ids[rows],
        top_tokens.log_probs[rows],
    )
