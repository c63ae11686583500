"""A group whose rows each advance by their own number of tokens.

Streamers, returned scores and criteria that see the whole batch get each position in the baseline's
order, with its arguments, once all rows have reached it. If such a criterion ends a row, what the
row has gained since is dropped. Where the caller can see what the baseline computes for padding,
ended rows follow the others with padding as their text.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from functools import partial
from typing import Any

import torch

from ngramspec.costs.policies import common_length
from ngramspec.costs.row_lengths import urgencies
from ngramspec.costs.steps import JointPart
from ngramspec.decoding.group import NO_LIMIT, Group
from ngramspec.decoding.row import Row
from ngramspec.draft import EMPTY_DRAFT, Computed, Float32
from ngramspec.hf_model.compat.processors import process_at_once
from ngramspec.hf_model.ragged import RaggedInputs
from ngramspec.verification.sampler import SampledTokens, argmax_on_host

# Ended rows leave the batch once at most this share of its rows has not ended. Not tuned.
MAX_UNFINISHED_SHARE = 0.75
MAX_AHEAD_BYTES = 512 << 20  # of scores kept for rows that are ahead of the slowest one


class RaggedGroup(Group):
    """Rows that each advance by themselves. The arguments are those of Group."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        sampler, stop, rows = self.sampler, self.sampler.stop, self.rows
        self._steps = 0
        self._pads = sampler.pad is not None
        # Whether the caller can see what is computed for padding.
        self._follows = self._pads and self.target.outlives
        criteria = stop.sees_batch or (stop.strings and not self._pads)
        self._cuts = bool(criteria)  # whether a row may end before what it has reached
        self._shows = bool(criteria or sampler.streamer is not None or sampler.records)
        self._shown = rows[0].length  # tokens of each text that have been shown
        self._ends: list[int | None] = [None] * len(rows)  # lengths at which rows end
        self.padding: list[int] = [0] * len(rows)
        assert isinstance(self.target.inputs, RaggedInputs)
        self._inputs = self.target.inputs
        self._dropped = [0] * len(rows)  # tokens of earlier steps
        # The processed and the raw scores of each row's tokens that have not been shown.
        self._scores: list[deque[tuple[torch.Tensor, torch.Tensor]]] = [deque() for _ in rows]

    draws_ahead = True

    def _running(self) -> list[int]:
        """The rows that have not ended."""
        return [at for at, row in enumerate(self.rows) if not row.ended]

    @property
    def stopped(self) -> bool:
        rows = self.rows
        return all(row.ended for row in rows) and (
            not self._follows or all(row.length == rows[0].length for row in rows)
        )

    @property
    def settled(self) -> int:
        reached = self._reached(padding=self._follows)
        return min(reached, self._shown) if self._shows else reached

    def _reached(self, *, padding: bool = False) -> int:
        """How much of the text all rows have that have not ended; ``padding``: ended ones, too."""
        lengths = [row.length for row in self.rows if padding or not row.ended]
        return min(lengths, default=self.length)

    def sequences(self) -> torch.Tensor:
        ids, pad = self.memory.ids(self.length, 0), self.sampler.pad
        out = ids.clone()
        for own, row in zip(out, self.rows, strict=True):
            own[row.length :] = 0 if pad is None else pad
        return out

    # The drafts

    def limits(self, row: Row) -> tuple[int, int]:
        path, nodes = super().limits(row)
        sampler, lead = self.sampler, self.target.lead
        kept = sum(each is not None for each in (sampler.scores, sampler.logits, self.noise))
        if kept:  # float32 vectors of the vocabulary's size
            size = 4 * kept * len(self.rows) * max(row.vocab, 1)
            lead = min(NO_LIMIT if lead is None else lead, max(MAX_AHEAD_BYTES // size, 1))
        if lead is not None:
            path = min(path, max(self._reached() + lead - row.length, 0))
        return path, nodes

    def shortest_limit(self) -> int:
        return min((self.limits(self.rows[at])[0] for at in self._running()), default=0)

    def propose(self, part: JointPart | None = None) -> None:
        self._steps += 1
        self._drop_ended()
        if self._running():
            super().propose(part)

    def draft(self, required: Float32 | None = None) -> None:
        for at in self._running():
            self.rows[at].propose(*self.limits(self.rows[at]))
        self._cut_together()

    def width(self, *, pads: bool = True) -> int:
        if self._running():
            return super().width(pads=pads)
        room = self.target.room(self.length - self.rows[0].prompt_length)
        longest = self.length - min(row.length for row in self.rows)
        return min(longest, NO_LIMIT if room is None else 1 + room)

    def block(self, width: int) -> torch.Tensor:
        """See Group. Ended rows follow with as much padding as the forward has positions for."""
        if self._follows:
            goal = self._reached()
            more = (min(goal - row.length, width) if row.ended else 0 for row in self.rows)
            self.padding = [max(each, 0) for each in more]
        return super().block(width)

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

    # Verification

    def walking(self) -> Sequence[int]:
        padding, rows = self.padding, self.rows
        return [at for at, row in enumerate(rows) if not row.ended or padding[at]]

    def choose(
        self, walking: Sequence[int], logits: torch.Tensor, sampled: SampledTokens | None
    ) -> list[int]:
        """Choose the next token of each walking row, which has its own position.

        The number of tensor operations and transfers depends on the longest accepted path, not on
        the number of rows.
        """
        sampler = self.sampler
        spots = [(self.rows[at].draft, self.rows[at].position or 0) for at in walking]
        places = [(at, position) for at, (_, position) in zip(walking, spots, strict=True)]
        known = None if sampled is None else [int(sampled.tokens[place]) for place in places]
        if known is not None and not sampler.records:
            return known
        own = [logits[at : at + 1, position] for at, position in places]
        if sampler.takes_argmax and not sampler.records:
            return [int(argmax_on_host(each.float())[0]) for each in own]
        scores = raw = torch.cat(own).to(torch.float32)
        if sampler.processors:
            histories = self.histories(walking, [EMPTY_DRAFT] * len(own), 1)
            scores = process_at_once(sampler.processors, histories, raw.clone())
        if sampler.records:
            for at, *each in zip(walking, scores, raw, strict=True):
                self._scores[at].append((each[0], each[1]))
        if known is not None:
            return known
        if sampler.takes_argmax:
            return [int(each) for each in argmax_on_host(scores)]
        noise = None
        if self.noise is not None:
            done = self.generated()
            noise = partial(self.noise.of, places=[(at, done[at]) for at in walking])
        return sampler.choose_next(scores, spots, noise)

    def commit(self, walking: Sequence[int], tokens: list[int]) -> Sequence[int]:
        """Commit a token of each walking row; those whose draft has it go on."""
        self.memory.make_room(self.rows)
        return [at for at, token in zip(walking, tokens, strict=True) if self._goes_on(at, token)]

    def _goes_on(self, at: int, token: int) -> bool:
        """Commit a row's token, or padding; return whether it has its next logits."""
        row, pad = self.rows[at], self.sampler.pad
        if row.ended:
            assert pad is not None
            row.pad(pad)
            self.padding[at] -= 1
            return self.padding[at] > 0
        if token < 0:
            raise self.no_distribution()
        row.advance(token)
        stop = self.sampler.stop
        if stop.of_rows([token], row.length, partial(self._own, at))[0]:
            self._ends[at] = self._ends[at] or row.length
            row.ended = self._pads or row.length == stop.max_length
        return not row.ended and row.position is not None

    def _own(self, at: int) -> torch.Tensor:
        """A row's committed tokens, int64 (1, length), on the host."""
        return self.memory.ids_on_host(self.rows[at].length)[at : at + 1]

    def judge(self) -> None:
        if self._shows:
            try:
                while self._shown < self._reached(padding=self._follows):
                    self._show()
            except BaseException:
                for at in range(len(self.rows)):
                    self._cut(at, self._shown)
                raise
        if self.target.outlives:  # what is ahead may be dropped, at the latest by an interrupt
            pairs, least = zip(self.rows, self._dropped, strict=True), self.settled
            self._inputs.run_ahead([row.length - least + more for row, more in pairs])
        super().judge()

    # What sees the whole batch

    def _show(self) -> None:
        """Show the next position, as ``generate`` does after each token."""
        sampler, at = self.sampler, self._shown
        tokens = []
        for number, row in enumerate(self.rows):
            if at >= row.length:
                assert sampler.pad is not None
                self.memory.put(number, at, sampler.pad)
            tokens.append(self.memory.token(number, at))
        if sampler.records:
            scores, raw = zip(*(each.popleft() for each in self._scores), strict=True)
            sampler.record(torch.stack(scores), torch.stack(raw))
        self._shown = length = at + 1
        if self._cuts:
            ids = partial(self.memory.ids, length, length)
            ended = sampler.stop.of_batch(len(self.rows), ids, sampler.scores)
            self._end(ended, length)
        if sampler.streamer is not None:
            self.stream(tokens)

    def _end(self, ended: Sequence[bool], length: int) -> None:
        """End rows at a length. Without padding they end together."""
        for at, now in enumerate(ended):
            before = self._ends[at]
            if now and (before is None or before > length):
                self._ends[at] = length
                if self._pads:
                    self._cut(at, length)
                    self.rows[at].ended = True
        if self._pads:
            last = max(end or NO_LIMIT for end in self._ends)  # padding goes no further
        elif all(end is not None and end <= length for end in self._ends):
            last = length
            for row in self.rows:
                row.ended = True
        else:
            return
        for at in range(len(self.rows)):
            self._cut(at, last)

    def _cut(self, at: int, length: int) -> None:
        """Drop what a row has gained beyond a length."""
        row = self.rows[at]
        for _ in range(min(row.length - length, len(self._scores[at]))):
            self._scores[at].pop()
        self._dropped[at] += row.shorten(length)

    def finish(self) -> None:
        super().finish()
        super().leave_noise()

    def close(self) -> None:
        super().leave_noise()
        super().close()

    def leave_noise(self) -> None:
        """See Group. Until the end, the numbers that other rows need are kept."""
        if self.noise is not None:
            self.noise.forget(self.settled - self.rows[0].prompt_length)

    def learn(self, computed: list[Computed] | None = None) -> None:
        super().learn(computed)
        if any(self._dropped):
            self.dropped += sum(self._dropped)
            if self.target.outlives:
                self.target.drop(self._dropped)
            self._dropped = [0] * len(self.rows)
