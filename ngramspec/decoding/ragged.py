"""A batch whose rows each advance by their own number of tokens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from ngramspec.costs.policies import cut_to_one_length
from ngramspec.costs.row_lengths import urgencies
from ngramspec.decoding.batch import Batch, LockstepBatch
from ngramspec.decoding.row import Row
from ngramspec.draft import EMPTY_DRAFT, Int64
from ngramspec.hf_model.compat.processors import (
    Histories,
    RowText,
    all_by_row,
    process_at_once,
)
from ngramspec.hf_model.target import Target
from ngramspec.verification.sampler import SampledTokens, TokenSampler, argmax_on_host

# Ended rows leave the batch once at most this share of its rows has not ended. Not tuned.
MAX_UNFINISHED_SHARE = 0.75


def must_lockstep(sampler: TokenSampler, target: Target) -> bool:
    """Whether the rows of a batch have to advance in lock-step.

    They do if something sees all rows at once: a streamer, returned scores or logits, custom
    stopping criteria, or processors that are not known to treat rows separately. They also do if
    rows go on after their end, or if the cache is returned, as a later call expects it as the
    baseline would have left it.
    """
    stop = sampler.stop
    goes_on = bool(stop.strings or stop.timers) and sampler.pad is None
    sees_all = sampler.streamer is not None or sampler.records or stop.custom or goes_on
    returned = target.facts.states or target.config.return_dict_in_generate
    return bool(sees_all or returned) or not all_by_row(sampler.processors)


class RaggedBatch(Batch):
    """One ``LockstepBatch`` for each row. The arguments are those of LockstepBatch."""

    def __init__(
        self, rows: list[Row], *args: Any, prompt: torch.Tensor, ids: Int64, **options: Any
    ) -> None:
        super().__init__(rows, *args, **options)
        self.parts = []
        for first in range(len(rows)):
            one = slice(first, first + 1)
            options |= {"prompt": prompt[one], "ids": ids[one], "first": first}
            self.parts.append(LockstepBatch(rows[one], *args, **options))
        self._steps = 0
        self._gather()

    def _gather(self) -> None:
        """Take over the state of the parts."""
        parts = self.parts
        self.length, self.stopped = max(part.length for part in parts), not self._running()
        self.last = [part.last[0] for part in parts]
        self.active = [at for at, part in enumerate(parts) if part.active]

    def _running(self) -> list[LockstepBatch]:
        """The rows that have not ended."""
        return [part for part in self.parts if not part.stopped]

    def texts(self) -> Sequence[RowText]:
        return self.parts

    def sequences(self) -> torch.Tensor:
        shape = len(self.parts), self.length
        out = torch.full(shape, self.pad, device=self.parts[0].device)
        for own, part in zip(out, self.parts, strict=True):
            own[: part.length] = part.ids()[0]
        return out

    def begin_step(self) -> None:
        for part in self.parts:
            part.begin_step()

    def accepted_paths(self) -> Sequence[Sequence[int]]:
        return [part.accepted_positions for part in self.parts]

    def draft_limits(self) -> tuple[int, int]:
        limits, nodes = zip(*(part.draft_limits() for part in self._running()), strict=True)
        return min(limits), min(nodes)

    def propose(self) -> None:
        self._steps += 1
        self._drop_ended()
        super().propose()

    def draft(self) -> None:
        for part in self._running():
            part.draft()
        self._cut_together()

    def _drop_ended(self) -> None:
        """Remove ended rows from the batch once enough rows have ended."""
        target, costs = self.target, self.costs
        running = [part.places[0] for part in self._running()]
        few = 0 < len(running) <= MAX_UNFINISHED_SHARE * target.rows
        if few and target.rows_may_leave:
            target.keep_rows(running)
            if costs is not None:
                costs.rows = len(running)

    def _cut_together(self) -> None:
        """Cut the drafts to a common length, as one forward runs the longest."""
        parts = self._running()
        rows = [row for part in parts for row in part.rows]
        drafts = [row.draft for row in rows]
        estimated = all(draft.confidence is not None for draft in drafts if len(draft))
        sampled = any(draft.proposal is not None for draft in drafts)  # see LockstepBatch.draft
        costs = self.costs
        if costs is None or sampled or not estimated or not any(map(len, drafts)):
            return
        left = [part.tokens_left() for part in parts]
        weights = urgencies(left, [part.length - part.prompt_length for part in parts], self._steps)
        surcharge = 1.0 if isinstance(rows[0].tree, int) else costs.surcharge()
        cut = cut_to_one_length(drafts, weights, costs.required_tokens(), surcharge)
        for row, draft in zip(rows, cut, strict=True):
            row.draft = draft

    def verify(self, logits: torch.Tensor, sampled: SampledTokens | None) -> None:
        """See Batch. Each row walks its own path, and all rows move one position at a time.

        So the number of tensor operations and transfers depends on the longest accepted path, not
        on the number of rows.
        """
        walking = self._running()
        for part in walking:
            part.position = 0
        while walking:
            for part in walking:
                part.accept_position()
            for part, token in zip(walking, self._next(walking, logits, sampled), strict=True):
                part.commit_token([token])
            walking = [part for part in walking if part.position is not None]
        for part in self.parts:
            part.give_verdicts()
        self._gather()

    def _next(
        self, walking: Sequence[LockstepBatch], logits: torch.Tensor, sampled: SampledTokens | None
    ) -> list[int]:
        """Choose the next token of each walking row; see ``verify``. Nothing is recorded."""
        spots = [(part.places[0], part.position or 0) for part in walking]
        if sampled is not None:
            return [int(sampled.tokens[spot]) for spot in spots]
        own = [logits[row : row + 1, position] for row, position in spots]
        sampler = self.sampler
        if sampler.takes_argmax:
            return [int(argmax_on_host(each.float())[0]) for each in own]
        scores = torch.cat(own).to(torch.float32)
        if sampler.processors:
            histories = Histories(walking, [EMPTY_DRAFT] * len(own), 1, len(self.rows))
            scores = process_at_once(sampler.processors, histories, scores)
        drafts = [part.rows[0].draft for part in walking]
        return sampler.choose_next(scores, [*zip(drafts, (at for _, at in spots), strict=True)])
