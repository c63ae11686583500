"""The check of a stochastic draft's proposal: Algorithm 1 must be able to use it.

``Proposal`` in ``draft.py`` lists what a drafter promises about it, and which of that is checked.
"""

from __future__ import annotations

import numpy as np

from ngramspec.draft import Int32, Proposal
from ngramspec.drafters.base import FLOAT32, INT32, check_ids, copied_array

SUM_ERROR_PER_ENTRY = 2.0**-23  # allowed error of a float32 sum per probability in it
MAX_SUM_ERROR = 1e-4  # limit of that error


def checked_proposal(
    tokens: Int32, parents: Int32 | None, proposal: object, vocab: int
) -> Proposal:
    """A copy of a proposal that Algorithm 1 can use, normalized for each node."""
    if type(proposal) is not Proposal:
        raise TypeError(f"proposal must be a Proposal, got {type(proposal).__name__}")
    n, m = len(tokens), len(proposal.tokens)
    starts = copied_array("proposal.starts", proposal.starts, INT32, n + 1)
    if starts[0] != 0 or starts[-1] != m or not (starts[1:] > starts[:-1]).all():
        raise ValueError(f"proposal.starts must rise from 0 to {m}: each node has a distribution")
    if m > n * vocab:
        raise ValueError(f"proposal.tokens must hold at most {vocab} ids for each node, got {m}")
    ids = copied_array("proposal.tokens", proposal.tokens, INT32, m)
    probs = copied_array("proposal.probs", proposal.probs, FLOAT32, m)
    check_ids("proposal.tokens", ids, vocab)
    sizes = starts[1:] - starts[:-1]
    node = np.repeat(np.arange(n), sizes)  # the node of each entry
    entries = (node << 32) | ids
    if not (entries[1:] > entries[:-1]).all():  # ascending ids are distinct
        entries.sort()
        twice = entries[1:] == entries[:-1]
        if twice.any():
            bad = int(entries[1:][twice][0])
            what = f"node {bad >> 32} has {bad & 0x7FFFFFFF} twice"
            raise ValueError(f"proposal.tokens of a node must differ, {what}")
    sums = np.add.reduceat(probs, starts[:-1], dtype=np.float64)
    allowed = np.minimum(sizes * SUM_ERROR_PER_ENTRY, MAX_SUM_ERROR)
    wrong = ~(np.abs(sums - 1) <= allowed)  # also true for NaN
    if wrong.any() or not (probs > 0).all():
        bad = sums[wrong.argmax()]
        raise ValueError(f"proposal.probs of a node must be > 0 and sum to 1, got sum {bad:.7g}")
    holds = np.logical_or.reduceat(ids == tokens[node], starts[:-1])
    if not holds.all():
        bad = int(holds.argmin())
        raise ValueError(f"proposal of node {bad} must hold its token {tokens[bad]}")
    if parents is not None:
        _check_siblings(tokens, parents, Proposal(starts, ids, probs))
    return Proposal(starts, ids, (probs / sums[node]).astype(np.float32))


def _check_siblings(tokens: Int32, parents: Int32, proposal: Proposal) -> None:
    """Check that siblings share a distribution, except for ones without the siblings before."""
    _, where, which = np.unique(parents, return_index=True, return_inverse=True)
    first = where[which]
    for node in range(len(parents)):
        own, other = proposal.of(node), proposal.of(int(first[node]))
        before = tokens[:node][parents[:node] == parents[node]]
        alike = np.array_equal(own[0], other[0]) and np.array_equal(own[1], other[1])
        if not alike and np.isin(before, own[0]).any():
            what = f"node {node} states another than its first sibling, node {first[node]},"
            raise ValueError(
                f"proposal of siblings must be one distribution, or one without the siblings"
                f" before: {what} with one of their tokens"
            )
