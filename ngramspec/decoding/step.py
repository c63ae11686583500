"""One step of the decode loop: drafts, forward, verification, verdicts and times."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from torch import Tensor

from ngramspec.decoding.row import Row
from ngramspec.draft import EvidenceRequest
from ngramspec.hf_model.target import Forward
from ngramspec.stats import DecodeStats, StepEvent

if TYPE_CHECKING:
    from ngramspec.decoding.group import Group
    from ngramspec.verification.sampler import SampledTokens


@dataclass(slots=True, kw_only=True)
class Step(Forward):
    """One step of the decode loop, and its forward; the prefill is the first.

    In the prefill, ``width`` is that of the prompt's last position and those after it. Times are in
    seconds of ``perf_counter``.

    Attributes:
        rows: in the forward's order, with their drafts, and their verdicts after verification.
        request: the evidence that the drafters request from the forward, or None.
        joint: whether its forward is part of a joint step's, by whose costs it drafts.
        started, proposed: when drafting began, and when it ended and the forward began.
        forwarded: when the forward ended; in the prefill it includes the verification.
        waited: whether the device had finished by then, rather than only launched the forward.
        ended: when the step ended.
    """

    rows: Sequence[Row]
    request: EvidenceRequest | None = None
    prefill: bool = False
    joint: bool = False
    started: float = 0.0
    proposed: float = 0.0
    forwarded: float = 0.0
    waited: bool = True
    ended: float = 0.0

    @property
    def forward_seconds(self) -> float:
        """Wall time of the forward. If nothing waited for it, it may end when the step ends."""
        return (self.forwarded if self.waited else self.ended) - self.proposed

    def count(self, stats: DecodeStats, transfers: int) -> None:
        """Add the ended step, with its number of transfers from the device, to the statistics."""
        forward = self.forwarded - self.proposed
        stats.draft_seconds += self.proposed - self.started
        stats.other_seconds += self.ended - self.forwarded
        if self.prefill:
            stats.runs += 1
            stats.prefill_drafted += self.width - 1
            stats.prefill_accepted += len(self.rows[0].verdict.accepted)
            stats.prefill_seconds += forward
            return
        for row in self.rows:
            if row.verdict.emitted:  # a row that had ended has no target call
                stats.count_step(row.draft, row.verdict, row.source_names)
        stats.host_syncs += transfers
        stats.forward_seconds += forward

    def events(self, index: int) -> Iterator[StepEvent]:
        """The event of each row that had not ended; ``index`` is the step's."""
        forward = self.forwarded - self.proposed
        seconds = self.proposed - self.started, forward, self.ended - self.forwarded
        for at, row in enumerate(self.rows):
            draft, verdict = row.draft, row.verdict
            if verdict.emitted:
                source = [0] * len(draft) if draft.source is None else draft.source.tolist()
                names = tuple(row.source_names[each] for each in source)
                drafted = tuple(draft.tokens.tolist())
                parents = None if draft.parents is None else tuple(draft.parents.tolist())
                yield StepEvent(index, drafted, names, verdict, *seconds, at, self.width, parents)


def verify(group: Group, logits: Tensor, sampled: SampledTokens | None) -> None:
    """Commit the target's tokens of every row, up to the first not drafted (Alg. 1).

    A token passes the processors, the choice, the stopping rules and the streamer before the next
    one is chosen. If one of these raises, the tokens, the random numbers and the cache are those
    of the baseline at that point.

    ``logits`` is (batch, n + 1, vocab), at the last committed token and the n drafted tokens, and
    ``sampled`` the target's tokens there; None: they are chosen along the accepted path.
    """
    walking = group.walking()
    try:
        while walking:
            group.keep(walking)  # the baseline computes a position before it samples the next token
            walking = group.commit(walking, group.choose(walking, logits, sampled))
    finally:
        if group.noise is not None:
            group.leave_noise()
    group.judge()
