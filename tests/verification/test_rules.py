"""The rules of verification against exact distributions: pure functions, many samples."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.stats import chisquare

from ngramspec import Draft, Proposal
from ngramspec.draft import EMPTY_DRAFT
from ngramspec.verification import rejection as sampled
from ngramspec.verification.rejection import (
    BatchNoise,
    default_generator,
    draw,
    speculative_tokens,
)
from ngramspec.verification.rule import Rule, lenient_tokens, proposal_tensor, typical_tokens

SAMPLES = 250_000
LEAST = 1e-7  # p-value: a right implementation fails less than once in a million runs of the suite
VOCAB = 6
P = torch.tensor([0.35, 0.25, 0.2, 0.1, 0.1, 0.0])
Q = torch.tensor([0.1, 0.4, 0.05, 0.3, 0.0, 0.15])


def without_replacement(q: torch.Tensor, k: int, rows: int, generator) -> torch.Tensor:
    """k children for each row, drawn from q one after another, none twice; int64 (rows, k)."""
    noise = torch.empty((rows, len(q))).exponential_(generator=generator)
    return (q / noise).topk(k, dim=1).indices  # exponential races: the order of drawing


def speculate(p, q, k, rows=SAMPLES, lenience=1.0, seed=0):
    """Children and tokens of many independent positions."""
    generator = torch.Generator().manual_seed(seed)
    if q is None:
        children = torch.randperm(VOCAB, generator=generator)[:k].expand(rows, k)
        draft_probs = None
    else:
        children = without_replacement(q, k, rows, generator)
        draft_probs = given_before(q, children)
    tokens = speculative_tokens(p.expand(rows, -1), children, draft_probs, lenience, generator)
    return children, tokens


def fits(tokens, p) -> float:
    """The p-value of the tokens' counts under p; tokens of probability 0 must not occur."""
    counts = torch.bincount(tokens.flatten(), minlength=len(p)).double().numpy()
    expected = p.double().numpy()
    assert counts[expected == 0].sum() == 0
    live = expected > 0
    return chisquare(counts[live], counts.sum() * expected[live] / expected[live].sum()).pvalue


def without(q, tokens):
    """Rows of q without the tokens, int64 (rows, n), divided by what is left."""
    left = q.expand(len(tokens), -1).scatter(1, tokens, 0.0)
    return left / left.sum(1, keepdim=True)


def given_before(q, children):
    """The distribution of each of k children given those before it, (k, rows, vocab)."""
    each = [without(q, children[:, :at]) for at in range(children.shape[1])]
    return torch.stack(each) if each else None


def output_of(p, children, qs):
    """Algorithm 1 over children of their own distributions: P(each token), by its definition."""
    if not children:
        return p
    x, q = children[0], qs[0]
    accept = min(1.0, p[x] / q[x])
    rest = np.maximum(p - q, 0)
    out = (1 - accept) * (
        output_of(rest / rest.sum(), children[1:], qs[1:]) if rest.sum() else 0 * p
    )
    out[x] += accept
    return out


R = torch.tensor([0.3, 0.0, 0.3, 0.1, 0.2, 0.1])  # of a second drafter,
S = torch.tensor([0.0, 0.1, 0.1, 0.2, 0.5, 0.1])  # and a third


@pytest.mark.parametrize("order", [(Q, R), (R, Q, S), (Q, Q, R)], ids=["two", "three", "mixed"])
def test_children_of_several_drafters_leave_the_targets_distribution(order):
    rows, generator = SAMPLES, torch.Generator().manual_seed(3)
    children, qs = torch.empty((rows, 0), dtype=torch.int64), []
    for q in order:
        own = without(q, children)
        children = torch.cat((children, draw(own, generator)[:, None]), 1)
        qs.append(own)
    stacked = torch.stack(qs)
    tokens = speculative_tokens(P.expand(rows, -1), children, stacked, 1.0, generator)
    assert fits(tokens, P) > LEAST
    same = torch.Generator().manual_seed(5)
    row = int((P[children[:, 0]] < order[0][children[:, 0]]).nonzero()[0])  # may be rejected
    first, those = children[[row]].expand(20000, -1), stacked[:, [row]].expand(-1, 20000, -1)
    tokens = speculative_tokens(P.expand(20000, -1), first, those, 1.0, same)
    each = [q[row].double().numpy() for q in qs]
    expected = output_of(P.double().numpy(), first[0].tolist(), each)
    assert fits(tokens, torch.from_numpy(np.round(expected, 7))) > LEAST


