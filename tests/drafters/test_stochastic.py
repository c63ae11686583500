"""Drafts drawn from counts: the proposals they hand over, and the text's distribution."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from conftest import tiny_llama
from doubles import ids
from plain_text import same_text
from scipy.stats import chisquare

from ngramspec import Speculator, build_drafter
from ngramspec.drafters.base import check_draft
from ngramspec.drafters.priority import CalibratedDrafter
from ngramspec.drafters.stochastic import SamplingSession

TEXT = np.array([1, 2, 3, 1, 2, 4, 1, 2, 3, 5, 1, 2], np.int32)


def session_of(spec, tokens=TEXT, seed=0):
    session = build_drafter(spec, policy="priority").start(tokens)
    session.begin_sampling(1.0, (seed,))
    return session


def test_the_proposal_is_the_distribution_of_the_counts():
    session = session_of("ngram(order=3,sample=True)")
    drawn = np.zeros(6)
    for _ in range(2000):
        draft = check_draft(session.propose(3), 3, 6)
        ids, probs = draft.proposal.of(0)  # after 1 2: twice 3, once 4
        assert dict(zip(ids.tolist(), probs.tolist(), strict=True)) == pytest.approx(
            {3: 2 / 3, 4: 1 / 3}
        )
        drawn[draft.tokens[0]] += 1
    assert chisquare(drawn[[3, 4]], [2000 * 2 / 3, 2000 / 3]).pvalue > 1e-7
    assert drawn.sum() == drawn[[3, 4]].sum()


def test_temperature_sharpens_it_and_the_request_s_is_taken_if_asked():
    for spec, temperature in [
        ("ngram(order=3,sample=True,temperature=0.5)", None),
        ("ngram(order=3,sample=True,temperature=request)", 0.5),
        ("copy+ngram(order=3,sample=True,temperature=request)", 0.5),
    ]:
        session = session_of(spec)
        if temperature is not None:
            session.begin_sampling(temperature, (1, 2))
        session = getattr(session, "sessions", [session])[-1]
        _, probs = session.propose(1).proposal.of(0)
        assert sorted(probs.tolist()) == pytest.approx([1 / 5, 4 / 5])


def test_unigram_draws_from_all_counts():
    session = session_of("unigram(sample=True,min_acceptance=0.0)")
    ids, probs = session.propose(5).proposal.of(0)
    assert dict(zip(ids.tolist(), probs.tolist(), strict=True)) == pytest.approx(
        {token: np.mean(token == TEXT) for token in set(TEXT.tolist())}
    )


@pytest.mark.parametrize("spec", ["ngram(order=3,sample=True)", "unigram(sample=True)"])
def test_the_same_seed_drafts_the_same_and_leaves_the_generator_alone(spec):
    drafts, state = [], torch.get_rng_state()
    for seed in ((1, 0, 9), (1, 0, 9), (1, 1, 9), (2, 0, 9)):  # call, row, committed tokens
        session = session_of(f"{spec}+ngram(order=2,sample=True)")
        session.begin_sampling(1.0, seed)
        drafts.append([session.propose(8).tokens.tolist() for _ in range(5)])
    assert torch.equal(state, torch.get_rng_state())
    assert drafts[0] == drafts[1]
    assert drafts[1] != drafts[2] != drafts[3] != drafts[1]


@pytest.mark.parametrize("value", [0, -1.0, "hot", None])
def test_bad_temperatures_are_named(value):
    with pytest.raises(ValueError, match="temperature must be"):
        build_drafter(f"ngram(sample=True,temperature={value})")


def test_drawn_drafts_grow_again_where_they_stand():
    """Their length is decided before; one token more is drawn to learn whether it would stand."""
    drafter = build_drafter("ngram(order=2,sample=True)", policy="priority")
    rng = np.random.default_rng(0)
    cost = (1 + 0.14 * np.arange(-1, 17).clip(0)).astype(np.float32)
    text = np.tile(np.arange(5, 25, dtype=np.int32), 60)  # one continuation each
    session = CalibratedDrafter(drafter).start(text[:60])
    session.begin_sampling(1.0, (0,))
    owner = session.drafter
    lengths = []
    for _ in range(100):  # a poor stretch
        lengths.append(len(session.propose(16, cost)))
        session.extend(rng.integers(5, 25, 1, np.int32))
    at = 60
    while at < 1100:
        drafted = session.propose(16, cost).tokens
        lengths.append(len(drafted))
        right = int(np.cumprod(drafted == text[at : at + len(drafted)]).sum())
        session.extend(text[at : at + right + 1])
        at += right + 1
    assert owner.samples
    assert np.mean(lengths[60:100]) < 1
    assert max(lengths[-60:]) >= 3  # without that one it would stay at 2


def test_rows_and_calls_draw_each_for_itself(monkeypatch):
    """Where sampling leaves torch's global generator alone, drafts must not be the same again."""
    seeds = []
    begin = SamplingSession.begin_sampling

    def watched(session, temperature, seed):
        seeds.append(seed)
        begin(session, temperature, seed)

    monkeypatch.setattr(SamplingSession, "begin_sampling", watched)
    model = tiny_llama(initializer_range=0.15)
    generator = torch.Generator().manual_seed(3)
    kwargs = {"do_sample": True, "max_new_tokens": 4, "generator": generator}
    speculator = Speculator("ngram(order=2,sample=True)", 3)
    for _ in range(2):
        model.generate(torch.ones(2, 6).long(), custom_generate=speculator, **kwargs)
    assert len(seeds) == len(set(seeds)) == 4  # two rows in each call


