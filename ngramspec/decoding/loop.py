"""The decode loop: draft, verify in one forward, accept, roll back, extend."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from time import perf_counter
from typing import TYPE_CHECKING

import torch

from ngramspec.costs.policies import PrefillDraftLength
from ngramspec.costs.steps import JointPart, StepCosts
from ngramspec.decoding.group import Group
from ngramspec.decoding.observer import (
    DRAFTING,
    INPUT_PREPARATION,
    PREFILL,
    ROLLBACK,
    STEP,
    VERIFICATION,
    Section,
)
from ngramspec.decoding.step import Step, verify
from ngramspec.draft import Computed
from ngramspec.hf_model.target import MissingLogitsError, Target
from ngramspec.stats import DecodeStats, StepEvent
from ngramspec.verification.sampler import SampledTokens, TokenSampler

if TYPE_CHECKING:  # most calls have one process
    from ngramspec.decoding.distributed import Ranks

logger = logging.getLogger("ngramspec")


@dataclass(eq=False, kw_only=True)
class DecodeLoop:
    """The steps of one generation.

    ``advance`` runs one step, so a caller can do other work between two steps. Always call
    ``close`` at the end, also after an exception.

    Attributes:
        costs: learn from the forwards' times; None: nothing does.
        prefill_length: learns how many draft tokens the prefill should verify.
        stats: the statistics of this generation.
        on_step: is called with the event of each row.
        section: returns the context of a section, see Observer.
        ranks: the processes that decode together; None: only this one.
        device: where tokens are chosen; logits are moved there.
        prefilled: whether the prefill has run.
        steps: number of steps after it.
    """

    target: Target
    group: Group
    sampler: TokenSampler
    costs: StepCosts | None
    prefill_length: PrefillDraftLength
    stats: DecodeStats
    on_step: Callable[[StepEvent], None] | None
    section: Section
    ranks: Ranks | None
    device: torch.device
    prefilled: bool = False
    steps: int = 0

    def run(self) -> torch.Tensor:
        """Generate until a stopping rule fires in every row.

        Afterwards the target's cache holds what the baseline would have left there, and the draft
        sessions are closed. Both also hold if an exception ends the run.

        Returns:
            int64 (batch, prompt + generated), on the prompt's device. Rows that ended early are
            padded.
        """
        try:
            unfinished = self.advance()
            with self.target.decoding():
                while unfinished:
                    unfinished = self.advance()
            sequences = self.group.sequences()
            if self.sampler.streamer is not None:
                self.sampler.streamer.end()
            try:
                self.target.compile_missing()
            except Exception as error:  # the text is not lost
                logger.warning("further forwards could not be compiled: %r", error)
            return sequences
        finally:
            self.close()

    def step(self) -> None:
        """One step of speculative decoding (Leviathan et al. 2023, Alg. 1), or the prefill.

        ``advance`` calls it until the text ends.
        """
        step = self.propose()
        logits = self.forward(step)
        self.complete(step, logits)

    def complete(self, step: Step, logits: torch.Tensor) -> None:
        """The second half of a step, after its forward: verify, roll back, observe and extend.

        ``logits`` is (batch, n + 1, vocab), at each row's last committed token and its n draft
        tokens.
        """
        hidden = self.target.hidden
        if logits.device != self.device:
            logits = logits.to(self.device)
        if hidden is not None and hidden.device != self.device:
            self.target.hidden = hidden.to(self.device)
        sampled = self.verify(step, logits)
        self.rollback()
        self.observe_and_extend(step, logits, sampled)
        self.record(step, sampled)

    def advance(self) -> bool:
        """Run the prefill if it has not run yet, else the next step.

        Steps must run inside the target's ``decoding`` context, and the prefill outside it. Returns
        whether there is another step to run.
        """
        if self.ranks is not None and self.prefilled and self.group.stopped:
            # Other ranks need this rank's share of the weights. The result is dropped.
            self.group.begin_step()
            self.forward(Step(rows=self.group.rows))
            self.rollback()
        else:
            with self.section(STEP if self.prefilled else PREFILL):
                self.step()
        return self.is_unfinished()

    def is_unfinished(self) -> bool:
        """Whether there is another step to run; if not, end the drafting successfully."""
        unfinished = not self.group.stopped
        if self.ranks is not None:
            unfinished = self.ranks.any_unfinished(unfinished)
        if not unfinished:
            self.group.finish()
        return unfinished

    def close(self) -> None:
        """Leave the cache as the baseline would have left it, and end the draft sessions."""
        try:
            self.rollback()
        finally:
            try:
                self.target.close()
            finally:
                self.group.close()

    def propose(self, part: JointPart | None = None) -> Step:
        """Propose each row's draft, and collect the drafters' request for evidence.

        ``part``: what the step costs as a part of a joint one.
        """
        group, started = self.group, perf_counter()
        group.begin_step()
        with self.section(DRAFTING):
            if self.prefilled:
                group.propose(part)
                width = group.width(pads=part is None)
                if self.ranks is not None:
                    width = self.ranks.share(group.rows, width)
            else:
                if self.ranks is None:  # other ranks would not know the draft
                    group.propose_for_prefill(self.prefill_length.limit)
                width = 1 + len(group.rows[0].draft)
        request = group.evidence()
        self.target.keep_hidden = request is not None and request.hidden
        return Step(
            rows=[*group.rows],
            width=width,
            request=request,
            prefill=not self.prefilled,
            joint=part is not None,
            started=started,
            proposed=perf_counter(),
        )

    def forward(self, step: Step) -> torch.Tensor:
        """The target's logits at every row's last committed token and draft."""
        if step.prefill:
            draft = self.group.block(step.width)[:, 1:] if step.width > 1 else None
            logits = self.target.prefill(draft)
            self.prefilled = True
            return logits
        with self.section(INPUT_PREPARATION):
            try:
                return self.target.forward(self.prepared(step))
            except MissingLogitsError as error:
                if step.width == 1:
                    raise
                logger.warning("the following steps have no drafts: %s", error)
                self.target.without_drafts(str(error))
            self.group.begin_step()
            step.width = 1
            return self.target.forward(self.prepared(step))

    def prepared(self, step: Step) -> Step:
        """Set the tokens of a step's forward."""
        step.block = self.group.block(step.width)
        step.lengths = [1 + len(row.draft.tokens) for row in step.rows]
        drafted = max(step.lengths) > 1
        step.trees = [row.draft.parents for row in step.rows] if drafted else ()
        if self.group.padding:
            step.lengths = [*map(max, step.lengths, self.group.padding)]
        if self.target.facts.reads_text:
            step.committed = self.group.ids()
        return step

    def verify(self, step: Step, logits: torch.Tensor) -> SampledTokens | None:
        """Commit the accepted tokens of every row, then its recovered or bonus token.

        Returned are the target's tokens at all positions, if they were sampled at once.
        """
        sampled = None
        with self.section(VERIFICATION):
            if self.sampler.fetches_at_once:
                sampled = self.sample(step, logits)
            step.forwarded = perf_counter()
            step.waited = logits.device.type == "cpu" or sampled is not None
            verify(self.group, logits, sampled)
        return sampled

    def sample(self, step: Step, logits: torch.Tensor) -> SampledTokens:
        """The target's tokens at all positions, and the evidence that drafters request."""
        extra = None
        if step.request is not None:
            from ngramspec.verification.evidence import evidence_tensor  # most drafters have none

            extra = evidence_tensor(logits, self.target.hidden, step.request)
        drafts = [row.draft for row in step.rows]
        group = self.group
        return self.sampler.sample_all(drafts, logits, group.histories, group.noise_at, extra)

    def rollback(self) -> None:
        """Roll the target's cache back to the accepted positions of its last forward."""
        with self.section(ROLLBACK):
            self.target.rollback(self.group.accepted_paths(), self.group.origins)

    def observe_and_extend(
        self, step: Step, logits: torch.Tensor, sampled: SampledTokens | None
    ) -> None:
        """Report each draft's result and the committed tokens to the row's drafter."""
        if step.prefill:
            step.forwarded, step.waited = perf_counter(), True
            if not self.group.stopped:
                self.group.connect(logits.shape[-1])
        computed: list[Computed] | None = None
        if step.request is not None:
            from ngramspec.verification.evidence import evidence_of_rows

            positions = [1 + len(row.draft) for row in step.rows]
            fetched = None if sampled is None else sampled.extra
            hidden = self.target.hidden
            with self.section(VERIFICATION):
                computed = evidence_of_rows(step.request, positions, logits, hidden, fetched)
        with self.section(DRAFTING):
            self.group.learn(computed)

    def record(self, step: Step, sampled: SampledTokens | None) -> None:
        """Add a step that has just ended to the statistics, learn from its time, and report it."""
        step.ended = perf_counter()
        step.count(self.stats, self.transfers(step, sampled))
        self.stats.emitted -= self.group.dropped
        self.group.dropped = 0
        drafted, accepted, branched = 0, 0, False
        for row in step.rows:
            drafted += len(row.draft.tokens)
            accepted += len(row.verdict.accepted)
            branched = branched or row.draft.parents is not None
        costs, target = self.costs, self.target
        if step.prefill:
            self.prefill_length.learn(drafted, accepted)
            if costs is not None and not target.compiling:
                positions = target.prefill_positions + step.width - 1
                costs.record_prefill(step.forward_seconds, positions)
        else:
            self.steps += 1
            if costs is not None and not step.joint:  # it is timed as a whole
                if not target.compiling:
                    costs.record_time(step.width, step.forward_seconds, branched)
                costs.record_acceptance(step.width, drafted, accepted)
        if self.on_step is not None:
            for event in step.events(self.steps):
                self.on_step(event)

    def transfers(self, step: Step, sampled: SampledTokens | None) -> int:
        """How many transfers from the device the step needed."""
        if self.device.type == "cpu" != self.target.device.type:  # only that of the logits
            return 1
        sampler = self.sampler
        apart, custom = not sampler.all_at_once, bool(sampler.stop.custom)
        positions = max(map(len, self.group.accepted_paths())) if apart or custom else 1
        waits = (positions if apart else 1) + (positions if custom else 0)
        fetched = sampled is not None and sampled.extra is not None
        evidence = step.request is not None and not fetched and self.device.type != "cpu"
        return waits + evidence