def test_siblings_that_state_their_own_become_a_distribution_for_each():
    starts = np.array([0, 2, 4, 6, 7], np.int32)
    ids = np.array([1, 2, 1, 2, 3, 4, 5], np.int32)
    probs = np.array([0.5, 0.5, 0.5, 0.5, 0.25, 0.75, 1], np.float32)
    parents = np.array([-1, -1, -1, 0], np.int32)
    draft = Draft(np.array([1, 2, 4, 5], np.int32), parents, None, Proposal(starts, ids, probs))
    table = proposal_tensor([(draft, [0, 1, 2]), (draft, [3]), (draft, [])], VOCAB, P.device)
    assert table.shape == (3, 3, VOCAB)
    assert table[:, 0].tolist() == [
        [0, 0.5, 0.5, 0, 0, 0],
        [0, 0, 1, 0, 0, 0],  # without the first
        [0, 0, 0, 0.25, 0.75, 0],
    ]
    assert table[:, 1].tolist() == [[0, 0, 0, 0, 0, 1], [0] * 6, [0] * 6]
    assert table[:, 2].abs().sum() == 0
    assert proposal_tensor([(draft, [0, 1]), (draft, [3])], VOCAB, P.device).shape == (2, 2, VOCAB)
    assert proposal_tensor([(draft, [])], VOCAB, P.device) is None


# As warpers leave them: as it is, sharper, and with masked tokens, which must not come out.
TARGETS = {"P": P, "sharp": P**2 / (P**2).sum(), "masked": torch.tensor([0.0, 0.5, 0, 0.5, 0, 0])}


@pytest.mark.parametrize("p", TARGETS.values(), ids=TARGETS)
@pytest.mark.parametrize("k", [0, 1, 2, 4])
@pytest.mark.parametrize("q", [None, Q], ids=["one-hot", "sparse"])
def test_the_token_has_the_target_s_distribution(q, k, p):
    _, tokens = speculate(p, q, k, rows=SAMPLES if p is P else 100_000)
    assert fits(tokens, p) > LEAST


def test_a_wrong_residual_is_seen(monkeypatch):
    monkeypatch.setattr(sampled, "_residual", lambda p, q, index, lenience: p)
    assert fits(speculate(P, Q, 1)[1], P) < 1e-12
    assert fits(speculate(P, None, 1)[1], P) < 1e-12


def test_children_drawn_with_replacement_in_mind_are_seen(monkeypatch):
    """Without taking x out of q the second child is judged by a distribution it is not from."""
    own = speculative_tokens
    monkeypatch.setitem(
        globals(), "speculative_tokens", lambda p, x, q, *more: own(p, x, q[:1].expand_as(q), *more)
    )
    assert fits(speculate(P, Q, 2)[1], P) < 1e-12


@pytest.mark.parametrize("lenience", [1.0, 0.4, 0.1])
def test_one_child_is_accepted_as_often_as_the_paper_says(lenience):
    """Leviathan et al. 2023, Table 5: E[sum min(p / l, q)]; compared with a draw, sum p q."""
    children, tokens = speculate(P, Q, 1, lenience=lenience)
    observed = (tokens == children[:, 0]).double().mean().item()
    alpha = torch.minimum(P / lenience, Q).sum().item()
    assert abs(observed - alpha) < 5 * (alpha * (1 - alpha) / SAMPLES) ** 0.5 + 1e-6
    drawn = draw(P.expand(SAMPLES, -1), torch.Generator().manual_seed(1))
    matched = (drawn == children[:, 0]).double().mean().item()
    assert abs(matched - float((P * Q).sum())) < 6e-3


@pytest.mark.parametrize("lenience", [0.7, 0.3])
@pytest.mark.parametrize("k", [1, 2, 4])
@pytest.mark.parametrize("q", [None, Q], ids=["one-hot", "sparse"])
def test_lenience_keeps_every_probability_below_its_bound(q, k, lenience):
    rows = 100_000
    _, tokens = speculate(P, q, k, lenience=lenience, rows=rows)
    shares = torch.bincount(tokens, minlength=VOCAB).double() / rows
    bound = P.double() / lenience
    slack = 5 * (bound.clamp(max=1.0) / rows) ** 0.5
    assert (shares <= bound + slack).all()
    assert shares[P == 0].sum() == 0


