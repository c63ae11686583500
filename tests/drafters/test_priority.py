"""Drafters in order of priority: each continues where those above it end."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from doubles import ScriptedDrafter, draft_of, ids, paths
from hypothesis import given
from hypothesis import strategies as st

from ngramspec import SharedStore, build_drafter
from ngramspec.draft import Draft
from ngramspec.drafters import CalibratedDrafter, CopyDrafter, NGramDrafter, PriorityDrafter
from ngramspec.drafters.base import check_draft
from ngramspec.drafters.priority import order, pack


def test_tiers_lower_ones_are_asked_only_where_higher_ones_end():
    asked = []

    def source(name, tokens):
        class Named(ScriptedDrafter):
            source_names = (name,)

            def start(self, committed):
                session = super().start(committed)
                session.propose_after = lambda drafted, gamma: (
                    asked.append((name, drafted.tolist(), gamma)) or draft_of(tokens[:gamma])
                )
                return session

        return Named(lambda at, gamma: draft_of(tokens[:gamma]))

    drafter = PriorityDrafter([source("a", [1, 2]), source("b", []), source("c", [3, 4, 5])])
    session = drafter.start(ids(9))
    draft = session.propose(4)
    assert draft.tokens.tolist() == [1, 2, 3, 4]
    assert [drafter.source_names[i] for i in draft.source] == ["a", "a", "c", "c"]
    assert asked == [("a", [], 4), ("b", [1, 2], 2), ("c", [1, 2], 2)]
    asked.clear()
    assert session.propose(2).tokens.tolist() == [1, 2]
    assert asked == [("a", [], 2)]


@pytest.mark.parametrize(
    ("accepted", "verified", "expected"),
    [
        *((4, verified, {"a": (2, 2), "b": (2, 2)}) for verified in (4, None)),
        *((3, 4, {"a": (2, 2), "b": (1, 2)}), (2, 3, {"a": (2, 2), "b": (0, 1)})),
        *((1, 2, {"a": (1, 2)}), (1, 1, {"a": (1, 1)})),
        *((0, verified, {"a": (0, 1)}) for verified in (1, None)),
    ],
)
def test_each_tier_observes_its_own_part(accepted, verified, expected):
    parts = {"a": [1, 2], "b": [3, 4]}
    drafters = {}
    for name, tokens in parts.items():
        drafters[name] = ScriptedDrafter(lambda at, gamma: draft_of([]))
        start = drafters[name].start

        def begin(committed, start=start, tokens=tokens):
            session = start(committed)
            session.propose_after = lambda drafted, gamma: draft_of(tokens[:gamma])
            return session

        drafters[name].start = begin
    session = PriorityDrafter(list(drafters.values())).start(ids(9))
    draft = session.propose(4)
    session.observe(draft, range(accepted), verified)
    got = {
        name: (len(drafter.observed[0][1]), drafter.observed[0][2])
        for name, drafter in drafters.items()
        if drafter.observed
    }
    assert got == expected


def test_drafters_inside_others_have_no_stores():
    inner = build_drafter("auto", stores=[SharedStore(1 << 20)["n"]])
    with pytest.raises(ValueError, match="^drafters must have no stores"):
        PriorityDrafter([inner])
    with pytest.raises(ValueError, match="^inner must have no stores"):
        CalibratedDrafter(inner)


def test_each_tier_observes_its_own_tree_also_where_all_are_one_path():
    drafters = [ScriptedDrafter(lambda at, gamma, n=n: draft_of([7, 8, 9][:n])) for n in (1, 3)]
    session = PriorityDrafter(drafters).start(ids(1, 2))
    draft = session.propose(3, tree=True)
    session.observe(replace(draft, parents=None), range(1), 2)
    assert [len(each.observed[-1][1]) for each in drafters] == [1, 1]


def test_a_custom_drafter_below_others_begins_but_does_not_continue():
    custom = ScriptedDrafter(lambda at, gamma: draft_of([50] * gamma))
    session = PriorityDrafter([CopyDrafter(2), custom]).start(ids(1, 2, 3))
    draft = session.propose(3)
    assert draft.tokens.tolist() == [50, 50, 50]
    assert draft.source.tolist() == [1, 1, 1]


A, B, C, D, E = range(5)


def chain(*tokens, source=0):
    return Draft(ids(*tokens), source=np.full(len(tokens), source, np.int8))


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


@given(st.lists(st.lists(st.integers(0, 3), max_size=6), max_size=6), st.integers(0, 20))
def test_a_pack_is_a_tree_of_all_prefixes(chains, limit):
    tree = check_draft(pack([chain(*tokens) for tokens in chains], limit), limit, 4, tree=True)
    every = {tuple(tokens[: n + 1]) for tokens in chains for n in range(len(tokens))}
    assert set(paths(tree)) <= every
    assert len(tree) == min(limit, len(every))
    if len(tree):
        again = pack([tree], limit)
        assert sorted(paths(again)) == sorted(paths(tree))


TWO_WAYS = ids(1, 2, 3, 30, 31, 9, 1, 2, 4, 40, 41, 8, 1, 2)  # 1 2 goes on with 3 and with 4


@pytest.mark.parametrize(
    ("spec", "policy"),
    [
        *((spec, "priority") for spec in ("copy", "ngram", "copy+ngram", "auto")),
        *((spec, "value") for spec in ("ngram", "copy+ngram", "auto", "copy+ngram(order=3)")),
    ],
)
def test_trees_follow_every_known_continuation(spec, policy):
    session = build_drafter(spec, policy=policy).start(TWO_WAYS)
    tree = check_draft(session.propose(24, tree=True), 24, 50, tree=True)
    assert {(3, 30, 31), (4, 40, 41)} <= set(paths(tree))
    assert session.propose(3).parents is None
    for gamma in range(4):
        assert len(session.propose(gamma, tree=True)) <= gamma


def test_ngram_trees_begin_with_the_most_frequent_continuation():
    session = NGramDrafter().start(ids(1, 2, 1, 2, 1, 3, 1, 3, 1, 3, 1, 4, 9, 1))
    tree = session.propose(6, tree=True)
    roots = tree.tokens[tree.parents == -1].tolist()
    assert roots[:2] == [3, 2]
    assert session.propose(1).tokens.tolist() == [3]


def test_tiers_that_know_no_trees_add_their_chains():
    source_names = [
        ScriptedDrafter(lambda at, gamma, t=t: draft_of(t[:gamma])) for t in ([1, 2], [1, 3])
    ]
    session = PriorityDrafter(source_names).start(ids(9))
    tree = session.propose(8, tree=True)
    assert set(paths(tree)) == {(1,), (1, 2), (1, 3)}
    path = [node for node, token in enumerate(tree.tokens.tolist()) if token in (1, 3)]
    session.observe(tree, path, 3)
    assert [drafter.observed[0][1] for drafter in source_names] == [[0], [0, 1]]


def test_calibration_learns_each_place_among_siblings():
    """The second of three siblings is right: it comes first in the end."""
    tree = Draft(ids(1, 2, 3, 4), ids(-1, -1, -1, 1))
    drafter = CalibratedDrafter(ScriptedDrafter(lambda at, gamma: tree.first(gamma)))
    session = drafter.start(ids(0))
    for _ in range(100):
        session.propose(4, tree=True)
        session.extend(ids(2, 4))
    got = session.propose(4, tree=True)
    assert got.tokens.tolist() == [2, 4, 1, 3] or got.tokens.tolist() == [2, 4, 3, 1]
    assert got.parents.tolist() == [-1, 0, -1, -1]
    assert got.confidence[:2].min() > 0.95
    assert got.confidence[2:].max() < 0.05
    flat = np.array([0, 1, 1.01, 1.02, 1.3, 1.31], np.float32)
    assert session.propose(4, flat, tree=True).tokens.tolist() == [2, 4]


def test_calibration_learns_each_tier_and_position():
    """The drafter is right at its first token, and never at its second."""
    inner = ScriptedDrafter(lambda at, gamma: draft_of([1, 2][:gamma]))
    drafter = CalibratedDrafter(inner)
    session = drafter.start(ids(0))
    for _ in range(200):
        session.propose(2)
        session.extend(ids(1, 3))
    other = drafter.start(ids(0)).propose(2)
    assert other.confidence[0] > 0.98
    assert other.confidence[1] < 0.02
    flat = np.array([0, 1, 1.02, 1.04, 1.06], np.float32)
    assert drafter.start(ids(0)).propose(2, flat).tokens.tolist() == [1]
    session.propose(2)
    session.extend(ids(1))  # the second was not judged
    assert drafter.start(ids(0)).propose(2).confidence[1] == other.confidence[1]
