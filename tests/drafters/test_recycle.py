"""Token Recycling: the table, the static tree, and that it drafts what the target thinks."""

from __future__ import annotations

import numpy as np
import pytest
from doubles import ids, paths
from plain_text import same_text

import ngramspec
from ngramspec import Evidence, Speculator, build_drafter
from ngramspec.drafters import RecycleDrafter, ValueDrafter
from ngramspec.drafters.recycle import RANK_PROBABILITIES, static_tree
from ngramspec.measure.replay import cost_curve


def seen(tokens, rows, accepted=(0,)):
    n = len(tokens)
    log_probs = np.zeros((n, len(rows[0])), np.float32)
    parents = np.arange(-1, n - 1, dtype=np.int32)
    return Evidence(ids(*tokens), parents, accepted, np.array(rows, np.int32), log_probs)


def observe(session, evidence, committed=()):
    session.observe(ngramspec.Draft(evidence.tokens[1:]), (), 0, evidence)
    session.extend(ids(*committed))


def test_a_chain_follows_the_first_candidates():
    session = RecycleDrafter(top_k=2).start(ids(1, 2))
    assert len(session.propose(4)) == 0
    observe(session, seen([2, 5, 6], [[3, 4], [7, 8], [5, 9]]), [5])
    assert session.propose(4).tokens.tolist() == [7]
    observe(session, seen([5, 7], [[6, 7], [2, 2]]), [6])
    assert session.propose(5).tokens.tolist() == [5, 6, 5, 6, 5]
    assert session.propose_after(ids(6), 2).tokens.tolist() == [5, 6]
    assert len(session.propose_after(ids(90), 2)) == 0


def test_a_tree_is_the_static_one_over_the_table():
    session = RecycleDrafter(top_k=2).start(ids(1))
    observe(session, seen([1, 2], [[2, 3], [4, 5]]))
    draft = session.propose(6, tree=True)  # 3, 4 and 5 are not known
    assert sorted(paths(draft)) == [(2,), (2, 4), (2, 5), (3,)]
    assert len(session.propose(0, tree=True)) == 0


def test_the_newest_candidates_count_and_among_them_those_behind_the_text():
    session = RecycleDrafter(top_k=1).start(ids(1))
    observe(session, seen([1, 1, 1], [[2], [3], [4]], accepted=(0, 1)))
    assert session.propose(1).tokens.tolist() == [3]
    observe(session, seen([1], [[9]]))
    assert session.propose(1).tokens.tolist() == [9]


def test_the_static_tree_holds_the_most_probable_paths():
    tree = static_tree(40, 8)
    reach = []
    for node, (parent, rank) in enumerate(tree):
        assert parent < node
        reach.append((1 if parent < 0 else reach[parent]) * RANK_PROBABILITIES[rank])
    assert reach == sorted(reach, reverse=True)
    assert len(set(tree)) == 40
    assert static_tree(12, 8) == tree[:12]
    for parent in range(-1, 40):  # ranks without gaps
        ranks = [rank for above, rank in tree if above == parent]
        assert ranks == list(range(len(ranks)))
    # nothing left out is more probable than the last one
    outside = [
        reach[node] * RANK_PROBABILITIES[sum(above == node for above, _ in tree)]
        for node in range(40)
        if sum(above == node for above, _ in tree) < 8
    ]
    assert max(outside) <= reach[-1]
    assert static_tree(5, 1) == ((-1, 0), (0, 0), (1, 0), (2, 0), (3, 0))


@pytest.mark.every(4)
@pytest.mark.parametrize("tree", [None, 24])
@pytest.mark.parametrize(
    "spec", ["recycle", "copy+ngram+unigram+recycle", "recycle(top_k=3)+unigram"]
)
def test_the_text_stays_and_the_target_s_candidates_come_true(tiny, tree, spec):
    speculator = Speculator(spec, gamma=16, tree=tree)
    stats = same_text(tiny, speculator, max_new_tokens=80)
    assert stats.accepted > 5
    if tree or spec != "copy+ngram+unigram+recycle":  # whose chains hardly ever need it
        assert stats.sources["recycle"].accepted > 0
    assert Speculator.from_dict(speculator.to_dict()).to_dict() == speculator.to_dict()


