"""Sampling: the same text as plain generate for the same seed, and the same generator after it."""

from __future__ import annotations

import pytest
import torch
from conftest import tiny_llama
from doubles import half_right, oracle, random_drafter

from ngramspec import Speculator

SETTINGS = [
    {},
    {"temperature": 0.7, "top_k": 20},
    {"temperature": 1.3, "top_p": 0.9, "repetition_penalty": 1.2},
    {"min_p": 0.05, "no_repeat_ngram_size": 3},
]


def both(model, ids, speculator, seed, **kwargs):
    """Plain and speculative output, and the generator's state after each."""
    results = []
    for custom in (None, speculator):
        torch.manual_seed(seed)
        out = model.generate(ids, do_sample=True, custom_generate=custom, **kwargs)
        results += [out, torch.get_rng_state()]
    return results


@pytest.mark.parametrize("settings", SETTINGS)
@pytest.mark.parametrize("seed", range(3))
def test_same_seed_same_text_same_generator_state(settings, seed):
    model = tiny_llama(initializer_range=0.15)
    ids = torch.tensor([[5, 6, 7, 8, 5, 6, 7, 9, 5, 6]])
    for spec in ["auto", "none", random_drafter(97, seed)]:
        speculator = Speculator(spec, 4)
        plain, state, ours, our_state = both(
            model, ids, speculator, seed, max_new_tokens=60, **settings
        )
        assert torch.equal(plain, ours)
        assert torch.equal(state, our_state)


@pytest.mark.parametrize("seed", range(4))
def test_drafts_that_are_often_right_draw_nothing_for_rejected_positions(seed):
    model = tiny_llama(initializer_range=0.15)
    ids = torch.tensor([[5, 6, 7, 8, 5, 6, 7, 9, 5, 6]])
    torch.manual_seed(seed)
    text = model.generate(ids, do_sample=True, max_new_tokens=60)[0].tolist()
    for drafter in [oracle(text), half_right(text, 97, seed)]:
        speculator = Speculator(drafter, 8)
        plain, state, ours, our_state = both(model, ids, speculator, seed, max_new_tokens=60)
        assert torch.equal(plain, ours)
        assert torch.equal(state, our_state)
        assert speculator.stats.accepted > 20


@pytest.mark.parametrize("seed", range(3))
def test_the_generator_stands_right_behind_eos(seed):
    model = tiny_llama(initializer_range=0.15)
    ids = torch.tensor([[5, 6, 7, 8, 5, 6, 7, 9, 5, 6]])
    torch.manual_seed(seed)
    text = model.generate(ids, do_sample=True, max_new_tokens=60)[0].tolist()
    eos = text[10 + 11]
    kwargs = {"max_new_tokens": 60, "eos_token_id": [eos], "pad_token_id": 0}
    plain, state, ours, our_state = both(model, ids, Speculator(oracle(text), 32), seed, **kwargs)
    assert plain.shape[1] < 70
    assert torch.equal(plain, ours)
    assert torch.equal(state, our_state)


def test_real_model_samples_the_same_text(smollm2, prompts):
    for seed, inputs in enumerate(prompts[2:4]):
        results = []
        for custom in (None, Speculator(gamma=5)):
            torch.manual_seed(seed)
            results.append(
                smollm2.model.generate(
                    **inputs,
                    do_sample=True,
                    temperature=0.7,
                    top_p=0.95,
                    max_new_tokens=24,
                    custom_generate=custom,
                )
            )
        assert torch.equal(*results)


def test_the_sampled_distribution_is_the_target_s():
    """Chi-square over pairs of tokens on a tiny vocabulary; one false alarm in a million runs."""
    from scipy.stats import chisquare

    model = tiny_llama(vocab=4, initializer_range=0.15, bos_token_id=None, pad_token_id=None)
    ids = torch.tensor([[1, 2, 3, 1, 2]])
    with torch.no_grad():
        first = model(ids).logits[0, -1].softmax(-1)
        pairs = torch.stack([torch.cat((ids[0], torch.tensor([x]))) for x in range(4)])
        second = model(pairs).logits[:, -1].softmax(-1)
    expected = (first[:, None] * second).flatten().double().numpy()
    counts = torch.zeros(16)
    speculator = Speculator("copy(min_match=1)", 3)
    torch.manual_seed(0)
    for _ in range(1500):
        out = model.generate(ids, do_sample=True, max_new_tokens=2, custom_generate=speculator)
        counts[4 * out[0, 5] + out[0, 6]] += 1
    assert chisquare(counts.numpy(), 1500 * expected / expected.sum()).pvalue > 1e-6


@pytest.mark.slow
@pytest.mark.parametrize("temperature", [0.7, 1.0])
def test_fifty_real_prompts_sample_the_same_text(smollm2, temperature):
    """Chains and trees in turn, the default drafter, one Speculator for all."""
    from prompts import PASSAGES, PROMPTS

    texts = [*PROMPTS, *(f"Go on with this text:\n\n{passage}" for passage in PASSAGES)][:50]
    speculators = [Speculator(), Speculator(tree=12)]
    settings = {"do_sample": True, "temperature": temperature, "max_new_tokens": 32}
    other = []
    for seed, text in enumerate(texts):
        results = []
        for custom in (None, speculators[seed % 2]):
            torch.manual_seed(seed)
            inputs = smollm2.encode(text)
            results.append(smollm2.model.generate(**inputs, custom_generate=custom, **settings))
        if not torch.equal(*results):
            other.append(seed)
    assert len(texts) == 50
    assert not other
    assert all(speculator.stats.accepted > 50 for speculator in speculators)
