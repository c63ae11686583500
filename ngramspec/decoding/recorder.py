"""Records of each step: statistics, events and measured costs."""

from __future__ import annotations

from dataclasses import dataclass, field
from time import perf_counter

from ngramspec.decoding.generation import Generation
from ngramspec.draft import Draft, Verdict
from ngramspec.stats import StepEvent


@dataclass(slots=True)
class Step:
    """One step of the decode loop; the prefill is the first.

    Attributes:
        drafts: each row's draft, of at most width - 1 tokens.
        width: positions of the forward in every row, including padding; for the prefill, the
            prompt's last position and those after it.
        prefill: whether the forward reads the prompt.
        verdicts: the result of each row's verification.
    """

    drafts: list[Draft]
    width: int
    prefill: bool = False
    verdicts: list[Verdict] = field(default_factory=list)

    @property
    def longest(self) -> int:
        """Tokens of the longest draft."""
        return max([len(draft.tokens) for draft in self.drafts])


class StepRecorder:
    """Times the parts of each step, adds steps to a run's statistics, and reports them."""

    def __init__(self, run: Generation) -> None:
        self._run = run
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

        Args:
            waited: whether the device has finished, rather than only launched the forward.
        """
        self._forwarded, self._waited = perf_counter(), waited

    def record(self, step: Step, transfers: int) -> None:
        """Record a step that has just ended, with its number of transfers from the device."""
        ended = perf_counter()
        drafting, forward = self._proposed - self._started, self._forwarded - self._proposed
        seconds = drafting, forward, ended - self._forwarded
        if step.prefill:
            drafted, accepted = step.longest, len(step.verdicts[0].accepted) if step.longest else 0
            self._run.prefill_length.learn(drafted, accepted)
            self._run.stats.count_prefill(drafted, accepted, *seconds)
        else:
            self._steps += 1
            self._count(step, transfers)
            self._learn_costs(step, (self._forwarded if self._waited else ended) - self._proposed)
            self._run.stats.count_seconds(*seconds)
        self._report(step, seconds)

    def _count(self, step: Step, transfers: int) -> None:
        """Add a step to the statistics: a target call for each row that had not ended."""
        stats = self._run.stats
        for row, verdict in enumerate(step.verdicts):
            if verdict.emitted:
                draft = step.drafts[row]
                names = self._run.drafting.source_names(row) if len(draft.tokens) else ()
                stats.count_step(draft, verdict, names)
        stats.count_host_syncs(transfers)

    def _learn_costs(self, step: Step, seconds: float) -> None:
        """Record the forward's time at its width, and how many draft tokens were accepted."""
        costs = self._run.step_costs
        if costs is None:
            return
        if not self._run.target.compiling:
            trees = step.width > 1 and any(draft.parents is not None for draft in step.drafts)
            costs.record_time(step.width, seconds, trees)
            if self._run.pace is not None:
                cost = costs.cost()
                relative = float(cost[min(step.width, len(cost) - 1)])
                self._run.pace.record(seconds, relative, len(step.drafts))
        accepted = sum([len(verdict.accepted) for verdict in step.verdicts])
        costs.record_acceptance(sum([len(draft.tokens) for draft in step.drafts]), accepted)

    def _report(self, step: Step, seconds: tuple[float, float, float]) -> None:
        """Pass an event for each row that had not ended to ``on_step``."""
        if self._run.on_step is None:
            return
        for row, (draft, verdict) in enumerate(zip(step.drafts, step.verdicts, strict=True)):
            if verdict.emitted:
                names = self._run.drafting.source_names(row)
                event = StepEvent.of(self._steps, row, draft, verdict, names, seconds, step.width)
                self._run.on_step(event)
