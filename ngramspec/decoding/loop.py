"""The decode loop: draft, verify in one forward, accept, roll back, extend."""

from __future__ import annotations

from dataclasses import dataclass
from time import perf_counter

import numpy as np
import torch

from ngramspec.decoding.beams.drafting import drafting_of
from ngramspec.decoding.beams.group import BeamGroup
from ngramspec.decoding.generation import Generation
from ngramspec.decoding.group import NOTHING, Group
from ngramspec.decoding.observer import (
    DRAFTING,
    INPUT_PREPARATION,
    PREFILL,
    ROLLBACK,
    STEP,
    VERIFICATION,
)
from ngramspec.decoding.side_by_side import verify_side_by_side
from ngramspec.draft import EMPTY_DRAFT, Draft, Int32, Verdict
from ngramspec.stats import StepEvent
from ngramspec.verification.evidence import Computed, EvidenceChannel
from ngramspec.verification.sampler import SampledTokens


def decode(run: Generation) -> torch.Tensor:
    """Generate until a stopping rule fires in every row.

    Whatever ends it, an exception included, the target's cache holds what plain decoding would
    have left there, and the draft sessions are closed.

    Returns:
        int64 (batch, prompt + generated), on the prompt's device; rows that ended before others
        are padded.
    """
    loop = DecodeLoop(run)
    try:
        going = loop.advance()
        with run.target.decoding():
            while going:
                going = loop.advance()
        return loop.sequences()
    finally:
        loop.close()


ForwardArguments = tuple[torch.Tensor, list[int], list[Int32 | None], torch.Tensor | None]


@dataclass(slots=True)
class PlannedStep:
    """A step before its forward.

    Attributes:
        drafts: of each row.
        width: positions of the forward.
        started, proposed: when drafting began and ended, in seconds of ``perf_counter``.
    """

    drafts: list[Draft]
    width: int
    started: float
    proposed: float

    @classmethod
    def nothing(cls) -> PlannedStep:
        """A step that has not begun."""
        return cls([], 0, 0.0, 0.0)


