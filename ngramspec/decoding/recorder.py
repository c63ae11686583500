"""Records of each step: statistics, events and measured costs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from time import perf_counter

from ngramspec.costs.policies import PrefillDraftLength
from ngramspec.costs.steps import StepCosts
from ngramspec.decoding.row import Row
from ngramspec.draft import EvidenceRequest
from ngramspec.hf_model.target import Target
from ngramspec.stats import DecodeStats, StepEvent


@dataclass(slots=True)
class Step:
    """One step of the decode loop; the prefill is the first.

    Attributes:
        rows: the rows in the forward's order, with drafts of at most width - 1 tokens, and their
            verdicts once the step is verified.
        width: positions of the forward in every row, including padding; for the prefill, the
            prompt's last position and those after it.
        request: the evidence that the drafters request from the forward, or None.
    """

    rows: Sequence[Row]
    width: int
    request: EvidenceRequest | None = None
    prefill: bool = False

    @property
    def longest(self) -> int:
        """Tokens of the longest draft."""
        return max([len(row.draft.tokens) for row in self.rows])


@dataclass(eq=False, kw_only=True)
class StepRecorder:
    """Times the parts of each step, adds steps to a run's statistics, and reports them.

    ``prefill_length`` learns how many draft tokens the prefill should verify.
    """

    target: Target
    costs: StepCosts | None
    prefill_length: PrefillDraftLength
    stats: DecodeStats
    on_step: Callable[[StepEvent], None] | None

    def __post_init__(self) -> None:
        self._steps = 0
        self._started = self._proposed = self._forwarded = 0.0  # seconds of perf_counter
        self._waited = True

    def mark_start(self) -> None:
        """Mark the start of a step and of its drafting."""
        self._started = perf_counter()

    def mark_proposed(self) -> None:
        """Mark the end of drafting and the start of the forward."""
        self._proposed = perf_counter()

    def mark_forwarded(self, *, waited: bool = True) -> None:
        """Mark the end of the forward; in the prefill it includes the verification.

        ``waited``: whether the device has finished, rather than only launched the forward.
        """
        self._forwarded, self._waited = perf_counter(), waited

    def record(self, step: Step, transfers: int) -> None:
        """Record a step that has just ended, with its number of transfers from the device."""
        ended = perf_counter()
        drafting, forward = self._proposed - self._started, self._forwarded - self._proposed
        other = ended - self._forwarded
        stats = self.stats
        stats.draft_seconds += drafting
        stats.other_seconds += other
        if step.prefill:
            drafted, accepted = step.longest, len(step.rows[0].verdict.accepted)
            self.prefill_length.learn(drafted, accepted)
            stats.runs += 1
            stats.prefill_drafted += drafted
            stats.prefill_accepted += accepted
            stats.prefill_seconds += forward
            if self.costs is not None:
                self.costs.record_prefill(forward, self.target.prefill_positions)
        else:
            self._steps += 1
            for row in step.rows:
                if row.verdict.emitted:  # a row that had ended has no target call
                    stats.count_step(row.draft, row.verdict, row.source_names)
            stats.host_syncs += transfers
            stats.forward_seconds += forward
            self._learn_costs(step, (self._forwarded if self._waited else ended) - self._proposed)
        if self.on_step is not None:
            self._report(step, self.on_step, (drafting, forward, other))

    def _learn_costs(self, step: Step, seconds: float) -> None:
        """Record the forward's time at its width, and how many draft tokens were accepted."""
        costs = self.costs
        if costs is None:
            return
        if not self.target.compiling:
            trees = step.width > 1 and any(row.draft.parents is not None for row in step.rows)
            costs.record_time(step.width, seconds, trees)
        accepted = sum([len(row.verdict.accepted) for row in step.rows])
        costs.record_acceptance(sum([len(row.draft.tokens) for row in step.rows]), accepted)

    def _report(
        self, step: Step, on_step: Callable[[StepEvent], None], seconds: tuple[float, float, float]
    ) -> None:
        """Pass an event for each row that had not ended to ``on_step``."""
        for at, row in enumerate(step.rows):
            draft, verdict = row.draft, row.verdict
            if not verdict.emitted:
                continue
            source = [0] * len(draft) if draft.source is None else draft.source.tolist()
            sources = tuple(row.source_names[each] for each in source)
            drafted = tuple(draft.tokens.tolist())
            parents = None if draft.parents is None else tuple(draft.parents.tolist())
            event = StepEvent(
                self._steps, drafted, sources, verdict, *seconds, at, step.width, parents
            )
            on_step(event)
