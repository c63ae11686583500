"""Sampled trees: plain sampling's text, the exact distribution, and looser rules."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from conftest import tiny_llama
from doubles import ScriptedDrafter, bushy, oracle

import ngramspec
from ngramspec import Draft, Proposal, Speculator

IDS = torch.tensor([[5, 6, 7, 8, 5, 6, 7, 9, 5, 6]])


def run(model, ids, speculator, **kwargs):
    return model.generate(ids, custom_generate=speculator, max_new_tokens=60, **kwargs)


@pytest.mark.parametrize("ahead", [False, True])
@pytest.mark.parametrize("settings", [{}, {"temperature": 0.7, "top_k": 20}, {"top_p": 0.9}])
def test_sampled_trees_are_plain_sampling_with_the_same_seed(settings, ahead, monkeypatch):
    monkeypatch.setattr("ngramspec.decoding.setup.prefers_one_transfer", lambda device: ahead)
    model = tiny_llama(initializer_range=0.15)
    for seed in range(3):
        torch.manual_seed(seed)
        plain = model.generate(IDS, do_sample=True, max_new_tokens=60, **settings)
        state = torch.get_rng_state()
        for drafter in (bushy(plain[0].tolist(), 97, seed), oracle(plain[0].tolist())):
            for tree in (None, 19):
                if tree is None and drafter.guess(12, 9).parents is not None:
                    continue
                speculator = Speculator(drafter, 12, tree=tree)
                torch.manual_seed(seed)
                ours = run(model, IDS, speculator, do_sample=True, **settings)
                assert torch.equal(plain, ours)
                assert torch.equal(state, torch.get_rng_state())
                assert speculator.stats.accepted > 20
                if ahead:
                    assert speculator.stats.host_syncs == speculator.stats.target_calls


def test_a_generator_of_one_s_own():
    model = tiny_llama(initializer_range=0.15)
    torch.manual_seed(3)
    plain = model.generate(IDS, do_sample=True, max_new_tokens=60)
    generator = torch.Generator().manual_seed(3)
    before = torch.get_rng_state()
    ours = run(model, IDS, Speculator(), do_sample=True, generator=generator)
    assert torch.equal(plain, ours)
    assert torch.equal(before, torch.get_rng_state())


def test_siblings_are_tried_without_replacement_in_the_loop():
    """Stochastic trees in the real loop: chi-square over the first three of five tokens.

    A draft has fewer nodes than the text has tokens left: with fewer than five there would be no
    siblings beside a chain of two. The first sibling is usually a token that q overestimates: after
    its rejection, a q that still held it would accept what the residual rules out.
    """
    from scipy.stats import chisquare

    model = tiny_llama(vocab=4, initializer_range=0.15, bos_token_id=None, pad_token_id=None)
    ids, rows, calls = torch.tensor([[1, 2, 3, 1, 2]]), 40, 60
    with torch.no_grad():
        first = model(ids).logits[0, -1].softmax(-1)
        pairs = torch.stack([torch.cat((ids[0], torch.tensor([x]))) for x in range(4)])
        next_ = model(pairs).logits[:, -1].softmax(-1)
        triples = torch.stack(
            [torch.cat((pairs[x], torch.tensor([y]))) for x in range(4) for y in range(4)]
        )
        third = model(triples).logits[:, -1].softmax(-1)
    expected = (first[:, None] * next_).flatten()[:, None] * third
    expected = expected.flatten().double().numpy()
    rng = np.random.default_rng(0)
    q = np.array([0.7, 0.1, 0.1, 0.1], np.float32)
    ids4 = np.arange(4, dtype=np.int32)

    def guess(at, gamma):
        pair = rng.choice(4, 2, replace=False, p=q / q.sum())
        below = rng.choice(4, 1, p=q / q.sum())
        tokens = np.array([*pair, *below], np.int32)[:gamma]
        parents = np.array([-1, -1, 0], np.int32)[:gamma]
        n = len(tokens)
        starts = np.arange(0, 4 * n + 1, 4, dtype=np.int32)
        proposal = Proposal(starts, np.tile(ids4, n), np.tile(q, n))
        return Draft(tokens, parents, proposal=proposal)

    second = 0  # times that the first sibling was rejected and the other one accepted

    def count(event):
        nonlocal second
        second += event.parents == (-1, -1, 0) and list(event.verdict.accepted) == [1]

    drafter = ScriptedDrafter(guess, branches=True)
    speculator = Speculator(drafter, tree=3, on_step=count)
    counts = np.zeros(64)
    torch.manual_seed(0)
    for _ in range(calls):
        kwargs = {"do_sample": True, "max_new_tokens": 5, "speculator": speculator}
        out = ngramspec.generate(model, ids.repeat(rows, 1), **kwargs)[:, 5:8]
        np.add.at(counts, (out @ torch.tensor([16, 4, 1])).numpy(), 1)
    assert speculator.stats.drafter_faults == 0
    assert speculator.stats.accepted > 300
    assert second > 100
    assert chisquare(counts, rows * calls * expected / expected.sum()).pvalue > 1e-7


def test_lenience_and_typical_accept_more_than_the_exact_rule():
    model = tiny_llama(initializer_range=0.15)
    text = model.generate(IDS, max_new_tokens=60)[0].tolist()
    shares = {}
    for sample in (False, True):
        for name, rule in {
            "exact": {},
            "lenient": {"lenience": 0.2},
            "typical": {"verification": "typical", "epsilon": 0.02, "delta": 0.5},
        }.items():
            torch.manual_seed(0)
            speculator = Speculator(bushy(text, 97, right=0.4), tree=12, **rule)
            run(model, IDS, speculator, do_sample=sample)
            shares[sample, name] = speculator.stats.tokens_per_call
    for sample in (False, True):
        assert shares[sample, "lenient"] > shares[sample, "exact"]
        assert shares[sample, "typical"] > shares[sample, "exact"]


@pytest.mark.parametrize("ahead", [False, True])
def test_nan_scores_are_named(ahead, monkeypatch):
    monkeypatch.setattr("ngramspec.decoding.setup.prefers_one_transfer", lambda device: ahead)
    model = tiny_llama()
    with torch.no_grad():
        model.lm_head.weight[3] = float("nan")
    with pytest.raises(RuntimeError, match="no distribution.*position 10"):
        run(model, IDS, Speculator(), do_sample=True)
