"""The drafters over the native structures, their tiers, and the registry."""

from __future__ import annotations

import numpy as np
import pytest
from doubles import ScriptedDrafter, draft_of
from hypothesis import given
from hypothesis import strategies as st

from ngramspec import Drafter, build_drafter, register_drafter
from ngramspec.draft import Draft
from ngramspec.draft_length.optimal import worthwhile, worthwhile_nodes
from ngramspec.drafters import (
    CalibratedDrafter,
    CopyDrafter,
    NGramDrafter,
    NullDrafter,
    TieredDrafter,
    UnigramDrafter,
    ValueDrafter,
    registry,
)
from ngramspec.drafters.validation import check_draft


def ids(*tokens):
    return np.array(tokens, np.int32)


@pytest.mark.parametrize("spec", ["copy", "ngram", "unigram", "none", "auto"])
def test_empty_short_and_unknown_contexts(spec):
    session = build_drafter(spec).start(ids())
    assert len(session.propose(4)) == 0
    session.extend(ids(7))
    assert len(session.propose(0)) == 0
    assert len(session.propose(4)) <= 4
    session.extend(ids())
    session.observe(session.propose(2), [])
    session.close()


def test_ngram_chains_on_its_own_predictions():
    session = NGramDrafter().start(ids(1, 2, 3, 4, 5, 9, 1, 2))
    assert session.propose(5).tokens.tolist() == [3, 4, 5, 9, 1]


def test_copy_needs_a_match_of_min_match():
    text = ids(1, 2, 3, 4, 9, 2, 3)
    assert CopyDrafter(2).start(text).propose(3).tokens.tolist() == [4, 9, 2]
    assert len(CopyDrafter(3).start(text).propose(3)) == 0


def test_a_copy_that_reaches_the_end_goes_on_with_its_own_draft():
    assert CopyDrafter(1).start(ids(7, 8, 7, 8, 7)).propose(6).tokens.tolist() == [8, 7] * 3


def test_unigram_drafts_its_one_most_frequent_token():
    session = UnigramDrafter().start(ids(3, 5, 5, 8, 8))
    assert session.propose(6).tokens.tolist() == [8]  # of equals the more recent
    session.extend(ids(5))
    assert session.propose(6).tokens.tolist() == [5]


def test_unigram_gate_closes_on_rejections_probes_and_opens_again():
    drafter = UnigramDrafter(min_acceptance=0.2)
    session = drafter.start(ids(5, 5, 5))
    drafter.learn(9, 9)
    for _ in range(60):
        draft = session.propose(1)
        if len(draft):
            session.observe(draft, [], 1)
    asked = [len(session.propose(1)) for _ in range(64)]
    assert sum(asked) == 2  # closed: one in 32
    other = drafter.start(ids(9))  # the gate is the drafter's, for all its sequences
    assert sum(len(other.propose(1)) for _ in range(31)) <= 1
    drafter.learn(60, 60)
    assert len(session.propose(1)) == 1


def test_tiers_lower_ones_are_asked_only_where_higher_ones_end():
    asked = []

    def tier(name, tokens):
        class Named(ScriptedDrafter):
            tiers = (name,)

            def start(self, committed):
                session = super().start(committed)
                session.propose_after = lambda drafted, gamma: (
                    asked.append((name, drafted.tolist(), gamma)) or draft_of(tokens[:gamma])
                )
                return session

        return Named(lambda at, gamma: draft_of(tokens[:gamma]))

    drafter = TieredDrafter([tier("a", [1, 2]), tier("b", []), tier("c", [3, 4, 5])])
    session = drafter.start(ids(9))
    draft = session.propose(4)
    assert draft.tokens.tolist() == [1, 2, 3, 4]
    assert [drafter.tiers[i] for i in draft.source] == ["a", "a", "c", "c"]
    assert asked == [("a", [], 4), ("b", [1, 2], 2), ("c", [1, 2], 2)]
    asked.clear()
    assert session.propose(2).tokens.tolist() == [1, 2]
    assert asked == [("a", [], 2)]


@pytest.mark.parametrize(
    ("accepted", "tested", "expected"),
    [
        (4, 4, {"a": (2, 2), "b": (2, 2)}),
        (3, 4, {"a": (2, 2), "b": (1, 2)}),
        (2, 3, {"a": (2, 2), "b": (0, 1)}),
        (1, 2, {"a": (1, 2)}),
        (0, 1, {"a": (0, 1)}),
        (1, 1, {"a": (1, 1)}),
        (0, None, {"a": (0, 1)}),
        (4, None, {"a": (2, 2), "b": (2, 2)}),
    ],
)
def test_each_tier_observes_its_own_part(accepted, tested, expected):
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
    session = TieredDrafter(list(drafters.values())).start(ids(9))
    draft = session.propose(4)
    session.observe(draft, range(accepted), tested)
    got = {
        name: (len(drafter.observed[0][1]), drafter.observed[0][2])
        for name, drafter in drafters.items()
        if drafter.observed
    }
    assert got == expected


