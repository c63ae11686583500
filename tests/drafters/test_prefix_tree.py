"""Chains and trees merged into one prefix tree."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ngramspec.draft import Draft
from ngramspec.drafters.base import check_draft
from ngramspec.drafters.priority import order, pack

A, B, C, D, E = range(5)


def chain(*tokens, confidence=None, source=0):
    p = None if confidence is None else np.array(confidence, np.float32)
    return Draft(np.array(tokens, np.int32), None, p, None, np.full(len(tokens), source, np.int8))


def paths(draft):
    """Each node's tokens from the root on, in the draft's order."""
    found = []
    parents = range(-1, len(draft) - 1) if draft.parents is None else draft.parents.tolist()
    for token, parent in zip(draft.tokens.tolist(), parents, strict=True):
        found.append((*(found[parent] if parent >= 0 else ()), token))
    return found


def test_identical_prefixes_are_one_path():
    tree = pack([chain(A, B, C, source=1), chain(A, B, D, source=2), chain(E, source=3)], 9)
    assert paths(tree) == [(A,), (A, B), (A, B, C), (A, B, D), (E,)]
    assert tree.source.tolist() == [1, 1, 1, 2, 3]
    assert tree.confidence is None


def test_without_confidence_the_first_draft_is_followed_deeper():
    tree = pack([chain(*range(10, 40)), chain(*range(50, 80))], 30)
    depth = {first: sum(path[0] == first for path in paths(tree)) for first in (10, 50)}
    assert depth[10] > depth[50] > 5
    assert depth[10] + depth[50] == 30


def test_the_budget_keeps_the_nodes_most_likely_reached():
    chains = [chain(A, B, confidence=[0.5, 0.5]), chain(C, D, confidence=[0.3, 0.9])]
    assert paths(pack(chains, 9)) == [(A,), (C,), (C, D), (A, B)]
    assert paths(pack(chains, 3)) == [(A,), (C,), (C, D)]
    assert pack(chains, 3).confidence == pytest.approx([0.5, 0.3, 0.9])


def test_a_node_several_propose_has_the_best_confidence_for_it():
    tree = pack([chain(A, B, confidence=[0.2, 0.5]), chain(A, confidence=[0.8])], 9)
    assert paths(tree) == [(A,), (A, B)]
    assert tree.confidence == pytest.approx([0.8, 0.5])


def test_nothing_to_pack():
    assert len(pack([], 4)) == len(pack([chain()], 4)) == len(pack([chain(A)], 0)) == 0


def test_nodes_are_sorted_by_reach():
    tree = Draft(
        np.array([A, B, C, D], np.int32),
        np.array([-1, -1, 0, 2], np.int32),
        np.array([0.5, 0.4, 0.8, 0.5], np.float32),
    )
    ordered = order(tree, np.array([0.5, 0.45, 0.5, 0.48]))
    assert paths(ordered) == [(A,), (A, C), (A, C, D), (B,)]
    assert ordered.confidence == pytest.approx([0.5, 0.8, 0.5, 0.4])


@given(
    st.lists(
        st.tuples(st.lists(st.integers(0, 3), max_size=6), st.none() | st.floats(0.05, 1)),
        max_size=6,
    ),
    st.integers(0, 20),
)
def test_a_pack_is_a_tree_of_all_prefixes(chains, limit):
    drafts = [
        chain(*tokens, confidence=None if p is None else [p] * len(tokens)) for tokens, p in chains
    ]
    tree = check_draft(pack(drafts, limit), limit, 4, tree=True)
    every = {tuple(tokens[: n + 1]) for tokens, _ in chains for n in range(len(tokens))}
    assert set(paths(tree)) <= every
    assert len(tree) == min(limit, len(every))
    if len(tree):
        again = pack([tree], limit)
        assert sorted(paths(again)) == sorted(paths(tree))
