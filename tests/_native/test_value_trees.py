"""The value engine drafts trees that are wide where that pays."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from engine_pair import costs, ids, noisy_repetition, play, play_trees

from ngramspec._native.value import Calibration, ValueEngine


def test_nodes_come_in_order_of_their_reach():
    text = noisy_repetition(5, 600)
    *_, trees = play_trees(ValueEngine(Calibration()), text, 60, 24)
    assert max(len(tree) for tree in trees) == 24
    for tree in trees:
        reach = []
        for p, parent in zip(tree.confidence.tolist(), tree.parents.tolist(), strict=True):
            reach.append(p * (reach[parent] if parent >= 0 else 1))
        assert all(b <= a * 1.001 for a, b in pairwise(reach))
        siblings = np.bincount(tree.parents + 1, tree.confidence)
        assert len(siblings) == 0 or siblings.max() <= 1.1


def test_a_tree_knows_what_a_chain_misses():
    """After 1 2 came 3 and came 4, each with its own sequel: the tree follows both."""
    engine = ValueEngine(Calibration())
    engine.extend(ids([1, 2, 3, 30, 31, 9, 1, 2, 4, 40, 41, 8, 1, 2]))
    tokens, parents, _, _ = engine.draft_tree(16)
    paths = {-1: ()}
    for i, (token, parent) in enumerate(zip(tokens.tolist(), parents.tolist(), strict=True)):
        paths[i] = (*paths[parent], token)
    assert {(3, 30, 31), (4, 40, 41)} <= set(paths.values())
    assert engine.draft(16)[0].tolist()[:2] == [4, 40]


def test_trees_take_fewer_steps_than_chains():
    steps = np.zeros(2)
    for seed in range(6):
        text = noisy_repetition(seed, 600, noise=0.2)
        steps += (
            play(ValueEngine(Calibration()), text, 60, 16)[0],
            play_trees(ValueEngine(Calibration()), text, 60, 16)[0],
        )
    assert steps[1] < 0.9 * steps[0]


def test_trees_are_as_large_as_pays():
    """Of the sizes up to the budget, the one where expected tokens per cost are highest."""
    text = noisy_repetition(3, 600)
    sizes = []
    for slope in (0.0, 0.01, 0.1, 2.0):
        cost = costs(32, slope)
        *_, trees = play_trees(ValueEngine(Calibration()), text, 300, 32, cost)
        sizes.append(np.mean([len(tree) for tree in trees]))
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[-1] < 0.3 < 10 < sizes[0]


def test_confidence_in_trees_is_calibrated():
    """Of all nodes judged with confidence p, first and last candidates, about p is accepted."""
    calibration = Calibration()
    probabilities, outcomes = [], []
    for seed in range(40):
        text = noisy_repetition(seed, 900, noise=0.15)
        _, p, y, _ = play_trees(ValueEngine(calibration), text, 100, 16)
        if seed >= 10:
            probabilities += p
            outcomes += y
    p, y = np.array(probabilities), np.array(outcomes)
    for low, high in ((0, 0.05), (0.05, 0.1), (0.1, 0.2), (0.2, 0.5), (0.5, 0.8), (0.8, 1)):
        inside = (p >= low) & (p < high)
        if inside.sum() >= 300:
            assert abs(p[inside].mean() - y[inside].mean()) < 0.25 * (low + high) / 2 + 0.02


def test_tokens_used_lately_are_drafted_where_nothing_else_is_known():
    engine = ValueEngine(Calibration())
    engine.extend(ids([5, 6, 7, 8]))  # nothing followed 8 yet
    tokens, parents, confidence, source = engine.draft_tree(16)
    assert set(tokens[parents == -1].tolist()) == {5, 6, 7, 8}
    assert 3 in set(source.tolist()) <= {2, 3}  # behind 5, 6 and 7 their own continuation
    assert 0 < confidence[parents == -1].min() < 0.2
    without = ValueEngine(Calibration(), falls_back=False)
    without.extend(ids([5, 6, 7, 8]))
    assert len(without.draft_tree(8)[0]) == 0
