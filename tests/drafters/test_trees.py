"""Drafters that draft trees."""

from __future__ import annotations

import pytest
from doubles import ScriptedDrafter, draft_of, ids

from ngramspec import build_drafter
from ngramspec.drafters import (
    NGramDrafter,
    PriorityDrafter,
)
from ngramspec.drafters.base import check_draft


def paths(draft):
    found = {-1: ()}
    for node, (token, parent) in enumerate(
        zip(draft.tokens.tolist(), draft.parents.tolist(), strict=True)
    ):
        found[node] = (*found[parent], token)
    return set(found.values())


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
    assert {(3, 30, 31), (4, 40, 41)} <= paths(tree)
    assert session.propose(3).parents is None
    for gamma in range(4):
        assert len(session.propose(gamma, tree=True)) <= gamma


@pytest.mark.parametrize("spec", ["copy", "ngram", "unigram", "copy+ngram+unigram"])
@pytest.mark.parametrize("policy", ["priority", "value"])
def test_trees_of_texts_too_short_to_know_anything(spec, policy):
    session = build_drafter(spec, policy=policy).start(ids())
    assert len(session.propose(4, tree=True)) == 0
    session.extend(ids(7))
    tree = check_draft(session.propose(4, tree=True), 4, 50, tree=True)
    session.observe(tree, [])
    session.extend(ids(7))
    assert len(session.propose(4, tree=True)) <= 4


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
    assert paths(tree) == {(), (1,), (1, 2), (1, 3)}
    path = [node for node, token in enumerate(tree.tokens.tolist()) if token in (1, 3)]
    session.observe(tree, path, 3)
    assert [drafter.observed[0][1] for drafter in source_names] == [[0], [0, 1]]