def test_by_value_the_candidates_are_a_source_of_the_engine():
    drafter = build_drafter("copy+ngram+unigram+recycle")
    assert isinstance(drafter, ValueDrafter)
    assert drafter.spec == "copy(min_match=2)+ngram+unigram+recycle"
    assert drafter.source_names[-1] == "recycle"
    assert drafter.evidence.top_k == 8
    assert build_drafter(drafter.spec).evidence == drafter.evidence
    assert isinstance(build_drafter("recycle", policy="priority"), RecycleDrafter)
    session = drafter.start(ids(3, 4, 5, 3))
    observe(session, seen([3, 9], [[7, 4], [8, 6]]), [7])
    observe(session, seen([7], [[3, 5]]), [3])
    first = session.propose(16, tree=True)
    assert 7 in first.tokens[first.parents == -1]


@pytest.mark.parametrize(
    ("curve", "tree", "nodes", "wanted"),
    [
        ("gpu", True, 64, True),
        ("gpu", False, 64, False),  # chains hardly gain
        ("cpu", True, 64, False),  # a wide forward is costly
        ("gpu", True, 24, False),  # nobody says what 32 nodes cost
        (None, True, 64, False),
    ],
)
def test_auto_wants_evidence_where_it_pays(curve, tree, nodes, wanted):
    drafter = build_drafter("auto")
    assert drafter.evidence.top_k == 8
    assert drafter.spec.endswith("+recycle(always=false)")
    session = build_drafter(drafter.spec).start(ids(3, 4, 5, 3))
    assert not session.wants_evidence
    session.propose(nodes, None if curve is None else cost_curve(curve, nodes), tree=tree)
    assert session.wants_evidence == wanted
    always = build_drafter("copy+recycle").start(ids(3, 4, 5, 3))
    always.propose(4)
    assert always.wants_evidence
    assert build_drafter("auto", policy="priority").evidence is None


def test_without_evidence_auto_drafts_as_if_it_never_asked():
    text = np.random.default_rng(0).integers(0, 9, 300).astype(np.int32)
    with_it, without = (
        build_drafter(spec).start(text[:20]) for spec in ("auto", "copy+ngram+unigram")
    )
    cost = cost_curve("gpu", 64)
    for begin in range(20, 300, 3):
        ours, theirs = (each.propose(40, cost, tree=True) for each in (with_it, without))
        assert ours.tokens.tolist() == theirs.tokens.tolist()
        assert ours.confidence.tolist() == theirs.confidence.tolist()
        for each in (with_it, without):
            each.extend(text[begin : begin + 3])


def test_arguments_are_checked():
    with pytest.raises(ValueError, match="cannot be built: .* argument 'always'"):
        build_drafter("recycle(always=false)", policy="priority")
    with pytest.raises(ValueError, match="always must be True or False, got 1"):
        build_drafter("copy+recycle(always=1)")
    with pytest.raises(ValueError, match="top_k must be in 1..64, got 0"):
        RecycleDrafter(top_k=0)


def test_without_evidence_it_drafts_nothing():
    session = build_drafter("recycle").start(ids(1, 2, 1, 2))
    assert len(session.propose(4)) == len(session.propose(4, tree=True)) == 0
    session.observe(ngramspec.Draft(ids(1)), (), 1)
    session.extend(ids(1))
    assert len(session.propose(4)) == 0
    assert session.sizeof() > 0


def test_sequences_share_nothing():
    drafter = RecycleDrafter()
    first, second = drafter.start(ids(1)), drafter.start(ids(1))
    observe(first, seen([1], [list(range(20, 28))]))
    assert len(first.propose(4)) == 1
    assert len(second.propose(4)) == 0