def test_a_custom_drafter_below_others_begins_but_does_not_continue():
    custom = ScriptedDrafter(lambda at, gamma: draft_of([50] * gamma))
    session = TieredDrafter([CopyDrafter(2), custom]).start(ids(1, 2, 3))
    draft = session.propose(3)
    assert draft.tokens.tolist() == [50, 50, 50]
    assert draft.source.tolist() == [1, 1, 1]


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
    tiers = [ScriptedDrafter(lambda at, gamma, t=t: draft_of(t[:gamma])) for t in ([1, 2], [1, 3])]
    session = TieredDrafter(tiers).start(ids(9))
    tree = session.propose(8, tree=True)
    assert paths(tree) == {(), (1,), (1, 2), (1, 3)}
    path = [node for node, token in enumerate(tree.tokens.tolist()) if token in (1, 3)]
    session.observe(tree, path, 3)
    assert [drafter.observed[0][1] for drafter in tiers] == [[0], [0, 1]]


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


def test_drafts_stay_valid_after_the_next_call():
    session = build_drafter("auto").start(ids(1, 2, 3, 4, 1, 2))
    first = session.propose(4)
    before = first.tokens.tolist()
    session.extend(ids(9, 9, 9))
    session.propose(4)
    assert first.tokens.tolist() == before


def test_a_drafter_continues_a_hypothetical_prefix():
    text = ids(1, 2, 3, 4, 5, 6, 7, 8)
    for drafter in (CopyDrafter(2), NGramDrafter()):
        session = drafter.start(text)
        assert len(session.propose(3)) == 0
        assert session.propose_after(ids(3, 4), 3).tokens.tolist() == [5, 6, 7]


def test_build_drafter_reads_tiers_and_arguments():
    text = " copy( min_match = 5 ) + ngram(order=3,window=64)+unigram "
    drafter = build_drafter(text, policy="priority")
    assert drafter.tiers == ("copy", "ngram", "unigram")
    copy, ngram, _ = drafter.drafters
    assert (copy.min_match, ngram.order, ngram.window) == (5, 3, 64)
    assert build_drafter(drafter.spec, policy="priority").spec == drafter.spec
    assert build_drafter(drafter) is drafter
    assert isinstance(build_drafter("none"), NullDrafter)
    assert build_drafter("auto").spec == build_drafter(registry.AUTO).spec
    assert build_drafter("ngram(window=none)", policy="priority").window is None


def test_by_value_tiers_that_can_be_compared_are_one_drafter():
    drafter = build_drafter("unigram+copy(min_match=3)+ngram(order=4)")
    assert isinstance(drafter, ValueDrafter)
    assert (drafter.sources, drafter.min_match) == (("unigram", "copy", "ngram"), 3)
    assert drafter.spec == "unigram+copy(min_match=3)+ngram"
    assert build_drafter(drafter.spec).spec == drafter.spec
    for spec in ("copy", "ngram", "unigram", "ngram(mode=value)"):
        assert isinstance(build_drafter(spec), ValueDrafter)


@pytest.mark.parametrize(
    "spec",
    ["ngram(mode=backoff)", "ngram(order=3)", "copy+ngram(window=64)", "copy+copy", "copy+none"],
)
def test_by_value_others_are_asked_in_order_and_calibrated(spec):
    drafter = build_drafter(spec)
    assert isinstance(drafter, CalibratedDrafter)
    assert isinstance(drafter.inner, NGramDrafter | TieredDrafter)
    assert build_drafter(drafter.spec).spec == drafter.spec
    draft = drafter.start(ids(1, 2, 3, 4, 1, 2)).propose(2)
    assert draft.tokens.tolist() == [3, 4]
    assert draft.confidence.tolist() == [0.5, 0.5]


def test_by_priority_tiers_stay_what_they_are():
    kinds = [CopyDrafter, NGramDrafter, UnigramDrafter]
    tiers = build_drafter("copy+ngram+unigram", policy="priority").drafters
    assert [type(drafter) for drafter in tiers] == kinds
    assert type(build_drafter("ngram", policy="priority")) is NGramDrafter
    with pytest.raises(ValueError, match="policy must be one of value, priority, got 'best'"):
        build_drafter("copy", policy="best")


def test_only_the_sources_asked_for_are_drafted():
    text = ids(1, 2, 3, 4, 5, 6, 1, 2, 9, 9, 9, 1, 2)
    for spec, tiers in (("copy", {"copy"}), ("ngram", {"ngram"}), ("unigram", {"unigram"})):
        drafter = build_drafter(spec)
        draft = drafter.start(text).propose(3)
        assert len(draft) > 0
        assert {drafter.tiers[i] for i in draft.source} == tiers


