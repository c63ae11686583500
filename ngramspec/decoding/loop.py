"""The decode loop: draft, verify in one forward, accept, roll back, extend."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from time import perf_counter

import numpy as np
import torch

from ngramspec.decoding.distributed import ALONE, Ranks
from ngramspec.decoding.draft_runner import DraftRunner
from ngramspec.decoding.group import NOTHING, Group
from ngramspec.draft import EMPTY_DRAFT, Draft, Verdict
from ngramspec.draft_length.optimal import worthwhile
from ngramspec.draft_length.schedule import PrefillDraftLength
from ngramspec.draft_length.step_cost import StepCostTracker
from ngramspec.stats import DecodeStats, StepEvent
from ngramspec.target.model import Target
from ngramspec.verification.sampler import SampledTokens, TokenSampler


@dataclass(slots=True)
class Generation:
    """The arguments of one run of the loop.

    Attributes:
        target: the model, not yet prefilled.
        drafting: makes a row's DraftRunner once the vocabulary is known; called with the row's
            index and the vocabulary's size.
        choosing: how tokens are chosen.
        by_row: each row's own choosing, if rows advance each by its own number of tokens; None:
            all advance together.
        pace: measures what forwards cost and says how wide they run; None: as wide as drafts are,
            and the prefill checks no draft.
        ahead: how many tokens the prefill checks.
        stats: counts and times of this run, added to while it runs.
        on_step: called with every StepEvent, or None.
        ranks: the processes that decode together with this one.
    """

    target: Target
    drafting: Callable[[int, int], DraftRunner]
    choosing: TokenSampler
    by_row: Sequence[TokenSampler] | None = None
    pace: StepCostTracker | None = None
    ahead: PrefillDraftLength = field(default_factory=lambda: PrefillDraftLength(0))
    stats: DecodeStats = field(default_factory=DecodeStats)
    on_step: Callable[[StepEvent], None] | None = None
    ranks: Ranks = ALONE


def decode(run: Generation) -> torch.Tensor:
    """Generate until a stopping rule fires in every row.

    Whatever ends it, an exception included, the target's cache holds what plain decoding would
    have left there, and the draft sessions are closed.

    Returns:
        int64 (batch, prompt + generated), on the prompt's device; rows that ended before others
        are padded.
    """
    state = DecodeLoop(run)
    try:
        state.prefill()
        with run.target.decoding():
            while run.ranks.going(not state.stopped):
                if state.stopped:
                    state.forward_for_other_ranks()
                else:
                    state.step()
        return state.sequences()
    finally:
        try:
            run.target.rollback(state.kept(), state.accepted_positions())
        finally:
            run.target.close()
            for drafting in state.draftings:
                drafting.close()


class DecodeLoop:
    """The groups of a run, and each row's drafting."""

    def __init__(self, run: Generation) -> None:
        prompt = run.target.prompt
        self.run = run
        self.device = prompt.device
        self.rows = range(prompt.shape[0])
        if run.by_row is None:
            self.groups = [Group(tuple(self.rows), prompt, run.choosing)]
        else:
            rows = zip(self.rows, run.by_row, strict=True)
            self.groups = [Group((row,), prompt[[row]], choosing) for row, choosing in rows]
        self.draftings: list[DraftRunner] = []
        self.last = [0] * len(self.rows)  # each row's last committed token
        self.steps = 0

    @property
    def stopped(self) -> bool:
        """Whether every row has ended."""
        return all(group.stopped for group in self.groups)

    @property
    def pad(self) -> int:
        """What ended rows are padded with."""
        return 0 if self.run.choosing.pad is None else self.run.choosing.pad

    def sequences(self) -> torch.Tensor:
        """The committed tokens of all rows, int64 (batch, longest)."""
        if len(self.groups) == 1:
            return self.groups[0].ids().clone()
        longest = max(group.length for group in self.groups)
        out = torch.full((len(self.rows), longest), self.pad, device=self.device)
        for group in self.groups:
            out[list(group.rows), : group.length] = group.ids()
        return out

    def kept(self) -> list[int]:
        """Per row, how many positions of the last forward plain decoding would have done."""
        return [len(group.accepted_positions) for group in self.groups for _ in group.rows]

    def accepted_positions(self) -> list[int]:
        """The positions themselves, where all rows advance together."""
        return self.groups[0].accepted_positions

    def prefill(self) -> None:
        """Run the prompt, and where the target can check one, a draft behind it."""
        run, stats = self.run, self.run.stats
        started = perf_counter()
        drafts = self.ahead()
        proposed = perf_counter()
        longest = len(drafts[0])
        logits = run.target.prefill(self.block(drafts, 1 + longest)[:, 1:] if longest else None)
        verdicts = self.verify(drafts, logits, self.choices(drafts, logits))
        run.target.rollback(self.kept(), self.accepted_positions())
        prefilled = perf_counter()
        if not self.stopped:
            self.start(logits.shape[-1])
        for row, drafting in enumerate(self.draftings):
            drafting.learn(drafts[row], verdicts[row])
        ended = perf_counter()
        stats.runs += 1
        accepted = len(verdicts[0].accepted) if longest else 0
        run.ahead.learn(longest, accepted)
        stats.prefill_drafted += longest
        stats.prefill_accepted += accepted
        seconds = (proposed - started, prefilled - proposed, ended - prefilled)
        stats.draft_seconds += seconds[0]
        stats.prefill_seconds += seconds[1]
        stats.other_seconds += seconds[2]
        self.report(drafts, verdicts, seconds, 1 + longest)

    def ahead(self) -> list[Draft]:
        """Each row's draft behind the prompt; all empty where the prefill is to check none."""
        target, group, pace = self.run.target, self.groups[0], self.run.pace
        drafts = [EMPTY_DRAFT] * len(self.rows)
        limit = min(target.prefill_room(), self.draft_limit(group), self.run.ahead.limit)
        vocab = target.vocab
        if limit < 1 or vocab is None or pace is None or self.run.ranks is not ALONE:
            return drafts
        pace.at(group.length)
        self.start(vocab)
        return [self.draftings[0].propose(limit, tree=False)]

    def start(self, vocab: int) -> None:
        """Begin every row's drafting, unless that is done."""
        for row in self.rows[len(self.draftings) :]:
            self.draftings.append(self.run.drafting(row, vocab))

    def step(self) -> None:
        """One step: propose, forward, verify, roll back, observe and extend."""
        run = self.run
        for group in self.groups:
            group.accepted_positions = []
        started = perf_counter()
        drafts = self.propose()
        drafts, width = run.ranks.share(drafts, self.width(drafts))
        proposed = perf_counter()
        lengths = [1 + len(draft) for draft in drafts]
        block, parents = self.block(drafts, width), drafts[0].parents
        logits = run.target.forward(block, lengths, parents, self.committed())
        choices = self.choices(drafts, logits)
        forwarded = perf_counter()
        verdicts = self.verify(drafts, logits, choices)
        run.target.rollback(self.kept(), self.accepted_positions())
        for row, verdict in enumerate(verdicts):
            if verdict.emitted:
                self.draftings[row].learn(drafts[row], verdict)
        ended = perf_counter()
        self.steps += 1
        self.count(drafts, verdicts)
        if run.pace is not None:  # a device that is not waited for is not timed by its launch
            waited = choices is not None or self.device.type == "cpu"
            if not run.target.compiling:
                taken = (forwarded if waited else ended) - proposed
                run.pace.took(width, taken, drafts[0].parents is not None)
            accepted = sum(len(verdict.accepted) for verdict in verdicts)
            run.pace.came(sum(len(draft) for draft in drafts), accepted)
        seconds = (proposed - started, forwarded - proposed, ended - forwarded)
        run.stats.draft_seconds += seconds[0]
        run.stats.forward_seconds += seconds[1]
        run.stats.other_seconds += seconds[2]
        self.report(drafts, verdicts, seconds, width)

    def forward_for_other_ranks(self) -> None:
        """A forward of which nothing stays: other ranks need this one's share of the weights."""
        for group in self.groups:
            group.accepted_positions = []
        drafts = [EMPTY_DRAFT] * len(self.rows)
        self.run.target.forward(self.block(drafts, 1), [1] * len(drafts), None, self.committed())
        self.run.target.rollback(self.kept(), self.accepted_positions())

    def propose(self) -> list[Draft]:
        """Each row's draft; in lock-step all of one length, unless some were drawn."""
        drafts = [EMPTY_DRAFT] * len(self.rows)
        pace = self.run.pace
        if pace is not None:
            pace.at(max(group.length for group in self.groups))
            if pace.plain():
                return drafts
        for group in self.groups:
            limit = self.draft_limit(group)
            ended = len(group.rows) - len(group.going)
            if group.stopped or (ended and self.run.target.traits.unplaced is not None):
                continue  # an ended row's padding would take no position
            going = [group.rows[row] for row in group.going]
            for row in going:
                drafts[row] = self.draftings[row].propose(limit)
                if len(group.rows) > 1 and drafts[row].proposal is None:
                    limit = min(limit, len(drafts[row]))
            if all(drafts[row].proposal is None for row in going):  # no token drawn may decide
                for row in going:
                    drafts[row] = drafts[row].first(limit)
        if len(self.groups) > 1:
            longest = self.common_length(drafts)
            drafts = [draft.first(longest) for draft in drafts]
        return drafts

    def common_length(self, drafts: list[Draft]) -> int:
        """Where to cut the drafts of rows that part: all run at the longest one's width."""
        rows = [row for group in self.groups for row in group.rows if not group.stopped]
        confidences = [drafts[row].confidence for row in rows]
        known = [each for each in confidences if each is not None]
        drawn = any(drafts[row].proposal is not None for row in rows)  # no token drawn may decide
        if self.run.pace is None or drawn or len(known) < len(rows):
            return max(len(draft) for draft in drafts)
        return worthwhile(known, self.run.pace.cost())

    def width(self, drafts: list[Draft]) -> int:
        """How many positions the forward runs: those of the longest draft, or more."""
        positions = 1 + max(len(draft) for draft in drafts)
        if self.run.pace is None or drafts[0].parents is not None:
            return positions
        room = min(self.draft_limit(group) for group in self.groups if not group.stopped)
        return self.run.pace.width(positions, 1 + room)

    def draft_limit(self, group: Group) -> int:
        """How many tokens a draft may have: none may pass the maximum length or the positions."""
        limits = [1 << 20]
        if self.run.choosing.stop.max_length is not None:
            limits.append(self.run.choosing.stop.max_length - group.length - 1)
        room = self.run.target.room(group.new)
        if room is not None:
            limits.append(room)
        return min(limits)

    def committed(self) -> torch.Tensor | None:
        """All tokens, int64 (batch, length), where rows have equally many and the model looks."""
        looks = self.run.target.traits.reads_text and len(self.groups) == 1
        return self.groups[0].ids() if looks else None

    def block(self, drafts: list[Draft], width: int) -> torch.Tensor:
        """Every row's last committed token and draft, int64 (batch, width).

        Behind that a row repeats its last committed token, which surely has an embedding. An ended
        row among others goes on as plain decoding has it, with padding; where that has no
        embedding, at which plain decoding fails, with token 0.
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

    def choices(self, drafts: list[Draft], logits: torch.Tensor) -> SampledTokens | None:
        """The target's tokens at all positions, where they can be had at once; else None."""
        choosing = self.run.choosing
        return choosing.all(drafts, logits) if choosing.at_once else None

    def verify(
        self, drafts: list[Draft], logits: torch.Tensor, choices: SampledTokens | None
    ) -> list[Verdict]:
        """Commit in every group as far as its drafts agree with the target: a verdict for each row.

        Args:
            drafts: one for each row.
            logits: (batch, n + 1, vocab).
            choices: the target's n + 1 tokens of each row, or None.
        """
        verdicts = [NOTHING] * len(self.rows)
        try:
            for group in self.groups:
                if group.stopped:
                    continue
                rows = list(group.rows)
                found = group.verify(
                    [drafts[row] for row in rows],
                    logits[rows[0] : rows[-1] + 1],  # they follow one another
                    None if choices is None else [choices.tokens[row] for row in rows],
                )
                for row, verdict, last in zip(rows, found, group.last, strict=True):
                    verdicts[row], self.last[row] = verdict, last
        finally:  # an error of a streamer, say, leaves the generator where plain decoding would
            if choices is not None and len(self.groups) == 1 and self.accepted_positions():
                choices.rewind(len(self.accepted_positions()))
        return verdicts

    def count(self, drafts: list[Draft], verdicts: list[Verdict]) -> None:
        """Add a step to the statistics: a target call for each row that had not ended."""
        stats, choosing = self.run.stats, self.run.choosing
        for row, verdict in enumerate(verdicts):
            if verdict.emitted:
                stats.count_step(drafts[row], verdict, self.draftings[row].tiers)
        positions = sum(len(group.accepted_positions) for group in self.groups)
        stats.host_syncs += 1 if choosing.at_once else positions
        stats.host_syncs += positions if choosing.stop.custom else 0

    def report(
        self,
        drafts: list[Draft],
        verdicts: list[Verdict],
        seconds: tuple[float, float, float],
        width: int = 1,
    ) -> None:
        """Hand an event for each row that had not ended to ``on_step``."""
        if self.run.on_step is None:
            return
        for row, (draft, verdict) in enumerate(zip(drafts, verdicts, strict=True)):
            if verdict.emitted:
                source = [0] * len(draft) if draft.source is None else draft.source.tolist()
                names = tuple(self.draftings[row].tiers[each] for each in source)
                drafted = tuple(draft.tokens.tolist())
                parents = None if draft.parents is None else tuple(draft.parents.tolist())
                event = StepEvent(
                    self.steps, drafted, names, verdict, *seconds, row, width, parents
                )
                self.run.on_step(event)
