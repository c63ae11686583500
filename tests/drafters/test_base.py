"""What a drafter may return: what is refused, by name, and what of a stochastic draft is kept."""

from __future__ import annotations

import numpy as np
import pytest
from doubles import floats, ids

from ngramspec.draft import Draft, Proposal
from ngramspec.drafters.base import (
    DraftSession,
    ForwardingSession,
    check_draft,
    check_source_names,
    valid_prefix,
)

VOCAB = 97


def proposal_of(*nodes):
    """From (ids, probs) of each node."""
    starts = np.cumsum([0, *(len(tokens) for tokens, _ in nodes)]).astype(np.int32)
    tokens = [token for each, _ in nodes for token in each]
    return Proposal(starts, ids(*tokens), floats(*(p for _, probs in nodes for p in probs)))


def drawn(tokens, *nodes, parents=None):
    return Draft(
        ids(*tokens), None if parents is None else ids(*parents), None, proposal_of(*nodes)
    )


def arrays_of(draft):
    proposal = draft.proposal
    parts = () if proposal is None else (proposal.starts, proposal.tokens, proposal.probs)
    return [
        each
        for each in (draft.tokens, draft.parents, draft.confidence, draft.source, *parts)
        if each is not None
    ]


def test_what_is_checked_is_a_copy():
    whole = drawn([1, 2, 3], *[((1, 2, 3), (0.5, 0.25, 0.25))] * 3, parents=[-1, -1, 0])
    draft = Draft(
        whole.tokens, whole.parents, floats(0, 0.5, 1), whole.proposal, np.array([1, 0, 1], np.int8)
    )
    checked = check_draft(draft, 3, VOCAB, tree=True, sources=2)
    before = [each.tolist() for each in arrays_of(draft)]
    assert [each.tolist() for each in arrays_of(checked)] == before
    for each in arrays_of(draft):
        each[:] = -1
    assert [each.tolist() for each in arrays_of(checked)] == before


def test_views_and_read_only_arrays_are_as_good_as_others():
    reversed_, frozen = ids(1, 2, 3)[::-1], ids(3, 2, 1)
    frozen.flags.writeable = False
    for tokens in (reversed_, frozen):
        confidence = np.linspace(0, 1, 6, dtype=np.float32)[::2]
        assert check_draft(Draft(tokens, None, confidence), 3, 4).tokens.tolist() == [3, 2, 1]


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, -0.01, 1.0001])
def test_confidence_is_a_probability(value):
    with pytest.raises(ValueError, match="confidence must lie in 0..1, got"):
        check_draft(Draft(ids(1, 2), None, floats(0.5, value)), 2, VOCAB)
    check_draft(Draft(ids(1, 2, 3), None, floats(0.0, -0.0, 1.0)), 3, VOCAB)


@pytest.mark.parametrize("token", [-(2**31), -1, VOCAB, 2**31 - 1])
def test_ids_lie_in_the_vocabulary(token):
    with pytest.raises(ValueError, match=rf"draft tokens must lie in 0\.\.96, got {token}$"):
        check_draft(Draft(ids(1, token)), 2, VOCAB)
    with pytest.raises(ValueError, match=rf"proposal.tokens must lie in 0\.\.96, got {token}$"):
        check_draft(drawn([1], ((1, token), (0.5, 0.5))), 2, VOCAB)
    edge = drawn([0, 96], *[((0, 96), (0.5, 0.5))] * 2)
    assert check_draft(edge, 2, VOCAB).tokens.tolist() == [0, 96]


HALF = ((1, 2), (0.5, 0.5))
QUARTERS = (0.25, 0.25, 0.25, 0.25)
SIBLING = "node {} states another than its first sibling, node 0"


def stated(starts, tokens, probs, n=1):
    """``n`` nodes of token 1, with a proposal as it is."""
    return Draft(ids(*[1] * n), proposal=Proposal(ids(*starts), ids(*tokens), floats(*probs)))


