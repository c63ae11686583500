"""The optimal draft length (Leviathan et al. 2023, Theorem 3.8)."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Float64 = NDArray[np.float64]


def reach_of(parents: NDArray[np.int32] | None, confidence: NDArray[np.float32]) -> Float64:
    """P(accepted) of each node of a draft and all its ancestors, float64 (n,).

    Args:
        parents: int32 (n,), parents[i] < i, -1 for the last committed token; None: a chain.
        confidence: float32 (n,): P(node accepted | parent accepted, no earlier sibling accepted).

    Example:
        >>> parents = np.array([-1, -1, 0], np.int32)
        >>> reach_of(parents, np.array([0.5, 0.25, 0.5], np.float32)).tolist()
        [0.5, 0.25, 0.25]
    """
    if parents is None:
        return np.cumprod(confidence, dtype=np.float64)
    reach = confidence.astype(np.float64)
    for node, above in enumerate(parents.tolist()):
        if above >= 0:
            reach[node] *= reach[above]
    return reach


def likeliest_path(parents: NDArray[np.int32], confidence: NDArray[np.float32]) -> list[int]:
    """The path of the most probable child of each node, from the last committed token on."""
    best: dict[int, int] = {}
    for node, above in enumerate(parents.tolist()):
        if above not in best or confidence[node] > confidence[best[above]]:
            best[above] = node
    path, at = [], best.get(-1)
    while at is not None:
        path.append(at)
        at = best.get(at)
    return path


def worthwhile_nodes(reach: NDArray[np.float64], cost: NDArray[np.float32]) -> int:
    """The number of leading nodes with the highest expected tokens per cost, the largest if equal.

    Theorem 3.8 with a probability for each node and a measured cost.

    Args:
        reach: float64 (n,), non-increasing: P(accepted) of each node and all its ancestors.
        cost: float32 (n + 2,) or longer: [k] is the cost of a forward of k positions.

    Example:
        >>> worthwhile_nodes(np.array([0.9, 0.09]), np.array([0, 1, 1.2, 1.4], np.float32))
        1
    """
    return _best(1 + np.cumsum(np.concatenate(([0.0], reach))), cost)


def worthwhile_path(
    parents: NDArray[np.int32],
    confidence: NDArray[np.float32],
    cost: NDArray[np.float32],
    surcharge: float,
) -> list[int] | None:
    """The path of a tree with at least as many expected tokens per cost as the whole tree, if any.

    Only prefixes of ``likeliest_path`` are considered. The empty one means a step without a draft.

    Args:
        parents: int32 (n,), parents[i] < i, -1 for the last committed token.
        confidence: float32 (n,), see ``reach_of``.
        cost: float32 (n + 2,) or longer: [k] is the cost of k positions without branches.
        surcharge: factor on the cost of a forward with branches.

    Returns:
        Indices of the path's nodes, in order; None if the whole tree is best.
    """
    reach, path = reach_of(parents, confidence), likeliest_path(parents, confidence)
    whole = (1.0 + float(reach.sum())) / float(cost[1 + len(reach)]) / surcharge
    chain = np.cumsum(np.concatenate(([1.0], reach[path])))
    best = _best(chain, cost)
    return path[:best] if chain[best] / cost[best + 1] >= whole else None


def _best(expected: NDArray[np.float64], cost: NDArray[np.float32]) -> int:
    value = expected / cost[1 : len(expected) + 1]
    return int(len(value) - 1 - value[::-1].argmax())