def test_chains_and_trees_keep_the_joint_distribution_of_two_tokens():
    """Two levels: two children each, sparse q; the second level's p depends on the first token."""
    generator = torch.Generator().manual_seed(3)
    second = torch.softmax(torch.randn((VOCAB, VOCAB), generator=generator), -1)
    q2 = torch.softmax(torch.randn((VOCAB, VOCAB), generator=generator), -1)
    for q, k in [(None, 1), (Q, 1), (None, 2), (Q, 2)]:
        _, first = speculate(P, q, k, seed=5)
        p_next = second[first]
        if q is None:
            children = torch.arange(k).expand(SAMPLES, k)
            last = speculative_tokens(p_next, children, None, generator=generator)
        else:
            noise = torch.empty((SAMPLES, VOCAB)).exponential_(generator=generator)
            children = (q2[first] / noise).topk(k, dim=1).indices
            qs = given_before(q2[first], children)
            last = speculative_tokens(p_next, children, qs, generator=generator)
        joint = (P[:, None] * second).flatten()
        assert fits(VOCAB * first + last, joint) > LEAST


def test_positions_with_fewer_children_are_padded():
    children = torch.tensor([[1, 2], [3, -1], [-1, -1]]).repeat(100_000, 1)
    generator = torch.Generator().manual_seed(0)
    tokens = speculative_tokens(
        P.expand(len(children), -1), children, None, generator=generator
    ).view(-1, 3)
    for column in range(3):
        assert fits(tokens[:, column], P) > LEAST


def test_equal_distributions_are_always_accepted():
    children, tokens = speculate(Q, Q, 1)
    assert (tokens == children[:, 0]).all()


def test_a_residual_without_mass_falls_back_to_what_was_before():
    p = torch.tensor([[1.0 - 2**-24, 0.0, 0.0]]).expand(4, -1)
    q = torch.tensor([[1.0, 0.0, 0.0]]).expand(4, -1)
    rest = sampled._residual(p, q, torch.zeros((4, 1), dtype=torch.int64), 1.0)
    assert torch.equal(rest, p)
    rest = sampled._residual(p, None, torch.zeros((4, 1), dtype=torch.int64), 1.0)
    assert torch.equal(rest, p)


@pytest.mark.parametrize("rows", [1, 3])
def test_draw_is_torch_s_multinomial(rows):
    probs = torch.softmax(torch.randn((rows, 5003)), -1)
    for seed in range(5):
        torch.manual_seed(seed)
        theirs = [torch.multinomial(probs, 1).squeeze(1) for _ in range(3)]
        state = torch.get_rng_state()
        torch.manual_seed(seed)
        ours = [draw(probs) for _ in range(3)]
        assert all(map(torch.equal, theirs, ours))
        assert torch.equal(state, torch.get_rng_state())


def test_drawing_ahead_is_drawing_one_after_another():
    probs = torch.softmax(torch.randn((2, 5, 101)), -1)
    tree, chain = [0, 1, 1, 2, 2], [0, 1, 2, 0, 0]
    for depths, paths in (
        ([tree, tree], ([0, 1, 3], [0, 2, 4], [0, 1])),
        ([tree, chain], ([0, 1, 3], [0, 1, 2])),
    ):
        torch.manual_seed(1)
        noise = BatchNoise(2, None)
        places = [(row, depth) for row, own in enumerate(depths) for depth in own]
        flat = probs.view(-1, probs.shape[-1])
        tokens = draw(flat, noise=noise.of(flat, places)).view(2, -1)
        again = draw(flat, noise=noise.of(flat, places)).view(2, -1)  # none is drawn twice
        assert torch.equal(tokens, again)
        for path in paths:
            torch.manual_seed(1)
            ahead = BatchNoise(2, None)
            ahead.of(flat, places)
            ahead.rewind(len(path))
            state = torch.get_rng_state()
            torch.manual_seed(1)
            one_by_one = torch.stack([draw(probs[:, at]) for at in path], 1)
            rows = [row for row in range(2) if [depths[row][at] for at in path] == [0, 1, 2]]
            rows = rows or [0, 1]
            assert torch.equal(tokens[rows][:, path], one_by_one[rows])
            assert torch.equal(state, torch.get_rng_state())


