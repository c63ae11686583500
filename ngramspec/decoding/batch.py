"""All rows of a batch: their committed tokens, and the walk that verifies their drafts."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from ngramspec.decoding.group import Group
from ngramspec.draft import Draft, Verdict
from ngramspec.verification.sampler import SampledTokens, TokenSampler, argmax_on_host


class Batch:
    """The rows of a batch, in groups that each advance by their own number of tokens.

    Rows that advance in lock-step are one group. A group's own sampler may differ from the batch's
    only in processors that keep state for each row.
    """

    def __init__(self, groups: Sequence[Group], sampler: TokenSampler) -> None:
        self.groups = groups
        self.rows = range(sum(len(group.rows) for group in groups))
        self._sampler = sampler

    @property
    def stopped(self) -> bool:
        """Whether every row has ended."""
        return not [group for group in self.groups if not group.stopped]

    @property
    def accepted_paths(self) -> list[Sequence[int]]:
        """Each row's positions of the last forward that the cache keeps."""
        return [path for group in self.groups for path in group.accepted_paths]

    @property
    def origins(self) -> Sequence[int]:
        """The row of the last forward that each row continues; empty if each continues itself."""
        return self.groups[0].origins

    @property
    def positions(self) -> int:
        """Positions of the longest accepted path of the last forward."""
        return max([len(group.accepted_positions) for group in self.groups])

    def begin_step(self) -> None:
        """Reset what is known about the last forward."""
        for group in self.groups:
            group.begin_step()

    def verify(
        self, drafts: Sequence[Draft], logits: torch.Tensor, sampled: SampledTokens | None
    ) -> list[Verdict]:
        """Commit the target's tokens of every row, up to the first that was not drafted.

        Each group walks its own accepted path, and all groups move one position at a time. If
        tokens are sampled position by position, all rows share each position's tensor operations
        and transfer. The number of both then depends on the longest accepted path, not on the
        number of rows.

        Args:
            drafts: each row's draft. A group of several rows has chains only. Drafts of ended rows
                are ignored.
            logits: (batch, n + 1, vocab), at the last committed token and the n drafted tokens.
            sampled: the target's tokens at all n + 1 positions, or None to sample position by
                position along the accepted path.
        """
        before = self.groups[0].length
        walking = [group for group in self.groups if not group.stopped]
        for group in walking:
            group.begin_verification([drafts[row] for row in group.rows])
        try:
            while walking:
                for group in walking:
                    group.reach()
                found = self.next_tokens(walking, logits, sampled)
                for group, tokens in zip(walking, found, strict=True):
                    group.take(tokens)
                walking = [group for group in walking if group.position is not None]
        finally:  # also after errors, leave the generator as the baseline would
            if sampled is not None and len(self.groups) == 1:
                sampled.rewind(self.groups[0].length - before)
        return [verdict for group in self.groups for verdict in group.verdicts()]

    def next_tokens(
        self, groups: Sequence[Group], logits: torch.Tensor, sampled: SampledTokens | None
    ) -> list[list[int]]:
        """Choose and record the tokens of each group's rows at the group's position.

        Several groups have one row each. The other arguments are those of ``verify``.
        """
        sampler = self._sampler
        own = [logits[each.rows[0] : each.rows[-1] + 1, _position(each)] for each in groups]
        if sampled is not None or sampler.takes_argmax:
            if sampler.records:
                self._scores(groups, own)
            if sampled is None:  # as in ``generate``, the argmax of float32 logits
                return [argmax_on_host(each.float()).tolist() for each in own]
            at = [(group.rows, _position(group)) for group in groups]
            return [[int(sampled.tokens[row, position]) for row in rows] for rows, position in at]
        scores = self._scores(groups, own)
        spots = [(cursor, _position(group)) for group in groups for cursor in group.cursors]
        chosen = sampler.choose_next(scores, spots)
        return [chosen] if len(groups) == 1 else [[token] for token in chosen]

    def _scores(self, groups: Sequence[Group], logits: Sequence[torch.Tensor]) -> torch.Tensor:
        """Compute and record the groups' processed scores, float32 (rows, vocab)."""
        raw = logits[0] if len(logits) == 1 else torch.cat(tuple(logits))
        raw = raw.to(copy=True, dtype=torch.float32, device=groups[0].device)
        scores = self._processed(raw, groups)
        self._sampler.record(scores, raw)
        return scores

    def _processed(self, scores: torch.Tensor, groups: Sequence[Group]) -> torch.Tensor:
        """Apply each row's logits processors, in one call for all rows of equal length."""
        sampler = self._sampler
        if not sampler.processors:
            return scores
        if len(groups) == 1:
            return groups[0].sampler.process(groups[0].ids(), scores)
        if sampler.history_free:
            no_ids = torch.empty((len(scores), 0), dtype=torch.int64, device=scores.device)
            return sampler.process(no_ids, scores)
        alike: dict[tuple[int, ...], list[int]] = {}
        for at, group in enumerate(groups):
            own = zip(group.sampler.processors, sampler.processors, strict=True)
            same = all(mine is shared for mine, shared in own)
            alike.setdefault((group.length,) if same else (group.length, at), []).append(at)
        found: list[torch.Tensor] = [scores] * len(groups)
        for places in alike.values():
            ids = torch.cat([groups[at].ids() for at in places])
            own_scores = groups[places[0]].sampler.process(ids, scores[places])
            for at, row in zip(places, own_scores, strict=True):
                found[at] = row
        return torch.stack(found)

    def sequences(self, pad: int) -> torch.Tensor:
        """The committed tokens of all rows, int64 (batch, longest), padded with ``pad``."""
        if len(self.groups) == 1:
            return self.groups[0].sequences()
        longest = max(group.length for group in self.groups)
        device = self.groups[0].device
        out = torch.full((len(self.rows), longest), pad, device=device)
        for group in self.groups:
            out[list(group.rows), : group.length] = group.ids()
        return out

    def ids(self) -> torch.Tensor | None:
        """All committed tokens, int64 (batch, length); None if rows have different lengths."""
        return self.groups[0].ids() if len(self.groups) == 1 else None

    def block(
        self, drafts: Sequence[Draft], width: int, pad: int, embeddings: int | None
    ) -> torch.Tensor:
        """Every row's last committed token and draft, int64 (batch, width), on the host.

        A row is filled up with its last committed token, which is known to have an embedding. A
        row that has ended is padded as in the baseline. A padding token without an embedding, on
        which the baseline fails, is replaced by token 0. ``embeddings`` is the number of token
        embeddings, or None if unknown.
        """
        last = [token for group in self.groups for token in group.last]
        block = np.empty((len(last), width), np.int64)
        block[:] = np.array(last)[:, None]
        embedded = embeddings is None or 0 <= pad < embeddings
        for group in self.groups if len(last) > 1 else ():
            if len(group.active) == len(group.rows):
                continue
            ended = set(range(len(group.rows))) - set(group.active)
            rows = [group.rows[row] for row in ended]
            block[rows, 1:] = pad if embedded else 0
            block[[row for row in rows if not embedded and last[row] == pad], 0] = 0
        for row, draft in enumerate(drafts if width > 1 else ()):
            block[row, 1 : 1 + len(draft)] = draft.tokens
        return torch.from_numpy(block)

    def ranking(self, *, scores: bool) -> dict[str, torch.Tensor | None] | None:
        """Beam search's report about the returned sequences, or None if these rows are no beams."""
        return None


def _position(group: Group) -> int:
    assert group.position is not None
    return group.position