RUNS = 600


@pytest.mark.slow
@pytest.mark.parametrize(
    ("spec", "gamma", "own", "ahead"),
    [
        ("ngram(order=2,sample=True)", 3, False, False),
        ("ngram(order=2,sample=True)", 3, False, True),
        ("ngram(order=2,sample=True)", "auto", True, False),
        ("unigram(sample=True)", 3, False, True),
        ("unigram(sample=True,min_acceptance=0.0)+copy(min_match=1)", "auto", True, True),
    ],
)
def test_text_drafted_at_random_has_the_target_s_distribution(spec, gamma, own, ahead, monkeypatch):
    monkeypatch.setattr("ngramspec.decoding.setup.prefers_one_transfer", lambda device: ahead)
    generator = torch.Generator().manual_seed(0) if own else None
    model = tiny_llama(vocab=4, initializer_range=0.15, bos_token_id=None, pad_token_id=None)
    ids = torch.tensor([[1, 2, 3, 1, 2, 0, 3, 1]])
    with torch.no_grad():
        first = model(ids).logits[0, -1].softmax(-1)
        pairs = torch.stack([torch.cat((ids[0], torch.tensor([x]))) for x in range(4)])
        second = model(pairs).logits[:, -1].softmax(-1)
        triples = torch.stack(
            [torch.cat((pairs[x], torch.tensor([y]))) for x in range(4) for y in range(4)]
        )
        third = model(triples).logits[:, -1].softmax(-1)
    expected = ((first[:, None] * second).flatten()[:, None] * third).flatten().double().numpy()
    speculator = Speculator(spec, gamma)
    counts = np.zeros(64)
    torch.manual_seed(0)
    kwargs = {"custom_generate": speculator} | ({"generator": generator} if own else {})
    for _ in range(RUNS):
        out = model.generate(ids, do_sample=True, max_new_tokens=3, **kwargs)
        a, b, c = out[0, 8:].tolist()
        counts[16 * a + 4 * b + c] += 1
    assert speculator.stats.drafter_faults == 0
    accepted = speculator.stats.accepted + speculator.stats.prefill_accepted
    assert accepted > (RUNS / 8 if gamma == 3 else 0)  # costs decide, under "auto"
    assert chisquare(counts, RUNS * expected / expected.sum()).pvalue > 1e-7


@pytest.mark.parametrize("spec", ["ngram(sample=True)", "unigram(sample=True)"])
def test_match_gives_the_text_of_the_seed_whatever_was_drawn(spec):
    speculator = Speculator(spec, verification="match")
    model = tiny_llama(initializer_range=0.15)
    same_text(model, speculator, seed=5, do_sample=True, max_new_tokens=40)


def test_a_tree_is_sampled_without_replacement_from_what_it_states():
    text = ids(1, 2, 3, 1, 2, 4, 1, 2, 5, 1, 2, 6, 1, 2, 3, 1, 2)
    counts = {}
    for seed in range(400):
        session = build_drafter("ngram(order=2,sample=true)", policy="priority").start(text)
        session.begin_sampling(1.0, (seed,))
        draft = check_draft(session.propose(9, tree=True), 9, 10, tree=True)
        children = draft.children()
        first = tuple(draft.tokens[children[0]].tolist())
        assert len(set(first)) == 3
        assert sorted(draft.proposal.of(0)[0].tolist()) == [3, 4, 5, 6]
        counts[first[0]] = counts.get(first[0], 0) + 1
        assert all(draft.tokens[each].tolist() == [1] for each in children[1:4])
        assert all(len(each) <= 2 for each in children[1:])
    assert 0.3 < counts[3] / 400 < 0.5  # two of five
    assert len(session.propose(0, tree=True)) == 0
