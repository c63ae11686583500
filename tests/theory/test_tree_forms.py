"""Expected tokens of trees, and the best tree, against walks and every small tree there is."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ngramspec.theory import trees
from ngramspec.theory.walltime import expected_tokens, expected_tokens_at

WALKS = 100_000
MANY_ERRORS = 5

# What is left after each child is shared among the next: siblings' shares sum to at most 1.
SHARES = st.lists(st.floats(0.05, 0.9), min_size=1, max_size=4)


def _rates(shares):
    left, rates = 1.0, []
    for share in shares:
        rates.append(left * share)
        left -= rates[-1]
    return rates


@cache
def _forests(nodes: int) -> list[tuple]:
    """Every ordered forest of a number of nodes: a tuple of trees, each the forest below it."""
    if not nodes:
        return [()]
    return [
        (first, *others)
        for taken in range(1, nodes + 1)
        for first in _forests(taken - 1)
        for others in _forests(nodes - taken)
    ]


def _value(forest, rates, depth=0):
    """The summed reach of a forest, by its definition; None if it has no such rank or depth."""
    total = 0.0
    for rank, below in enumerate(forest):
        if depth >= len(rates) or rank >= len(rates[depth]):
            return None
        deeper = _value(below, rates, depth + 1)
        if deeper is None:
            return None
        total += rates[depth][rank] * (1 + deeper)
    return total


def _by_force(rates, nodes):
    values = [_value(forest, rates) for forest in _forests(nodes)]
    return max((value for value in values if value is not None), default=None)


def test_there_are_as_many_forests_as_catalan_says():
    assert [len(_forests(nodes)) for nodes in range(7)] == [1, 1, 2, 5, 14, 42, 132]


@settings(max_examples=60)
@given(st.lists(SHARES, min_size=1, max_size=4), st.integers(0, 6))
def test_no_small_tree_is_better_than_the_best(shares, nodes):
    rates = [_rates(row) for row in shares]
    ranks = min(map(len, rates))
    rates = [row[:ranks] for row in rates]
    best = trees.best_tree(np.array(rates), nodes)
    found = _by_force(rates, len(best.parents))
    assert best.expected == pytest.approx(1 + found)
    fits = _by_force(rates, nodes) is not None
    assert (len(best.parents) == nodes) == fits


def test_ranks_that_rise_are_looked_through_too():
    rates = np.array([[0.1, 0.8], [0.5, 0.4]])  # the second child is the likelier one
    tree = trees.best_tree(rates, 4)
    assert tree.expected == pytest.approx(1 + _by_force(rates.tolist(), 4))
    assert sorted(tree.ranks[tree.parents == -1].tolist()) == [0, 1]


@settings(max_examples=60)
@given(SHARES, st.integers(1, 24))
def test_the_best_tree_is_well_formed_and_worth_what_it_says(shares, nodes):
    rates = _rates(shares)
    tree = trees.best_tree(rates, nodes)
    assert len(tree.parents) == nodes
    assert (tree.parents < np.arange(nodes)).all()
    for parent in range(-1, nodes):
        ranks = tree.ranks[tree.parents == parent]
        assert ranks.tolist() == list(range(len(ranks)))
    acceptance = np.asarray(rates)[tree.ranks]
    assert trees.expected_tokens_of_tree(tree.parents, acceptance) == pytest.approx(tree.expected)
    assert trees.best_tree_values(rates, nodes)[nodes] == pytest.approx(tree.expected)


@settings(max_examples=60)
@given(SHARES.map(lambda shares: sorted(_rates(shares), reverse=True)), st.integers(1, 30))
def test_with_falling_ranks_taking_the_likeliest_node_next_is_best(rates, nodes):
    total, reachable = 0.0, [(rates[0], 1.0, 0)]  # reach, its parent's, rank; it opens two more
    for _ in range(nodes):
        reachable.sort()
        reach, above, rank = reachable.pop()
        total += reach
        reachable.append((reach * rates[0], reach, 0))
        if rank + 1 < len(rates):
            reachable.append((above * rates[rank + 1], above, rank + 1))
    assert trees.best_tree_values(rates, nodes)[nodes] == pytest.approx(1 + total)


def _walk(parents, acceptance, seed=0):
    """Nodes accepted in many steps: at each node one child at most, by one uniform number."""
    generator = np.random.default_rng(seed)
    children: dict[int, list[int]] = {}
    for node, parent in enumerate(parents):
        children.setdefault(parent, []).append(node)
    totals = np.zeros(WALKS)
    for walk in range(WALKS):
        at = -1
        while at in children:
            draw = generator.random()
            for node in children[at]:
                draw -= acceptance[node]
                if draw < 0:
                    break
            else:
                break
            totals[walk] += 1
            at = node
    return totals


def test_expected_tokens_are_what_walks_through_the_tree_give():
    parents = [-1, -1, 0, 0, 1, 2, -1]
    acceptance = [0.5, 0.2, 0.6, 0.3, 0.4, 0.9, 0.1]
    walks = _walk(parents, acceptance) + 1
    error = walks.std() / np.sqrt(WALKS)
    found = trees.expected_tokens_of_tree(parents, acceptance)
    assert abs(walks.mean() - found) < MANY_ERRORS * error


def test_a_chain_is_equation_1():
    parents = np.arange(-1, 4)
    assert trees.expected_tokens_of_tree(parents, [0.7] * 5) == pytest.approx(
        expected_tokens(0.7, 5)
    )
    by_depth = [0.9, 0.5, 0.2]
    assert trees.best_tree_values(np.array(by_depth)[:, None], 3) == pytest.approx(
        expected_tokens_at(by_depth)
    )
    assert trees.best_tree([0.7], 5).parents.tolist() == parents.tolist()


def test_reach_is_the_product_of_the_path():
    assert trees.reach([-1, 0, 0, 1], [0.5, 0.4, 0.6, 0.5]) == pytest.approx([0.5, 0.2, 0.3, 0.1])
    assert trees.reach([], []).tolist() == []


def test_a_steep_cost_makes_the_best_tree_small():
    flat, steep = np.ones(34), np.arange(34) + 0.0
    assert trees.best_tree_size([0.6, 0.2], 32, flat) == 32
    assert trees.best_tree_size([0.6, 0.2], 32, steep) == 0
    values = trees.best_tree_values([0.6, 0.2], 32)
    cost = 1 + 0.05 * np.arange(-1, 33)
    assert trees.best_tree_size([0.6, 0.2], 32, cost) == int((values / cost[1:]).argmax())


def test_nodes_without_hope_and_full_trees():
    tree = trees.best_tree([1.0, 0.0], 3)
    assert tree.expected == 4
    full = trees.best_tree(np.array([[0.5, 0.5], [0.5, 0.5]]), 99)
    assert len(full.parents) == 6
    assert full.expected == pytest.approx(3)
    assert trees.best_tree([0.5], 0).expected == 1


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: trees.reach([0], [0.5]), "parents must be -1 or the index of an earlier node"),
        (lambda: trees.reach([-1, -1], [0.7, 0.7]), "siblings must sum to <= 1, got 1.4"),
        (lambda: trees.reach([-1], [0.5, 0.5]), r"must be \(n,\), got \(1,\), \(2,\)"),
        (lambda: trees.best_tree([0.9, 0.2], 3), "siblings must sum to <= 1, got 1.1"),
        (lambda: trees.best_tree([], 3), "acceptance must be"),
        (lambda: trees.best_tree([0.5], -1), "nodes must be a whole number >= 0, got -1"),
    ],
)
def test_wrong_arguments_are_named(call, message):
    with pytest.raises(ValueError, match=message):
        call()
