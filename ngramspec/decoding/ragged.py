"""A group whose rows each advance by their own number of tokens."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import torch

from ngramspec.costs.policies import common_length
from ngramspec.costs.row_lengths import urgencies
from ngramspec.costs.steps import JointPart
from ngramspec.decoding.group import Group
from ngramspec.draft import EMPTY_DRAFT, Float32
from ngramspec.hf_model.compat.processors import all_by_row, process_at_once
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


class RaggedGroup(Group):
    """Rows that each advance by themselves. The arguments are those of Group."""

    _steps = 0

    def _running(self) -> list[int]:
        """The rows that have not ended."""
        return [at for at, row in enumerate(self.rows) if not row.ended]

    def sequences(self) -> torch.Tensor:
        ids, pad = self.memory.ids(self.length, 0), self.sampler.pad
        out = ids.clone()
        for own, row in zip(out, self.rows, strict=True):
            own[row.length :] = 0 if pad is None else pad
        return out

    def shortest_limit(self) -> int:
        return min(self.limits(self.rows[at])[0] for at in self._running())

    def propose(self, part: JointPart | None = None) -> None:
        self._steps += 1
        self._drop_ended()
        super().propose(part)

    def draft(self, required: Float32 | None = None) -> None:
        for at in self._running():
            self.rows[at].propose(*self.limits(self.rows[at]))
        self._cut_together()

    def _drop_ended(self) -> None:
        """Remove ended rows from the batch once enough rows have ended."""
        target, costs, running = self.target, self.costs, self._running()
        few = 0 < len(running) <= MAX_UNFINISHED_SHARE * target.rows
        if few and target.rows_may_leave:
            target.keep_rows(running)
            if costs is not None:
                costs.rows = len(running)

    def _cut_together(self) -> None:
        """Cut the drafts to a common length, as one forward runs the longest."""
        rows = [self.rows[at] for at in self._running()]
        drafts = [row.draft for row in rows]
        estimated = all(draft.confidence is not None for draft in drafts if len(draft))
        sampled = any(draft.proposal is not None for draft in drafts)  # see LockstepGroup.draft
        costs = self.costs
        if costs is None or sampled or not estimated or not any(map(len, drafts)):
            return
        left = [self.tokens_left(row) for row in rows]
        weights = urgencies(left, [row.length - row.prompt_length for row in rows], self._steps)
        surcharge = 1.0 if isinstance(rows[0].tree, int) else costs.surcharge()
        length, path = common_length(drafts, weights, costs.required_tokens(), surcharge)
        for row in rows:
            row.cut(length, path=path)

    def walking(self) -> Sequence[int]:
        return self._running()

    def choose(
        self, walking: Sequence[int], logits: torch.Tensor, sampled: SampledTokens | None
    ) -> list[int]:
        """Choose the next token of each walking row, which has its own position.

        The number of tensor operations and transfers depends on the longest accepted path, not on
        the number of rows. Nothing is recorded.
        """
        spots = [(self.rows[at].draft, self.rows[at].position or 0) for at in walking]
        places = [(at, position) for at, (_, position) in zip(walking, spots, strict=True)]
        if sampled is not None:
            return [int(sampled.tokens[place]) for place in places]
        own = [logits[at : at + 1, position] for at, position in places]
        sampler = self.sampler
        if sampler.takes_argmax:
            return [int(argmax_on_host(each.float())[0]) for each in own]
        scores = torch.cat(own).to(torch.float32)
        if sampler.processors:
            histories = self.histories(walking, [EMPTY_DRAFT] * len(own), 1)
            scores = process_at_once(sampler.processors, histories, scores)
        return sampler.choose_next(scores, spots)

    def commit(self, walking: Sequence[int], tokens: list[int]) -> Sequence[int]:
        """Commit a token of each walking row; those whose draft has it go on."""
        self.memory.make_room(self.rows)
        for at, token in zip(walking, tokens, strict=True):
            row = self.rows[at]
            if token < 0:
                raise self.no_distribution()
            row.advance(token)
            own = partial(self._own, at)
            row.ended = self.sampler.stop([token], row.length, own, own, None)[0]
        return [
            at for at in walking if not self.rows[at].ended and self.rows[at].position is not None
        ]

    def _own(self, at: int) -> torch.Tensor:
        """A row's committed tokens, int64 (1, length), on the host."""
        return self.memory.ids_on_host(self.rows[at].length)[at : at + 1]
