"""Drafting for all rows of a batch: maximum draft lengths, and the cut to a common length."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ngramspec.costs.call import CallCosts
from ngramspec.decoding.draft_runner import DraftRunner
from ngramspec.decoding.group import Group
from ngramspec.draft import EMPTY_DRAFT, Draft, EvidenceRequest, Verdict
from ngramspec.draft_length.schedule import CostGamma, PrefillDraftLength
from ngramspec.hf_model.target import Target
from ngramspec.verification.evidence import Computed

if TYPE_CHECKING:  # most calls have one process
    from ngramspec.decoding.distributed import Ranks

NO_LIMIT = 1 << 20  # tokens; the draft length limit if no other limit is known
# Ended rows leave the batch once at most this share of its rows has not ended. Not tuned.
MAX_UNFINISHED_SHARE = 0.75


@dataclass(eq=False)
class BatchDrafting:
    """The DraftRunners of a batch's rows.

    Attributes:
        groups: all rows of the batch in order; the rows of a group advance in lock-step.
        make_runner: makes a row's DraftRunner from the row's index and the vocabulary's size.
        costs: the forwards' costs. None: unknown, and the prefill verifies no draft.
        prefill_length: how many draft tokens the prefill verifies.
        max_length: maximum tokens of a row, including the prompt; None: no limit is known.
    """

    groups: Sequence[Group]
    target: Target
    make_runner: Callable[[int, int], DraftRunner]
    costs: CallCosts | None
    prefill_length: PrefillDraftLength
    ranks: Ranks | None
    max_length: int | None

    def __post_init__(self) -> None:
        self._rows = range(self.target.prompt.shape[0])
        self._runners: list[DraftRunner] = []
        self._steps = 0

    def start(self, vocab: int) -> None:
        """Make the DraftRunners of rows that have none, for a vocabulary of ``vocab`` tokens."""
        for row in self._rows[len(self._runners) :]:
            self._runners.append(self.make_runner(row, vocab))

    def finish(self) -> None:
        """End the call successfully: shared stores may keep the rows' texts."""
        for runner in self._runners:
            runner.end(well=True)

    def close(self) -> None:
        """End every row's session."""
        for runner in self._runners:
            runner.end(well=False)  # no effect after ``finish``
            runner.close()

    def source_names(self, row: int) -> Sequence[str]:
        """Names of the draft sources, indexed by ``Draft.source`` of a row's last draft."""
        return self._runners[row].source_names if self._runners else ()

    def propose_for_prefill(self) -> list[Draft]:
        """Each row's draft after the prompt; empty if the prefill verifies none."""
        group, costs, vocab = self.groups[0], self.costs, self.target.vocab
        room, learned = self.target.prefill_room(), self.prefill_length.limit
        limit = min(room, self.draft_limits(group)[0], learned)
        if limit < 1 or vocab is None or costs is None or self.ranks is not None:
            return [EMPTY_DRAFT] * len(self._rows)
        costs.at(group.length, prefill=True)
        self.start(vocab)
        return [self._runners[0].propose(limit, tree=False)]

    def propose(self) -> list[Draft]:
        """Each row's draft. Rows in lock-step have equal lengths, unless drafts were sampled."""
        drafts = [EMPTY_DRAFT] * len(self._rows)
        self._steps += 1
        if len(self.groups) > 1:
            self.drop_ended()
        costs = self.costs
        if costs is not None:
            target = self.target
            pending = None if target.pending is None else len(target.pending)
            costs.at(max([group.length for group in self.groups]), pending)
            if costs.plain():
                return drafts
        for group in self.groups:
            if not group.stopped:
                self.propose_for(group, drafts)
        if len(self.groups) > 1:
            self.cut_together(drafts)
        return drafts

    def propose_for(self, group: Group, drafts: list[Draft]) -> None:
        """Put the drafts of a group's rows into ``drafts``, one for each row of the batch.

        Deterministic drafts are cut to the shortest. Sampled drafts are not cut, because letting
        sampled tokens decide the length would bias the output.
        """
        limit, nodes = self.draft_limits(group)
        if len(group.rows) == 1:
            drafts[group.rows[0]] = self._runners[group.rows[0]].propose(limit, nodes)
            return
        active = [group.rows[row] for row in group.active]
        for row in active:
            drafts[row] = self._runners[row].propose(limit)
            if drafts[row].proposal is None:
                limit = min(limit, len(drafts[row]))
        if all(drafts[row].proposal is None for row in active):
            for row in active:
                drafts[row] = drafts[row].first(limit)

    def drop_ended(self) -> None:
        """Remove ended rows from the batch once enough rows have ended."""
        target, costs = self.target, self.costs
        unfinished = [row for group in self.groups for row in group.rows if not group.stopped]
        few = 0 < len(unfinished) <= MAX_UNFINISHED_SHARE * target.rows
        if few and target.rows_may_leave:
            target.keep_rows(unfinished)
            if costs is not None:
                costs.keep_rows(len(unfinished))

    def cut_together(self, drafts: list[Draft]) -> None:
        """Cut the drafts of diverged rows to a common length, as one forward runs the longest."""
        groups = [group for group in self.groups if not group.stopped]
        rows = [row for group in groups for row in group.rows]
        proposed = [drafts[row] for row in rows]
        estimated = all(draft.confidence is not None for draft in proposed if len(draft))
        sampled = any(draft.proposal is not None for draft in proposed)  # see propose_for
        costs = self.costs
        if costs is None or sampled or not estimated or not any(map(len, proposed)):
            return
        from ngramspec.draft_length.batch_choice import common_length, urgencies

        left = [self.tokens_left(group) for group in groups]
        weights = urgencies(left, [group.new for group in groups], self._steps)
        surcharge = 1.0 if self._runners[0].always_branches else costs.surcharge()
        if surcharge < CostGamma.MIN_SURCHARGE:
            surcharge = 1.0
        length, branches = common_length(proposed, weights, costs.cost(), surcharge)
        for row in rows:
            draft = drafts[row] if branches else self._runners[row].path_of(drafts[row])
            drafts[row] = draft.first(length).as_chain()

    def width(self, drafts: list[Draft]) -> int:
        """Positions of the forward: at least one more than the tokens of the longest draft."""
        positions = 1 + max([len(draft.tokens) for draft in drafts])
        costs = self.costs
        if positions == 1 or costs is None or any(draft.parents is not None for draft in drafts):
            return positions
        if self.target.traits.recurrent:  # padding is rejected, which would undo a recurrent state
            return positions
        room = min(self.draft_limits(group)[0] for group in self.groups if not group.stopped)
        return costs.width(positions, 1 + room)

    def draft_limits(self, group: Group) -> tuple[int, int]:
        """Maximum tokens of a path, by the length of the text too, and of a whole draft."""
        room = self.target.room(group.new)
        nodes = NO_LIMIT if room is None else room
        return min(self.tokens_left(group) - 1, nodes), nodes

    def tokens_left(self, group: Group) -> int:
        """Maximum tokens that a group's rows may still generate."""
        longest = self.max_length
        return NO_LIMIT if longest is None else longest - group.length

    @property
    def evidence(self) -> EvidenceRequest | None:
        """The running sessions' joint request for evidence from the next forward, or None."""
        request = None
        for runner in self._runners:
            if runner.evidence is not None:
                request = runner.evidence | request
        return request

    def learn(
        self, drafts: list[Draft], verdicts: list[Verdict], computed: list[Computed] | None = None
    ) -> None:
        """Report each draft's verdict, with the row's evidence if any, to the row's runner."""
        for row, runner in enumerate(self._runners):
            if verdicts[row].emitted:
                own = None if computed is None else computed[row]
                runner.learn(drafts[row], verdicts[row], own)
