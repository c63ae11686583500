"""What a drafter returned, looked at before the target spends a forward on it."""

from __future__ import annotations

import numpy as np

from ngramspec.draft import Draft, Proposal


def check_draft(
    draft: object, limit: int, vocab: int, *, tree: bool = False, tiers: int = 128
) -> Draft:
    """Return ``draft`` if the target can verify it, as a chain unless ``tree``.

    Args:
        draft: what a drafter returned.
        limit: most tokens it may have.
        vocab: size of the target's vocabulary.
        tree: whether it may be a tree.
        tiers: how many sources it may name.

    Raises:
        TypeError, ValueError: what is wrong with it, with name, bound and value.
    """
    if not isinstance(draft, Draft):
        raise TypeError(f"propose must return a Draft, got {type(draft).__name__}")
    tokens, n = draft.tokens, len(draft.tokens)
    _check_array("tokens", tokens, np.int32)
    if n > limit:
        raise ValueError(f"a draft must have at most gamma = {limit} tokens, got {n}")
    if n and not (tokens.min() >= 0 and tokens.max() < vocab):
        bad = tokens[(tokens < 0) | (tokens >= vocab)][0]
        raise ValueError(f"draft tokens must lie in 0..{vocab - 1}, got {bad}")
    if draft.parents is not None:
        if not tree:
            raise ValueError("a chain was asked for, got a draft with parents")
        _check_tree(draft)
    if draft.source is not None:
        _check_array("source", draft.source, np.int8)
        if len(draft.source) != n:
            raise ValueError(f"source must have {n} entries, got {len(draft.source)}")
        if n and not (draft.source.min() >= 0 and draft.source.max() < tiers):
            bad = draft.source[(draft.source < 0) | (draft.source >= tiers)][0]
            raise ValueError(f"source must lie in 0..{tiers - 1}, got {bad}")
    if draft.confidence is not None:
        _check_array("confidence", draft.confidence, np.float32)
        if len(draft.confidence) != n:
            raise ValueError(f"confidence must have {n} entries, got {len(draft.confidence)}")
    if draft.proposal is not None:
        _check_proposal(draft, draft.proposal, vocab)
    return draft


def _check_array(name: str, array: object, dtype: type) -> None:
    if not isinstance(array, np.ndarray) or array.dtype != dtype or array.ndim != 1:
        got = f"{array.dtype} {array.shape}" if isinstance(array, np.ndarray) else type(array)
        wanted = np.dtype(dtype).name
        raise TypeError(f"draft {name} must be an {wanted} array of one dimension, got {got}")


def _check_tree(draft: Draft) -> None:
    tokens, parents, n = draft.tokens, draft.parents, len(draft)
    _check_array("parents", parents, np.int32)
    assert parents is not None
    if len(parents) != n:
        raise ValueError(f"parents must have {n} entries, got {len(parents)}")
    wrong = (parents < -1) | (parents >= np.arange(n))
    if wrong.any():
        node = int(wrong.argmax())
        raise ValueError(f"parents[{node}] must lie in -1..{node - 1}, got {parents[node]}")
    edges = np.sort((parents.astype(np.int64) << 32) | tokens)
    if (edges[1:] == edges[:-1]).any():
        token = int(edges[:-1][edges[1:] == edges[:-1]][0]) & 0x7FFFFFFF
        raise ValueError(f"children of one node must have different tokens, got {token} twice")


def _check_proposal(draft: Draft, proposal: Proposal, vocab: int) -> None:
    _check_array("proposal.starts", proposal.starts, np.int32)
    _check_array("proposal.tokens", proposal.tokens, np.int32)
    _check_array("proposal.probs", proposal.probs, np.float32)
    starts, ids, probs, n = proposal.starts, proposal.tokens, proposal.probs, len(draft)
    if len(starts) != n + 1 or len(ids) != len(probs) or starts[0] != 0 or starts[-1] != len(ids):
        raise ValueError(f"proposal.starts must rise from 0 to {len(ids)} in {n + 1} entries")
    if (np.diff(starts) < 1).any():
        raise ValueError("proposal.starts must rise: each node was drawn from something")
    if not n:
        return
    if not (ids.min() >= 0 and ids.max() < vocab):
        bad = ids[(ids < 0) | (ids >= vocab)][0]
        raise ValueError(f"proposal.tokens must lie in 0..{vocab - 1}, got {bad}")
    sums = np.add.reduceat(probs, starts[:-1])
    if not (probs > 0).all() or (np.abs(sums - 1) > 1e-3).any():
        bad = sums[np.abs(sums - 1).argmax()]
        raise ValueError(f"proposal.probs must be > 0 and sum to 1 of a node, got sum {bad:.4f}")
    owner = np.repeat(np.arange(n), np.diff(starts))
    drawn = np.unique(owner[ids == draft.tokens[owner]])
    if len(drawn) < n:
        node = next(each for each in range(n) if each not in drawn)
        raise ValueError(f"proposal of node {node} must hold its token {draft.tokens[node]}")
