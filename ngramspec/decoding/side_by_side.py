"""Verification of rows that diverge: the tokens of all rows in one set of tensor operations.

Where tokens cannot be sampled at all positions of a forward at once, every row's next one is
sampled together with those of the other rows, each at its own position. So a step's calls to the
device, and the transfers from it, are as many as the longest accepted path has positions, however
many rows there are.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ngramspec.decoding.group import Group
from ngramspec.draft import Draft
from ngramspec.verification.sampler import TokenSampler


def verify_side_by_side(
    groups: Sequence[Group], drafts: Sequence[Draft], logits: torch.Tensor, sampler: TokenSampler
) -> None:
    """Verify the drafts of rows that diverge.

    Args:
        groups: of one row each.
        drafts: of all rows of the batch.
        logits: (batch, n + 1, vocab), of all rows of the batch.
        sampler: the batch's; its processors are those of every row, but for what one keeps of each
            row.
    """
    for group in groups:
        group.begin_verification([drafts[group.rows[0]]])
    while spots := [(each, each.position) for each in groups if each.position is not None]:
        for group, reached in spots:
            group.accepted_positions.append(reached)  # plain decoding ran it before it sampled
        going = [group for group, _ in spots]
        at = torch.tensor([(group.rows[0], reached) for group, reached in spots], device="cpu")
        row, position = at.to(logits.device, non_blocking=True).unbind(dim=1)
        scores = logits[row, position].to(dtype=torch.float32, device=going[0].device)
        cursors = [(group.cursors[0], reached) for group, reached in spots]
        tokens = sampler.choose_next(processed(scores, going, sampler), cursors)
        for group, token in zip(going, tokens, strict=True):
            group.take([token])


def processed(scores: torch.Tensor, groups: Sequence[Group], sampler: TokenSampler) -> torch.Tensor:
    """Rows' scores, (rows, vocab), behind each row's processors; one call for rows of one length.

    Args:
        scores: float32 (rows, vocab), a copy of the logits.
        groups: of the rows, one each.
        sampler: the batch's.
    """
    if not sampler.processors:
        return scores
    if sampler.history_free:
        no_ids = torch.empty((len(scores), 0), dtype=torch.int64, device=scores.device)
        after: torch.Tensor = sampler.processors(no_ids, scores)
        return after
    lengths: dict[tuple[int, ...], list[int]] = {}
    for at, group in enumerate(groups):
        own = zip(group.sampler.processors, sampler.processors, strict=True)
        same = all(mine is shared for mine, shared in own)
        lengths.setdefault((group.length,) if same else (group.length, at), []).append(at)
    found: list[torch.Tensor] = [scores] * len(groups)
    for places in lengths.values():
        ids = torch.cat([groups[at].ids() for at in places])
        own_scores = groups[places[0]].sampler.processors(ids, scores[places])
        for at, row in zip(places, own_scores, strict=True):
            found[at] = row
    return torch.stack(found)