@given(
    st.lists(st.floats(0.01, 0.99), max_size=12),
    st.lists(st.floats(1, 3), min_size=14, max_size=14),
)
def test_the_worthwhile_length_is_the_best_of_all(confidence, cost):
    def value(n):
        reach = np.cumprod(np.array(confidence[:n], np.float64))
        return (1 + reach.sum()) / cost[n + 1]

    best = worthwhile([np.array(confidence, np.float32)], np.array(cost, np.float32))
    values = [value(n) for n in range(len(confidence) + 1)]
    assert values[best] == pytest.approx(max(values), rel=1e-5)
    reach = np.cumprod(np.array(confidence, np.float64))
    nodes = worthwhile_nodes(reach, np.array(cost, np.float32))
    assert values[nodes] == pytest.approx(max(values), rel=1e-5)


@pytest.mark.parametrize(("alpha", "c", "gamma"), [(0.8, 0.1, 6), (0.5, 0.05, 3), (0.9, 0.02, 19)])
def test_the_worthwhile_length_is_that_of_theorem_3_8(alpha, c, gamma):
    """Equal acceptance, drafting for c a token: the gamma of the closed form's maximum."""
    n = np.arange(40)
    factor = (1 - alpha ** (n + 1)) / ((1 - alpha) * (n * c + 1))
    assert factor.argmax() == gamma
    cost = np.concatenate(([0], 1 + c * np.arange(40))).astype(np.float32)
    assert worthwhile([np.full(38, alpha, np.float32)], cost) == gamma


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


@pytest.mark.parametrize(
    ("spec", "part"),
    [
        ("cpy+ngram", "cpy"),
        ("copy+ngrm(order=4)", "ngrm"),
        ("copy+ngram(order=9)", "ngram(order=9)"),
        ("ngram(odrer=3)", "odrer=3"),
        ("ngram(order=3,order=4)", "order=4"),
        ("ngram(order)", "order"),
        ("ngram(order=)", "order="),
        ("ngram(order=x)", "ngram(order=x)"),
        ("copy+ngram(order=3", "ngram(order=3"),
        ("ngram(order=4)x", "ngram(order=4)x"),
        ("ngram(order=4,window=3)", "ngram(order=4,window=3)"),
        ("copy(min_match=0)", "copy(min_match=0)"),
        ("unigram(min_acceptance=2)", "unigram(min_acceptance=2)"),
        ("none(x=1)", "x=1"),
        ("copy+", ""),
        ("+copy", ""),
        ("copy++ngram", ""),
        ("", ""),
    ],
)
def test_errors_show_the_bad_part_of_the_string(spec, part):
    with pytest.raises(ValueError, match="^drafter: ") as error:
        build_drafter(spec)
    message, shown, mark = str(error.value).split("\n")
    assert repr(part) in message
    assert shown == "  " + spec
    begin, end = mark.index("^") - 2, len(mark) - 2
    assert spec[begin:end].rstrip("+") == part


@pytest.mark.parametrize("policy", ["value", "priority"])
@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ("copy(min_match=3000000000)", r"min_match must be in 1\.\.1073741824, got 3000000000"),
        ("copy(min_match=1073741825)", r"min_match must be in 1\.\.1073741824, got 1073741825"),
        ("ngram(window=2000000000)", r"window must be in 4\.\.1073741824, got 2000000000"),
        ("ngram(order=3,window=2)", r"window must be in 3\.\.1073741824, got 2"),
    ],
)
def test_numbers_no_structure_takes_are_refused_when_the_drafter_is_built(spec, said, policy):
    with pytest.raises(ValueError, match=said):
        build_drafter(spec, policy=policy)


def test_the_longest_match_that_can_be_asked_for_drafts_nothing():
    for policy in ("value", "priority"):
        session = build_drafter("copy(min_match=1073741824)", policy=policy).start(ids(1, 2, 1, 2))
        assert len(session.propose(4)) == 0


def test_registered_drafters_are_known_by_name():
    class Mine(Drafter):
        tiers = ("mine",)

        def __init__(self, size: int = 1):
            self.size = size

        def start(self, tokens):
            raise NotImplementedError

    register_drafter("mine", Mine)
    try:
        assert build_drafter("copy+mine(size=3)").inner.drafters[1].size == 3
        for name in ("mine", "copy", "auto"):
            with pytest.raises(ValueError, match="exists already"):
                register_drafter(name, Mine)
        for name in ("", "a+b", "a b", "1a"):
            with pytest.raises(ValueError, match="name must be"):
                register_drafter(name, Mine)
    finally:
        del registry._factories["mine"]


def test_bad_tokens_are_named_and_nothing_is_lost():
    for spec in ("copy", "ngram", "unigram"):
        session = build_drafter(spec).start(ids(1, 2, 3, 1, 2))
        for bad, error in [(np.array([1]), TypeError), (ids(4, -3), ValueError)]:
            with pytest.raises(error, match="token"):
                session.extend(bad)
        session.extend(ids(3))
        assert len(session.propose(2)) > 0
    with pytest.raises(ValueError, match="at least one drafter"):
        TieredDrafter([])
