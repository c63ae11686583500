"""Greedy text through speculation equals plain generate, token for token, in float32."""

from __future__ import annotations

import math

import pytest
import torch
from conftest import tiny_llama
from doubles import half_right, liar, oracle, random_drafter
from families import build
from plain_text import same_text
from prompts import PROMPTS

import ngramspec
from ngramspec import Speculator

IDS = torch.tensor([[3, 1, 4, 1, 5]])
SPECS = [
    "auto",
    "copy",
    "copy(min_match=1)",
    "ngram",
    "ngram(order=2,window=64)",
    "unigram",
    "none",
]


def free_text(model, new_tokens):
    """The tokens of the baseline's text, after those of ``IDS``."""
    return model.generate(IDS, do_sample=False, max_new_tokens=new_tokens)[0].tolist()


def assert_same(model, expected, got, prompt_length):
    """Equal ids; a first divergence is forgiven only where two logits lie within 1e-4."""
    if torch.equal(expected, got):
        return
    n = min(expected.shape[1], got.shape[1])
    differs = (expected[0, :n] != got[0, :n]).nonzero()
    at = int(differs[0]) if len(differs) else n
    assert at >= prompt_length, "the prompt was changed"
    with torch.no_grad():
        top = model(expected[:, :at]).logits[0, -1].float().topk(2).values
    gap = float(top[0] - top[1])
    assert gap <= 1e-4, f"differs at token {at - prompt_length}, logits {gap} apart"
    print(f"near tie at token {at - prompt_length}: logits {gap} apart")


@pytest.mark.every(4)
@pytest.mark.parametrize("spec", SPECS)
@pytest.mark.parametrize("gamma", [1, 5, "heuristic"])
def test_tiny_model_every_drafter_and_gamma(tiny, spec, gamma):
    same_text(tiny, Speculator(spec, gamma), max_new_tokens=80)


@pytest.mark.parametrize("gamma", [1, 7, 63])
@pytest.mark.parametrize("new_tokens", [1, 2, 40])
def test_an_always_right_drafter_needs_the_least_target_calls(tiny, gamma, new_tokens):
    given = {"ids": IDS, "max_new_tokens": new_tokens}
    stats = same_text(tiny, lambda text: Speculator(oracle(text), gamma), **given)
    assert stats.target_calls == math.ceil((new_tokens - 1) / (gamma + 1))
    assert stats.emitted == new_tokens - 1
    assert stats.accepted == stats.verified == stats.drafted
    assert stats.alpha == (1.0 if stats.drafted else 0.0)


def test_an_always_wrong_drafter_costs_no_calls_more_than_plain(tiny):
    stats = same_text(tiny, lambda text: Speculator(liar(text, 97), 4), IDS, max_new_tokens=30)
    assert stats.target_calls == stats.emitted == 29
    assert stats.accepted == 0
    assert stats.verified == 28  # the last step has no room for a draft
    assert stats.tokens_per_call == 1.0
    assert stats.alpha == stats.acceptance_rate == 0.0


@pytest.mark.parametrize("seed", range(2))
def test_eos_in_the_middle_of_an_accepted_draft_ends_the_text(seed):
    model = tiny_llama(seed=seed)
    free = free_text(model, 40)
    kwargs = {"max_new_tokens": 40, "eos_token_id": [free[5 + seed + 7], 96], "pad_token_id": 0}
    for drafter in [oracle(free), half_right(free, 97), "auto"]:
        stats = same_text(model, Speculator(drafter, 16), IDS, **kwargs)
        assert stats.emitted <= seed + 7


def test_a_cut_at_eos_is_no_rejection(tiny):
    free = free_text(tiny, 40)
    eos = free[5 + 9]
    stop = free.index(eos, 5) - 5
    speculator = Speculator(oracle(free), 32)
    stats = same_text(tiny, speculator, IDS, max_new_tokens=40, eos_token_id=eos)
    assert stats.target_calls == 1
    assert stats.accepted == stats.verified == stats.emitted == stop
    assert stats.drafted == 32
    draft, accepted, verified = speculator.drafter.observed[0]
    assert (len(draft), accepted, verified) == (32, list(range(stop)), stop)