# draft, message, and how many of its nodes are sound: those in front of the first wrong one
WRONG = {
    "twice": (drawn([1], ((1, 1), (0.5, 0.5))), "must differ, node 0 has 1 twice", 0),
    "twice, apart": (drawn([1, 2], HALF, ((5, 2, 4, 5), QUARTERS)), "node 1 has 5 twice", 1),
    "twice, all rising": (drawn([1, 2], HALF, ((2, 4, 4, 5), QUARTERS)), "node 1 has 4 twice", 1),
    "sibling's own": (
        drawn([1, 2], ((1,), (1.0,)), HALF, parents=[-1, -1]),
        SIBLING.format(1),
        1,
    ),
    "sibling's leftovers": (
        drawn([1, 2, 3], HALF, ((2, 1), (0.4, 0.6)), ((3,), (1.0,)), parents=[-1, -1, 0]),
        SIBLING.format(1),
        1,
    ),
    "sibling's probs": (
        drawn([1, 3, 2], HALF, ((3,), (1.0,)), ((1, 2), (0.4, 0.6)), parents=[-1, 0, -1]),
        SIBLING.format(2),
        2,
    ),
    "sibling's order": (
        drawn([1, 3, 2], HALF, ((3,), (1.0,)), ((2, 1), (0.5, 0.5)), parents=[-1, 0, -1]),
        SIBLING.format(2),
        2,
    ),
    "a token of none": (drawn([1, 3], HALF, HALF), "proposal of node 1 must hold its token 3", 1),
    "zero": (drawn([1], ((1, 2), (1.0, 0.0))), "must be > 0 and sum to 1, got sum 1$", 0),
    "negative": (drawn([1], ((1, 2, 3), (1.0, 0.5, -0.5))), "must be > 0", 0),
    "nan": (drawn([1, 1], HALF, ((1, 2), (0.5, np.nan))), "got sum nan", 1),
    "inf": (drawn([1], ((1, 2), (0.5, np.inf))), "got sum inf", 0),
    "above": (drawn([1], ((1, 2), (0.5, 0.5009))), r"got sum 1\.0009", 0),
    "below": (drawn([1, 2], HALF, ((1, 2), (0.5, 0.4995))), r"got sum 0\.9995", 1),
    "starts from 1": (stated([1, 2], [1, 2], [0.5, 0.5]), "starts must rise from 0 to 2", 0),
    "starts that stay": (stated([0, 0, 1], [1], [1], 2), "starts must rise from 0 to 1", 0),
    "starts whose differences overflow": (
        stated([0, 2**31 - 1, -2, 1], [1], [1], 3),
        "starts must rise from 0 to 1",
        0,
    ),
    "more than the vocabulary": (
        drawn([1], (range(VOCAB + 1), [1 / (VOCAB + 1)] * (VOCAB + 1))),
        "at most 97 ids for each node, got 98",
        0,
    ),
    "probs of another length": (
        stated([0, 1], [1], [0.5, 0.5]),
        "probs must have 1 entries, got 2",
        0,
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_proposals_that_break_algorithm_1_are_refused_from_the_fault_on(case):
    draft, message, sound = WRONG[case]
    with pytest.raises(ValueError, match=message):
        check_draft(draft, 8, VOCAB, tree=True)
    head = valid_prefix(draft, 8, VOCAB, tree=True, sources=1)
    assert head.tokens.tolist() == draft.tokens[:sound].tolist()
    assert (head.proposal is None) == (not sound)


def test_siblings_that_state_one_distribution_are_welcome():
    nodes = [((3, 1, 2), (0.2, 0.3, 0.5))] * 2 + [((7,), (1.0,))] * 1 + [((4, 5), (0.1, 0.9))] * 2
    draft = drawn([1, 2, 7, 5, 4], *nodes, parents=[-1, -1, 0, 1, 1])
    assert check_draft(draft, 8, VOCAB, tree=True).tokens.tolist() == [1, 2, 7, 5, 4]


def test_siblings_may_state_distributions_of_their_own_without_those_before():
    nodes = [HALF, ((2, 3), (0.5, 0.5)), ((7,), (1.0,)), HALF, ((8, 9), (0.5, 0.5))]
    draft = drawn([1, 3, 7, 2, 9], *nodes, parents=[-1, -1, 0, -1, -1])
    assert len(check_draft(draft, 8, VOCAB, tree=True)) == 5
    wrong = drawn([1, 3, 7, 2, 9], *nodes[:4], ((3, 9), (0.5, 0.5)), parents=[-1, -1, 0, -1, -1])
    with pytest.raises(ValueError, match="node 4 states another than its first sibling, node 0"):
        check_draft(wrong, 8, VOCAB, tree=True)
    assert len(valid_prefix(wrong, 8, VOCAB, tree=True, sources=1)) == 4


@pytest.mark.parametrize("m", [1, 3, 50_000])
def test_what_float32_rounds_is_forgiven_and_taken_out(m):
    rng = np.random.default_rng(m)
    for _ in range(10):
        scores = rng.normal(0, 2, m).astype(np.float32)
        probs = np.exp(scores - scores.max())
        probs = np.maximum(probs / probs.sum(), np.float32(1e-30))
        tokens = rng.permutation(m).astype(np.int32)
        draft = Draft(tokens[:1], None, None, Proposal(ids(0, m), tokens, probs))
        got = check_draft(draft, 1, m).proposal.probs
        assert got.dtype == np.float32
        assert abs(got.sum(dtype=np.float64) - 1) < 2**-23
        np.testing.assert_allclose(got, probs, rtol=1e-4)


def test_the_stated_distribution_is_divided_by_its_sum():
    """So nothing is left of a sum that is off by up to 1e-4, which large samples would show."""
    probs = np.full(2048, (1 + 9e-5) / 2048, np.float32)
    tokens = np.arange(2048, dtype=np.int32)
    draft = Draft(ids(7), None, None, Proposal(ids(0, 2048), tokens, probs))
    got = check_draft(draft, 1, 2048).proposal.probs
    assert got.tolist() == [1 / 2048] * 2048


def test_a_stochastic_draft_that_is_too_long_is_cut():
    draft = drawn([1, 2, 1, 2, 1], *[HALF] * 5)
    head = valid_prefix(draft, 3, VOCAB, tree=False, sources=1)
    assert head.tokens.tolist() == [1, 2, 1]
    assert head.proposal.starts.tolist() == [0, 2, 4, 6]


@pytest.mark.parametrize(
    "draft",
    [None, 3, Draft(ids(1, 99)), Draft("ab", proposal="x"), Draft(ids(1, 2), proposal="x")],
    ids=repr,
)
def test_of_anything_else_nothing_is(draft):
    assert len(valid_prefix(draft, 3, VOCAB, tree=False, sources=1)) == 0


def test_tiers_are_names():
    assert check_source_names(("a", "b")) == check_source_names(["a", "b"]) == ("a", "b")
    for bad in ("ab", None, 5, ([1], [2]), (1,), {"a"}, (np.str_("a"),)):
        with pytest.raises(TypeError, match="source_names must be a tuple of strings"):
            check_source_names(bad)
    for count in (0, 129):
        with pytest.raises(ValueError, match=rf"1\.\.128 source names, got {count}"):
            check_source_names(("t",) * count)


def test_every_method_is_passed_on():
    """But ``propose_after``, whose default asks ``propose``, which the session may have changed."""
    methods = {name for name in vars(DraftSession) if not name.startswith("_")}
    assert methods - vars(ForwardingSession).keys() == {"propose_after"}


class Noted:
    """Answers every call with its name and arguments."""

    def __getattr__(self, name):
        return lambda *given, **named: (name, given, named)


def test_arguments_and_answers_are_passed_on():
    session = ForwardingSession(Noted())
    assert session.propose(3, "cost", tree=True) == ("propose", (3, "cost"), {"tree": True})
    assert session.sizeof() == ("sizeof", (), {})