@pytest.mark.parametrize("kind", ["mps", "xpu"])
def test_the_random_numbers_of_any_accelerator_are_those_that_torch_uses_there(kind, monkeypatch):
    own, device = torch.Generator().manual_seed(5), torch.device(kind, 0)
    module = torch.get_device_module(kind)
    monkeypatch.setattr(
        module, "get_rng_state", lambda given: own.get_state() if given == device else None
    )
    monkeypatch.setattr(module, "set_rng_state", lambda state, given: own.set_state(state))
    found = default_generator(device)
    before = found.get_state()
    first = torch.rand(3, generator=own)
    found.set_state(before)
    assert torch.equal(torch.rand(3, generator=own), first)


def test_lenient_greedy_takes_the_best_child_that_is_likely_enough():
    p = torch.tensor([[0.5, 0.3, 0.2], [0.5, 0.3, 0.2], [0.5, 0.3, 0.2], [0.5, 0.3, 0.2]])
    children = torch.tensor([[2, 1], [2, -1], [1, 0], [-1, -1]])
    assert lenient_tokens(p, children, 0.5).tolist() == [1, 0, 0, 0]
    assert lenient_tokens(p, children, 0.4).tolist() == [1, 2, 0, 0]
    assert lenient_tokens(p, children, 1.0).tolist() == [0, 0, 0, 0]


def test_typical_accepts_less_likely_tokens_where_entropy_is_high():
    flat = torch.full((1, 100), 0.01)
    sharp = torch.tensor([[0.97] + [0.03 / 99] * 99])
    children, own = torch.tensor([[7]]), torch.tensor([0])
    # H = ln 100: the threshold is 0.3 / 100, below the child's 0.01
    assert typical_tokens(flat, children, 0.09, 0.3, own).tolist() == [7]
    assert typical_tokens(sharp, children, 0.09, 0.3, own).tolist() == [0]
    assert typical_tokens(flat, children, 0.09, 1.01, own).tolist() == [0]


@pytest.mark.parametrize("bad", [float("nan"), float("-inf"), float("inf")])
def test_scores_that_are_no_distribution_are_marked(bad):
    scores = torch.zeros((3, 4))
    scores[1] = torch.full((4,), bad) if bad == float("-inf") else torch.tensor([0, bad, 0, 0])
    tokens = Rule(do_sample=True).choose(scores, [(EMPTY_DRAFT, 0)] * len(scores)).tolist()
    assert tokens[1] == -1
    assert min(tokens[0], tokens[2]) >= 0


@pytest.fixture(params=[torch.bfloat16, torch.float16, torch.float64], ids=str)
def default_dtype(request):
    torch.set_default_dtype(request.param)
    yield
    torch.set_default_dtype(torch.float32)


def chosen(rule_settings):
    """What a rule chooses at many positions, with and without a proposal."""
    rows = 300
    drafts = [
        Draft(np.array([token], np.int32), proposal=proposal)
        for token in (1, 3)
        for proposal in (None, Proposal(*(np.array(each, dtype) for each, dtype in STATED)))
    ]
    found = []
    for draft in drafts:
        generator = torch.Generator().manual_seed(0)
        rule = Rule(do_sample=True, generator=generator, **rule_settings)
        found.append(rule.choose(P.log().expand(rows, -1), [(draft, 0)] * rows))
    return torch.stack(found)


STATED = [([0, 3], np.int32), ([1, 3, 5], np.int32), ([0.4, 0.35, 0.25], np.float32)]
SETTINGS = [{}, {"lenience": 0.5}, {"verification": "typical"}, {"verification": "match"}]
EXPECTED = [chosen(each) for each in SETTINGS]  # under float32


def test_torch_s_default_dtype_changes_nothing(default_dtype):
    """Uniform numbers of few bits, above all, would bias what is accepted."""
    for settings, expected in zip(SETTINGS, EXPECTED, strict=True):
        assert torch.equal(chosen(settings), expected)
