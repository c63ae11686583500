"""How much of a batch's drafts is worth a step's cost, and what became of a draft."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ngramspec._native.row_text import agreed
from ngramspec.draft import Draft, Float32, Int32


def accepted_nodes(draft: Draft, committed: Int32, begin: int, end: int) -> list[int]:
    """The nodes of a draft that committed[begin:end], int32, agrees with, in order."""
    if draft.parents is None:
        return list(range(agreed(draft.tokens, committed, begin, end)))
    tokens = draft.tokens.tolist()
    children, path = draft.children(), [-1]
    for token in committed[begin:end].tolist():
        right = next((node for node in children[path[-1] + 1] if tokens[node] == token), None)
        if right is None:
            break
        path.append(right)
    return path[1:]


def may_pay(curve: Float32, rows: int, k: int) -> bool:
    """Whether drafts that are sure would be worth their cost.

    Args:
        curve: float32 (n,), [d] the cost of a step with d drafted tokens in all.
        rows: of the batch.
        k: most drafted tokens of a row.
    """
    tokens = rows + np.arange(min(len(curve), rows * k + 1))
    return bool((tokens[1:] > rows * curve[1 : len(tokens)]).any())


def generous_cost(curve: Float32, rows: int, k: int) -> Float32:
    """A row's cost, float32 (k + 2,), by which sessions end what pays in no batch.

    It is a quarter of the least that a token adds: which of the tokens are worth it depends on
    the other rows, and is decided with them.
    """
    extra = np.arange(1, len(curve))
    slope = float(((curve[1:] - curve[0]) / extra).min(initial=np.inf)) if len(extra) else 0.0
    cost = np.ones(k + 2, np.float32)
    cost[2:] += 0.25 * rows * max(slope, 0.0) * np.arange(1, k + 1, dtype=np.float32)
    return cost


def worthwhile_rows(drafts: Sequence[Draft], curve: Float32) -> list[Draft]:
    """Cut a batch's drafts where its expected tokens per cost are highest.

    Theorem 3.8 of Leviathan et al. (2023) with a probability for each token, for a batch whose
    steps cost what all its positions together do: the likeliest tokens first, whichever row they
    are of, as many as pay.

    Args:
        drafts: of the rows, empty ones included; without confidence each token counts a half.
        curve: float32 (n,), [d] the cost of a step with d drafted tokens in all.

    Example:
        >>> sure = Draft(np.array([1, 2], np.int32), None, np.array([0.9, 0.9], np.float32))
        >>> rare = Draft(np.array([3], np.int32), None, np.array([0.1], np.float32))
        >>> dear = np.array([1, 1.2, 1.4, 1.6], np.float32)
        >>> [len(each) for each in worthwhile_rows([sure, rare], dear)]
        [2, 0]
    """
    reached = [_reach(draft) for draft in drafts]
    sizes = [len(each) for each in reached]
    if not sum(sizes):
        return list(drafts)
    reach = np.concatenate(reached)
    row = np.repeat(np.arange(len(drafts)), sizes)
    order = np.argsort(-reach, kind="stable")
    expected = np.empty(len(reach) + 1)
    expected[0] = len(drafts)
    expected[1:] = len(drafts) + np.cumsum(reach[order])
    expected = expected[: len(curve)]
    value = expected / curve[: len(expected)]
    best = len(value) - 1 - int(value[::-1].argmax())
    kept = np.bincount(row[order[:best]], minlength=len(drafts)).tolist()
    return [draft.first(n) for draft, n in zip(drafts, kept, strict=True)]


def _reach(draft: Draft) -> NDArray[np.float64]:
    """P(accepted) of each node with those above it, falling in the order of the nodes."""
    if not len(draft):
        return np.empty(0)
    confidence = draft.confidence
    if confidence is None:
        confidence = np.full(len(draft), 0.5, np.float32)
    if draft.parents is None:
        return np.cumprod(confidence, dtype=np.float64)
    reach = confidence.astype(np.float64)
    for node, parent in enumerate(draft.parents.tolist()):
        if parent >= 0:
            reach[node] *= reach[parent]
    return np.minimum.accumulate(reach)
