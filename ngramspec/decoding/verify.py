"""Verification: what of the rows' drafts the target agrees with (Leviathan et al. 2023, Alg. 1)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import Tensor

if TYPE_CHECKING:
    from ngramspec.decoding.group import Group
    from ngramspec.verification.sampler import SampledTokens


def verify(group: Group, logits: Tensor, sampled: SampledTokens | None) -> None:
    """Commit the target's tokens of every row, up to the first that was not drafted.

    A token passes the processors, the choice, the stopping rules and the streamer before the next
    one is chosen. If one of these raises, the tokens, the random numbers and the cache are those
    of the baseline at that point.

    Args:
        group: the rows, with their drafts, and the layout in which they move along these.
        logits: (batch, n + 1, vocab), at the last committed token and the n drafted tokens.
        sampled: the target's tokens at all n + 1 positions, or None to choose position by position
            along the accepted path.
    """
    walking = group.walking()
    try:
        while walking:
            group.keep(walking)  # the baseline computes a position before it samples the next token
            walking = group.commit(walking, group.choose(walking, logits, sampled))
    finally:
        if group.noise is not None:
            group.leave_noise()
    group.judge()
