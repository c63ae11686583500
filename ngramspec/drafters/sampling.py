"""Tokens sampled from a draft model's or a table's distribution, and their proposals."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ngramspec.draft import Float32, Int32, Proposal


def distribution(ids: Int32, log_probs: Float32, temperature: float) -> tuple[Int32, Float32]:
    """The distribution to sample a token from, at a temperature, over the given ids only."""
    weights = np.exp((log_probs - log_probs[0]).astype(np.float64) / temperature)
    probs = (weights / weights.sum()).astype(np.float32)
    live = probs > 0
    return ids[live], probs[live]


def sampled(ids: Int32, probs: Float32, rng: np.random.Generator) -> int:
    """A token sampled from a distribution."""
    return int(ids[int(rng.choice(len(ids), p=probs / probs.sum(dtype=np.float64)))])


def proposal_of(parts: Sequence[tuple[Int32, Float32]]) -> Proposal:
    """The proposal of nodes that were sampled from these distributions, (ids, probs) each."""
    starts = np.cumsum([0, *(len(ids) for ids, _ in parts)]).astype(np.int32)
    ids, probs = zip(*parts, strict=True)
    return Proposal(starts, np.concatenate(ids), np.concatenate(probs))
