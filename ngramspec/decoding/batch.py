"""All rows of a batch: their committed tokens, and the walk that verifies their drafts."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from ngramspec.decoding.group import Group
from ngramspec.draft import Draft, Verdict
from ngramspec.verification.sampler import SampledTokens, TokenSampler


class Batch:
    """The rows of a batch, in groups that each advance by their own number of tokens.

    Args:
        groups: all rows in order. Rows that advance in lock-step are one group.
        sampler: the batch's sampler. A group's own sampler may differ from it only in processors
            that keep state for each row.

    Attributes:
        groups: as given.
        rows: the indices of all rows.
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
        try:
            self._walk(drafts, logits, sampled)
        finally:  # also after errors, leave the generator as the baseline would
            if sampled is not None and len(self.groups) == 1:
                sampled.rewind(self.groups[0].length - before)
        return [verdict for group in self.groups for verdict in group.verdicts()]

    def _walk(
        self, drafts: Sequence[Draft], logits: torch.Tensor, sampled: SampledTokens | None
    ) -> None:
        at = [group for group in self.groups if not group.stopped]
        for group in at:
            group.begin_verification([drafts[row] for row in group.rows])
        while at:
            for group in at:
                group.reach()
            found = self._sampler.next_tokens(at, logits, sampled)
            for group, tokens in zip(at, found, strict=True):
                group.take(tokens)
            at = [group for group in at if group.position is not None]

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