class DecodeLoop:
    """The groups of a run, and each row's drafting.

    ``advance`` runs it bit by bit, so that a caller may do other things between two steps.
    ``close`` must be called at the end, whatever ended it.
    """

    def __init__(self, run: Generation) -> None:
        prompt, observer = run.target.prompt, run.observer
        self.run = run
        self.section = observer.section
        self.device = prompt.device
        self.rows = range(prompt.shape[0])
        if run.beams is not None:
            self.groups: list[Group] = [
                BeamGroup(prompt, run.sampler, run.beams, observer, branches=run.beam_nodes > 0)
            ]
        elif run.row_samplers is None:
            self.groups = [Group(tuple(self.rows), prompt, run.sampler, observer)]
        else:
            rows = zip(self.rows, run.row_samplers, strict=True)
            self.groups = [Group((row,), prompt[[row]], each, observer) for row, each in rows]
        self.drafting = drafting_of(run, self.groups)
        self.evidence = EvidenceChannel(run.sampler.fetches_at_once)
        self.last = [0] * len(self.rows)  # each row's last committed token
        self.steps = 0
        self._prefilled = False

    def advance(self) -> bool:
        """Run the prefill, or after it the next step: whether there is another step to run.

        Steps belong into the target's ``decoding`` context, the prefill does not.
        """
        if not self._prefilled:
            with self.section(PREFILL):
                self.prefill()
            self._prefilled = True
        elif self.stopped:
            self.forward_for_other_ranks()
        else:
            with self.section(STEP):
                self.step()
        return self.ended_step()

    def ended_step(self) -> bool:
        """Whether there is another step to run; if not, the drafting ends well."""
        going = self.run.ranks.going(not self.stopped)
        if not going:
            self.drafting.finish()
        return going

    def close(self) -> None:
        """Leave the cache as plain decoding would have left it, and end the draft sessions."""
        try:
            self.rollback()
        finally:
            self.run.target.close()
            self.drafting.close()

    @property
    def stopped(self) -> bool:
        """Whether every row has ended."""
        return all(group.stopped for group in self.groups)

    @property
    def pad(self) -> int:
        """What ended rows are padded with."""
        return 0 if self.run.sampler.pad is None else self.run.sampler.pad

    def sequences(self) -> torch.Tensor:
        """The committed tokens of all rows, int64 (batch, longest)."""
        if len(self.groups) == 1:
            return self.groups[0].sequences()
        longest = max(group.length for group in self.groups)
        out = torch.full((len(self.rows), longest), self.pad, device=self.device)
        for group in self.groups:
            out[list(group.rows), : group.length] = group.ids()
        return out

    def rollback(self) -> None:
        """Roll the target back to the accepted positions of its last forward."""
        paths = [path for group in self.groups for path in group.accepted_paths]
        with self.section(ROLLBACK):
            self.run.target.rollback(paths, self.groups[0].origins)

    def prefill(self) -> None:
        """Run the prompt, and where the target can verify one, a draft after it."""
        run = self.run
        started = perf_counter()
        with self.section(DRAFTING):
            drafts = self.drafting.propose_for_prefill()
        proposed = perf_counter()
        longest = len(drafts[0])
        self.ask()
        logits = run.target.prefill(self.block(drafts, 1 + longest)[:, 1:] if longest else None)
        sampled = self.sample_all(drafts, logits)
        verdicts = self.verify(drafts, logits, sampled)
        self.rollback()
        prefilled = perf_counter()
        if not self.stopped:
            self.drafting.start(logits.shape[-1])
        self.learn(drafts, verdicts, self.computed(drafts, logits, sampled))
        ended = perf_counter()
        accepted = len(verdicts[0].accepted) if longest else 0
        run.prefill_length.learn(longest, accepted)
        seconds = (proposed - started, prefilled - proposed, ended - prefilled)
        run.stats.count_prefill(longest, accepted, *seconds)
        self.report(drafts, verdicts, seconds, 1 + longest)

    def step(self) -> None:
        """One step: propose, forward, verify, roll back, observe and extend."""
        planned = self.plan()
        self.take(planned, self.forward(planned.drafts, planned.width))

    def plan(self) -> PlannedStep:
        """The first part of a step, up to its forward: propose."""
        run = self.run
        self.begin_step()
        started = perf_counter()
        with self.section(DRAFTING):
            drafts = self.drafting.propose()
        drafts, width = run.ranks.share(drafts, self.drafting.width(drafts))
        self.ask()
        return PlannedStep(drafts, width, started, perf_counter())

    def take(self, planned: PlannedStep, logits: torch.Tensor) -> None:
        """The rest of a step, behind its forward: verify, roll back, observe and extend.

        Args:
            planned: whose drafts the forward ran.
            logits: as ``forward`` returns them.
        """
        run, drafts = self.run, planned.drafts
        width = planned.width + run.target.again
        sampled = self.sample_all(drafts, logits)
        forwarded = perf_counter()
        verdicts = self.verify(drafts, logits, sampled)
        self.rollback()
        self.learn(drafts, verdicts, self.computed(drafts, logits, sampled))
        ended = perf_counter()
        self.steps += 1
        self.count(drafts, verdicts)
        # A device that is not waited for is not timed by the launch of its forward.
        waited = sampled is not None or self.device.type == "cpu"
        proposed = planned.proposed
        self.time(drafts, verdicts, width, (forwarded if waited else ended) - proposed)
        seconds = (proposed - planned.started, forwarded - proposed, ended - forwarded)
        run.stats.count_seconds(*seconds)
        self.report(drafts, verdicts, seconds, width)

    def begin_step(self) -> None:
        """Nothing of the coming forward is accepted yet."""
        for group in self.groups:
            group.begin_step()

    def forward(self, drafts: list[Draft], width: int) -> torch.Tensor:
        """The target's logits at every row's last committed token and draft."""
        with self.section(INPUT_PREPARATION):
            return self.run.target.forward(*self.arguments(drafts, width))

    def arguments(self, drafts: list[Draft], width: int) -> ForwardArguments:
        """The arguments of the target's forward."""
        lengths, trees = [1 + len(draft) for draft in drafts], [each.parents for each in drafts]
        return self.block(drafts, width), lengths, trees, self.committed()

    def ask(self) -> None:
        """Ask the coming forward for what the drafting wants to know of it."""
        request = self.evidence.request = self.drafting.evidence
        self.run.target.keep_hidden = request is not None and request.hidden

    def computed(
        self, drafts: list[Draft], logits: torch.Tensor, sampled: SampledTokens | None
    ) -> list[Computed] | None:
        """What the drafting asked of the last forward, for each row; None: it asked nothing."""
        if self.evidence.request is None:
            return None
        positions = [1 + len(draft) for draft in drafts]
        came = None if sampled is None else sampled.beside
        with self.section(VERIFICATION):
            return self.evidence.read(positions, logits, self.run.target.hidden, came)

    def learn(
        self, drafts: list[Draft], verdicts: list[Verdict], computed: list[Computed] | None = None
    ) -> None:
        """Tell the drafting what became of its drafts, and what was committed."""
        with self.section(DRAFTING):
            self.drafting.learn(drafts, verdicts, computed)

    def forward_for_other_ranks(self) -> None:
        """A forward of which nothing is kept: other ranks need this one's share of the weights."""
        self.begin_step()
        self.forward([EMPTY_DRAFT] * len(self.rows), 1)
        self.rollback()

    def committed(self) -> torch.Tensor | None:
        """All tokens, int64 (batch, length), if rows have equally many and the model reads them."""
        reads = self.run.target.traits.reads_text and len(self.groups) == 1
        return self.groups[0].ids() if reads else None

    def block(self, drafts: list[Draft], width: int) -> torch.Tensor:
        """Every row's last committed token and draft, int64 (batch, width).

        The rest of a row repeats its last committed token, which surely has an embedding. A row
        that has ended before others is padded, as in plain decoding; if the padding token has no
        embedding, on which plain decoding fails, with token 0.
        """
        block = np.repeat(np.array(self.last, np.int64)[:, None], width, axis=1)
        known = self.run.target.traits.embeddings
        embedded = known is None or 0 <= self.pad < known
        for group in self.groups if len(self.rows) > 1 else ():
            ended = set(range(len(group.rows))) - set(group.going)
            rows = [group.rows[row] for row in ended]
            block[rows, 1:] = self.pad if embedded else 0
            block[[row for row in rows if not embedded and self.last[row] == self.pad], 0] = 0
        for row, draft in enumerate(drafts):
            block[row, 1 : 1 + len(draft)] = draft.tokens
        return torch.from_numpy(block).to(self.device, non_blocking=True)

    def sample_all(self, drafts: list[Draft], logits: torch.Tensor) -> SampledTokens | None:
        """The target's tokens at all positions; None: they are sampled one after another."""
        with self.section(VERIFICATION):
            beside = self.evidence.beside(logits, self.run.target.hidden)
            return self.run.sampler.sample_all(drafts, logits, beside)

    def verify(
        self, drafts: list[Draft], logits: torch.Tensor, sampled: SampledTokens | None
    ) -> list[Verdict]:
        """Commit in every group as far as its drafts agree with the target: a verdict for each row.

        Args:
            drafts: one for each row.
            logits: (batch, n + 1, vocab).
            sampled: the target's n + 1 tokens of each row, or None.
        """
        verdicts = [NOTHING] * len(self.rows)
        groups = [group for group in self.groups if not group.stopped]
        together = sampled is None and len(self.groups) > 1
        try:
            with self.section(VERIFICATION):
                if together:
                    verify_side_by_side(groups, drafts, logits, self.run.sampler)
                for group in groups:
                    own = slice(group.rows[0], group.rows[-1] + 1)  # they follow one another
                    known = None if sampled is None else sampled.tokens[own]
                    verdicts[own] = (
                        group.verdicts()
                        if together
                        else group.verify(drafts[own], logits[own], known)
                    )
                    self.last[own] = group.last
        finally:  # an error of a streamer, say, leaves the generator where plain decoding would
            accepted = len(self.groups[0].accepted_positions)
            if sampled is not None and len(self.groups) == 1 and accepted:
                sampled.rewind(accepted)
        return verdicts

    def count(self, drafts: list[Draft], verdicts: list[Verdict]) -> None:
        """Add a step to the statistics: a target call for each row that had not ended."""
        stats, sampler = self.run.stats, self.run.sampler
        for row, verdict in enumerate(verdicts):
            if verdict.emitted:
                stats.count_step(drafts[row], verdict, self.drafting.tiers(row))
        positions = max(len(group.accepted_positions) for group in self.groups)
        syncs = 1 if sampler.all_at_once else positions
        syncs += self.evidence.transfers + (positions if sampler.stop.custom else 0)
        stats.count_host_syncs(syncs)

    def time(
        self, drafts: list[Draft], verdicts: list[Verdict], width: int, seconds: float
    ) -> None:
        """Learn what a forward of ``width`` positions cost, and what its drafts were worth."""
        costs = self.run.step_costs
        if costs is None:
            return
        if not self.run.target.compiling:
            costs.took(width, seconds, any(draft.parents is not None for draft in drafts))
        accepted = sum(len(verdict.accepted) for verdict in verdicts)
        costs.came(sum(len(draft) for draft in drafts), accepted)

    def report(
        self,
        drafts: list[Draft],
        verdicts: list[Verdict],
        seconds: tuple[float, float, float],
        width: int,
    ) -> None:
        """Pass an event for each row that had not ended to ``on_step``."""
        if self.run.on_step is None:
            return
        for row, (draft, verdict) in enumerate(zip(drafts, verdicts, strict=True)):
            if verdict.emitted:
                tiers = self.drafting.tiers(row)
                event = StepEvent.of(self.steps, row, draft, verdict, tiers, seconds, width)
                self.run.on_step(event)