@pytest.mark.parametrize("new_tokens", [1, 2, 5])
def test_no_draft_passes_the_maximum_length(tiny, new_tokens):
    speculator = Speculator(oracle(free_text(tiny, new_tokens) + [0] * 64), 64)
    same_text(tiny, speculator, IDS, max_new_tokens=new_tokens)
    asked = speculator.drafter.asked
    assert all(at + gamma + 1 <= 5 + new_tokens for at, gamma in asked)
    assert asked or new_tokens < 5


@pytest.mark.parametrize(("positions", "first"), [(24, 0), (32, 0), (64, 30)])
def test_no_forward_passes_the_position_limit(positions, first):
    """Learned positions: a forward past the table would raise an IndexError."""
    model, ids = build("gpt2", n_positions=positions), torch.tensor([[3, 1, 4, 1, 5, 9, 2, 6]])
    most = positions - first  # plain ends at the last position; a draft knows nothing of it
    kwargs = {"max_new_tokens": 200, "position_ids": first + torch.arange(8)[None]}
    kwargs["stopping_criteria"] = [lambda ids, scores: ids.shape[1] > most]
    stats = same_text(model, lambda text: Speculator(oracle(text + [0] * 99), 64), ids, **kwargs)
    assert stats.emitted == most - 8
    assert stats.target_calls == 1


def test_token_type_ids_grow_with_the_draft():
    """What generate grows per token besides the mask and positions, grown for n tokens at once."""
    from ngramspec.hf_model.inputs import grow

    for name, expected in {
        "token_type_ids": [4, 5, 5, 5],
        "mm_token_type_ids": [4, 5, 0, 0],
        "position_ids": [4, 5, 6, 7],
        "attention_mask": [4, 5, 1, 1],
    }.items():
        assert grow(name, torch.tensor([[4, 5]]), 2).tolist() == [expected]
        assert grow(name, torch.tensor([[4, 5]]), 0).tolist() == [[4, 5]]


def test_chunked_prefill(tiny):
    ids, calls = torch.arange(40).view(1, 40) % 13 + 1, []
    hook = tiny.register_forward_pre_hook(
        lambda module, args, kwargs: calls.append(kwargs["input_ids"].shape[1]), with_kwargs=True
    )
    try:
        same_text(tiny, Speculator(gamma=4), ids, max_new_tokens=40, prefill_chunk_size=7)
    finally:
        hook.remove()
    assert calls[45:51] == [7, 7, 7, 7, 7, 5]  # after the baseline's forwards


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_runs_and_ends_alike(dtype):
    model = tiny_llama().to(dtype)
    same_text(model, Speculator("none"), IDS, max_new_tokens=40)
    got = ngramspec.generate(model, IDS, do_sample=False, max_new_tokens=40)
    assert got.shape == (1, 45)


@pytest.mark.slow
@pytest.mark.parametrize("which", range(len(PROMPTS)))
def test_forty_four_real_prompts_every_drafter_several_gammas(smollm2, which):
    kwargs = {**smollm2.encode(PROMPTS[which]), "do_sample": False, "max_new_tokens": 24}
    length = kwargs["input_ids"].shape[1]
    expected = smollm2.model.generate(**kwargs)
    assert expected.shape[1] > length + 1, "a one-token output tests nothing"
    text, vocab = expected[0].tolist(), smollm2.model.config.vocab_size
    drafters = [*SPECS, oracle(text), liar(text, vocab), half_right(text, vocab)]
    drafters.append(random_drafter(vocab))
    gammas = [1, 3, 8, 32, "heuristic", "auto"]
    for i, drafter in enumerate(drafters):  # over the prompts every drafter meets every gamma
        speculator = Speculator(drafter, gammas[(which + i) % len(gammas)])
        got = ngramspec.generate(smollm2.model, speculator=speculator, **kwargs)
        assert_same(smollm2.model, expected, got, length)
