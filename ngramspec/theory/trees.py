"""Expected tokens of a tree of drafts, and the best tree of a size.

Expected length: Stratos, "Speculative Decoding", section 1.1.1, from a chain to a tree; Miao et al.
2024 (SpecInfer). Best tree: the dynamic programme of Chen et al. 2024 (Sequoia), with acceptance by
a child's rank among its siblings and, in addition, by depth.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ngramspec.theory.arrays import Float64, costs, probability, whole


@dataclass(frozen=True, slots=True, eq=False)
class Tree:
    """The shape of a draft.

    Attributes:
        parents: int32 (n,), parents[i] < i, -1 for the last committed token: as in ``Draft``.
        ranks: int32 (n,), 0 for the first child of its parent.
        expected: E(tokens) of a step with it, 1 without nodes.
    """

    parents: NDArray[np.int32]
    ranks: NDArray[np.int32]
    expected: float


def reach(parents: ArrayLike, acceptance: ArrayLike) -> Float64:
    """P(a node and all its ancestors are accepted), for every node.

    Args:
        parents: int (n,) with parents[i] < i and -1 for the last committed token.
        acceptance: (n,), P(this child is the accepted one | its parent is accepted).

    Returns:
        float64 (n,).

    Raises:
        ValueError: a parent does not precede its child, or the probabilities of siblings sum to
            more than 1, although at most one of them is accepted.
    """
    above = np.asarray(parents, np.int64)
    own = probability("acceptance", acceptance)
    if above.shape != own.shape or above.ndim != 1:
        raise ValueError(f"parents and acceptance must be (n,), got {above.shape}, {own.shape}")
    if ((above < -1) | (above >= np.arange(len(above)))).any():
        raise ValueError("parents must be -1 or the index of an earlier node")
    _check_siblings(np.bincount(above + 1, weights=own, minlength=1).astype(np.float64))
    found = np.ones(len(own) + 1)  # [-1] is the last committed token
    for node, parent in enumerate(above):
        found[node] = found[parent] * own[node]
    return found[:-1]


def expected_tokens_of_tree(parents: ArrayLike, acceptance: ArrayLike) -> float:
    """E(tokens) of a step: 1 and the sum of all nodes' reach; Equation 1 for a chain.

    Example:
        >>> expected_tokens_of_tree([-1, -1, 0], [0.5, 0.25, 0.5])  # two children, one grandchild
        2.0
    """
    return float(1 + reach(parents, acceptance).sum())


def best_tree(acceptance: ArrayLike, nodes: int) -> Tree:
    """The tree of a number of nodes with the highest expected tokens (Sequoia, section 3.1).

    A child of rank r requires its siblings of lower ranks. The best subtree of k nodes splits k - 1
    of them between its first child's subtree and those of the further children. Time: depths x
    ranks x nodes^2.

    Args:
        acceptance: (depths, ranks): P(the child of that rank is the accepted one | its parent is),
            by the child's depth, from 1; or (ranks,), the same at every depth. Each row sums to at
            most 1.
        nodes: the nodes of the tree, >= 0.

    Returns:
        The tree. It is smaller only if depths and ranks allow fewer nodes. It may contain nodes
        with acceptance 0.

    Example:
        >>> tree = best_tree([0.6, 0.3], nodes=3)
        >>> tree.parents.tolist(), tree.ranks.tolist(), round(tree.expected, 2)
        ([-1, 0, -1], [0, 0, 1], 2.26)
    """
    rates = _rates(acceptance, nodes)
    totals, splits = _programme(rates, nodes)
    room = int(np.isfinite(totals).sum()) - 1  # nodes of the largest possible tree
    parents: list[int] = []
    ranks: list[int] = []
    values: list[float] = []
    open_ = [(-1, 0, 0, room, 1.0)]  # parent, depth, rank, nodes to share, reach
    while open_:
        parent, depth, rank, left, above = open_.pop()
        if not left:
            continue
        taken = int(splits[depth, rank, left])
        open_.append((parent, depth, rank + 1, left - taken, above))
        parents.append(parent)
        ranks.append(rank)
        values.append(above * rates[depth, rank])
        open_.append((len(parents) - 1, depth + 1, 0, taken - 1, values[-1]))
    return Tree(np.asarray(parents, np.int32), np.asarray(ranks, np.int32), float(1 + sum(values)))


def best_tree_values(acceptance: ArrayLike, nodes: int) -> Float64:
    """E(tokens) of the best tree of every size.

    Returns:
        float64 (nodes + 1,): for trees of 0 to ``nodes`` nodes; non-decreasing from 1.
    """
    values, _ = _programme(_rates(acceptance, nodes), nodes)
    return np.asarray(np.maximum.accumulate(1 + values))


def best_tree_size(acceptance: ArrayLike, nodes: int, cost: ArrayLike) -> int:
    """The number of nodes with the most tokens per cost (Sequoia, section 3.3), smallest if equal.

    Args:
        acceptance: as in ``best_tree``.
        nodes: maximum number of nodes.
        cost: (nodes + 2,) or longer, cost[k] of a forward of k positions, any unit.
    """
    values = best_tree_values(acceptance, nodes)
    return int((values / costs(cost, nodes + 1)[1 : nodes + 2]).argmax())


def _rates(acceptance: ArrayLike, nodes: int) -> Float64:
    """float64 (depths, ranks), without depths and ranks that ``nodes`` nodes cannot reach."""
    whole("nodes", nodes)
    rates = probability("acceptance", acceptance)
    if rates.ndim == 1:
        rates = np.broadcast_to(rates, (max(nodes, 1), len(rates)))
    if rates.ndim != 2 or not rates.size:
        raise ValueError(
            f"acceptance must be (ranks,) or (depths, ranks), not empty, got {rates.shape}"
        )
    _check_siblings(rates.sum(axis=1))
    return rates[: max(nodes, 1), : max(nodes, 1)]


def _check_siblings(totals: Float64) -> None:
    if (totals > 1 + 1e-9).any():
        raise ValueError(f"acceptance of siblings must sum to <= 1, got {totals.max():g}")


def _programme(rates: Float64, nodes: int) -> tuple[Float64, NDArray[np.int64]]:
    """The value of every number of nodes, and its best split.

    Returns:
        float64 (nodes + 1,), the summed reach below the root, -infinity if there is no such tree;
        and int64 (depths, ranks, nodes + 1): if children of this depth from this rank on share m
        nodes, [m] is the number of nodes in the subtree of the first of these children.
    """
    depths, ranks = rates.shape
    splits = np.zeros((depths, ranks, nodes + 1), np.int64)
    sizes = np.arange(nodes + 1)
    rest = sizes[:, None] - sizes[None, :]  # [m, k]: what is left of m if k are taken
    none_left = np.where(sizes == 0, 0.0, -np.inf)
    below = none_left  # of the deepest nodes: no room for children
    for depth in reversed(range(depths)):
        shared = none_left  # by children from this rank on
        subtree = np.concatenate(([-np.inf], 1 + below[:-1]))  # of k nodes, its root accepted
        for rank in reversed(range(ranks)):
            possible = np.isfinite(subtree)  # 0 * -infinity is undefined
            value = np.multiply(rates[depth, rank], subtree, out=subtree.copy(), where=possible)
            split = np.where(rest >= 0, value[None, :] + shared[np.maximum(rest, 0)], -np.inf)
            split[0, 0] = 0.0  # no nodes, no child
            splits[depth, rank] = split.argmax(axis=1)
            shared = split.max(axis=1)
        below = shared
    return below, splits
