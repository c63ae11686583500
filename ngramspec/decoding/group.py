"""Rows of a batch that advance together, and how their tokens are chosen and committed."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ngramspec.draft import Draft, Verdict
from ngramspec.verification.greedy import Tokens
from ngramspec.verification.sampler import DraftCursor, TokenSampler, behind

ROOM = 256  # tokens that a group's buffer has room for at first
NOTHING = Verdict((), 0, ())


class Group:
    """The committed tokens of some rows, which all have the same number of them.

    Args:
        rows: their indices in the batch.
        prompt: int64 or int32 (len(rows), prompt).
        choosing: how their tokens are chosen.
    """

    def __init__(self, rows: Sequence[int], prompt: torch.Tensor, choosing: TokenSampler) -> None:
        self.rows = rows
        self.choosing = choosing
        self.length = self.prompt_length = prompt.shape[1]
        self.finished = [False] * len(rows)
        self.last = [0] * len(rows)  # each row's last committed token
        self.accepted_positions: list[int] = []  # of the step, those that plain decoding forwards
        self.device = prompt.device
        self._dtype = prompt.dtype  # which plain decoding gives up with the first token
        self._host = torch.empty((len(rows), self.length + ROOM), dtype=torch.int64, device="cpu")
        self._host[:, : self.length] = prompt
        self._device = self._host  # where it is another one, a copy that follows when asked for
        if prompt.device.type != "cpu":
            self._device = torch.empty_like(self._host, device=prompt.device)
            self._device[:, : self.length] = prompt
        self._copied = self.length

    @property
    def new(self) -> int:
        """Generated tokens of each row so far."""
        return self.length - self.prompt_length

    @property
    def stopped(self) -> bool:
        """Whether every row has ended."""
        return all(self.finished)

    @property
    def going(self) -> list[int]:
        """Rows of the group that are drafted for: ended ones, too, where nothing pads them."""
        pads = self.choosing.pad is not None
        return [row for row, ended in enumerate(self.finished) if not (ended and pads)]

    def ids(self) -> torch.Tensor:
        """The committed tokens, int64 (rows, length), on the prompt's device.

        Of the prompt's dtype, int32 for instance, as long as there is nothing but the prompt.
        """
        if self._device is not self._host and self._copied < self.length:
            new = slice(self._copied, self.length)
            self._device[:, new].copy_(self._host[:, new], non_blocking=True)
            self._copied = self.length
        ids = self._device[:, : self.length]
        return ids if self.new else ids.to(self._dtype)

    def verify(
        self, drafts: Sequence[Draft], logits: torch.Tensor, choices: Sequence[Tokens] | None
    ) -> list[Verdict]:
        """Commit the target's tokens position by position, as far as all drafts agree.

        Args:
            drafts: each row's draft, in a group of several rows all chains; an ended row's counts
                for nothing.
            logits: (rows, n + 1, vocab), behind the last committed token and the n drafted ones.
            choices: the target's tokens, n + 1 for each row, or None: choose as far as the drafts
                agree.
        """
        walks = [DraftCursor(draft) for draft in drafts]
        going = self.going
        emitted: list[list[int]] = [[] for _ in self.rows]
        accepted: list[list[int]] = [[] for _ in self.rows]
        tested = [0] * len(self.rows)
        rejected: list[int | None] = [None] * len(self.rows)
        self.accepted_positions = []
        position = 0
        while position >= 0:
            self.accepted_positions.append(position)
            known = None if choices is None else [row[position] for row in choices]
            tokens = self.choose(logits[:, position], known, walks, position)
            agreed = set()
            for row in going:
                emitted[row].append(tokens[row])
                drafted = walks[row].drafted(position)
                right = drafted.index(tokens[row]) if tokens[row] in drafted else -1
                tested[row] += len(drafted) if right < 0 else right + 1
                agreed.add(-1 if right < 0 else walks[row].nodes(position)[right])
                accepted[row] += walks[row].nodes(position)[right : right + 1] if right >= 0 else ()
                if drafted and right < 0:
                    rejected[row] = walks[row].nodes(position)[0]
            self.commit(tokens)
            went_on = len(agreed) == 1 and self.going == going and not self.stopped
            position = agreed.pop() + 1 if went_on and -1 not in agreed else -1
        return [
            Verdict(accepted[row], tested[row], tuple(new), rejected[row]) if new else NOTHING
            for row, new in enumerate(emitted)
        ]

    def choose(
        self,
        logits: torch.Tensor,
        known: list[int] | None,
        walks: Sequence[DraftCursor],
        position: int,
    ) -> list[int]:
        """The target's tokens at one position, from its logits (rows, vocab), and their record."""
        choosing, record = self.choosing, self.choosing.record
        if known is None or record:
            logits = logits.to(copy=True, dtype=torch.float32, device=self.device)
            scores = logits
            if choosing.processors:
                scores = choosing.processors(self.ids(), logits)
            if record.scores is not None:
                record.scores.append(scores)
            if record.logits is not None:
                record.logits.append(logits)
            if known is None:
                known = self._from(scores, walks, position)
        rows = zip(known, self.finished, strict=True)
        if min((token for token, ended in rows if not ended), default=0) < 0:
            raise RuntimeError(
                "the target's scores are no distribution: NaN, or -inf for every token, at"
                f" position {self.length}"
            )
        if choosing.pad is not None:
            rows = zip(known, self.finished, strict=True)
            known = [choosing.pad if ended else token for token, ended in rows]
        return known

    def _from(self, scores: torch.Tensor, walks: Sequence[DraftCursor], position: int) -> list[int]:
        """The rule's tokens for processed scores, float32 (rows, vocab)."""
        rule = self.choosing.rule
        if all(rule.ignores(walk.draft) for walk in walks):
            chosen = rule.choose(scores)
        else:
            spots = [(walk, position) for walk in walks]
            chosen = rule.choose(scores, *behind(spots, scores.shape[-1], scores.device))
        tokens: list[int] = chosen.tolist()
        return tokens

    def commit(self, tokens: list[int]) -> None:
        """Append one token to each row, ask whether to stop, stream: in ``generate``'s order."""
        choosing = self.choosing
        self.reserve(self.length + 1)
        self.last = tokens
        column = torch.tensor(tokens, device="cpu")
        self._host[:, self.length] = column
        self.length += 1
        ended = choosing.stop(tokens, self.length, self.ids, choosing.record.scores)
        self.finished = [was or now for was, now in zip(self.finished, ended, strict=True)]
        if choosing.streamer is not None:
            choosing.streamer.put(column)

    def reserve(self, length: int) -> None:
        """Make room for ``length`` tokens a row."""
        if length > self._host.shape[1]:
            on_host = self._device is self._host
            self._host = _wider(self._host, length)
            self._device = self._host if on_host else _wider(self._device, length)


def _wider(tokens: torch.Tensor, length: int) -> torch.Tensor:
    more = tokens.new_empty((tokens.shape[0], length))
    return torch.cat((tokens, more), dim=1)
