"""Sampling: plain generate's text and generator for the same seed; and the sampler by itself."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from any_model import tiny_chat
from conftest import tiny_llama
from doubles import bushy, half_right, oracle, random_drafter
from plain_text import PROMPT as IDS
from transformers import StopStringCriteria

import ngramspec
from ngramspec import Speculator
from ngramspec.decoding.group import LockstepGroup
from ngramspec.decoding.row import Row
from ngramspec.draft import Draft
from ngramspec.verification.sampler import StopRules, TokenSampler

SETTINGS = [
    {},
    {"temperature": 0.7, "top_k": 20},
    {"temperature": 1.3, "top_p": 0.9, "repetition_penalty": 1.2},
    {"min_p": 0.05, "no_repeat_ngram_size": 3},
    {"eos_token_id": [18, 23], "pad_token_id": 0},  # which end the texts inside of drafts
]


def sampled(model, ids, speculator, seed, **kwargs):
    """Plain output without a Speculator, else speculative, and the generator's state after it."""
    torch.manual_seed(seed)
    out = model.generate(ids, do_sample=True, custom_generate=speculator, **kwargs)
    return out, torch.get_rng_state()


@pytest.mark.every(6)
@pytest.mark.parametrize(("seed", "ahead"), [(0, False), (1, True)])
@pytest.mark.parametrize("settings", SETTINGS)
def test_same_seed_same_text_same_generator_state(settings, seed, ahead, monkeypatch):
    """Nothing is drawn for rejected positions, or for the branches of a tree."""
    monkeypatch.setattr("ngramspec.decoding.setup.prefers_one_transfer", lambda device: ahead)
    model = tiny_llama(initializer_range=0.15)
    plain, state = sampled(model, IDS, None, seed, max_new_tokens=60, **settings)
    text = plain[0].tolist()
    assert len(text) == (50 if "eos_token_id" in settings else 70)
    for drafter, tree in (
        ("auto", None),
        (random_drafter(97, seed), None),
        (half_right(text, 97, seed), None),
        (oracle(text), None),
        (bushy(text, 97, seed), 19),
    ):
        speculator = Speculator(drafter, 8, tree=tree)
        ours, our_state = sampled(model, IDS, speculator, seed, max_new_tokens=60, **settings)
        assert torch.equal(plain, ours)
        assert torch.equal(state, our_state)
        assert speculator.stats.host_syncs == speculator.stats.target_calls or not ahead
    assert speculator.stats.accepted > (len(text) - 10) // 3


def test_a_generator_of_one_s_own():
    model = tiny_llama(initializer_range=0.15)
    plain, _ = sampled(model, IDS, None, 3, max_new_tokens=60)
    generator = torch.Generator().manual_seed(3)
    before = torch.get_rng_state()
    ours = ngramspec.generate(model, IDS, do_sample=True, max_new_tokens=60, generator=generator)
    assert torch.equal(plain, ours)
    assert torch.equal(before, torch.get_rng_state())


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
            model.generate(IDS, custom_generate=speculator, do_sample=sample, max_new_tokens=60)
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
        model.generate(IDS, custom_generate=Speculator(), do_sample=True)


class Spoils:
    """A processor that leaves no distribution in some rows at its n-th call."""

    def __init__(self, value, rows=slice(None), at=6):
        self.value, self.rows, self.left = value, rows, at

    def __call__(self, ids, scores):
        self.left -= 1
        if not self.left:
            scores = scores.clone()
            scores[self.rows, :: 1 if self.value < 0 else 40] = self.value
        return scores


def failed(call):
    """The error of a sampled call, and the states of torch's generator around it."""
    torch.manual_seed(2)
    with pytest.raises(RuntimeError, match=r"no distribution|probability tensor contains"):
        call()
    return torch.get_rng_state()


@pytest.mark.parametrize("value", [-math.inf, math.inf, math.nan])
@pytest.mark.parametrize("rows", [slice(None), slice(0, 1), slice(2, 3)])
@pytest.mark.parametrize("at", [1, 6])
def test_scores_that_are_no_distribution_draw_nothing(value, rows, at):
    """Every row is checked before the first one draws."""
    model = tiny_llama(initializer_range=0.15)
    ids = torch.tensor([[5, 6, 7, 8, 5, 6, 7, 9, 5, 6], [7, 8, 9, 7, 8, 9, 7, 8, 9, 7], [4] * 10])
    ids = ids[:1] if rows == slice(None) else ids
    settings = {"do_sample": True, "max_new_tokens": 20}
    torch.manual_seed(2)
    text = model.generate(ids, **settings)[0].tolist()

    def call(custom=None):
        processors = [Spoils(value, rows, at)]
        model.generate(ids, logits_processor=processors, custom_generate=custom, **settings)

    plain = failed(call)
    for drafter in ["none", oracle(text), random_drafter(97)]:
        assert torch.equal(failed(lambda drafter=drafter: call(Speculator(drafter, 4))), plain)


def nothing_after(model, token):
    """Have the model's head give -inf for every token that follows one token."""
    read, own = {}, model.lm_head.forward

    def forward(states):
        logits = own(states)
        after = read["ids"][:, -logits.shape[1] :] == token
        return logits.masked_fill(after[..., None], -math.inf)

    def keep(module, args, kwargs):
        read["ids"] = kwargs["input_ids"]

    model.model.register_forward_pre_hook(keep, with_kwargs=True)
    model.lm_head.forward = forward


@pytest.mark.parametrize("ahead", [False, True])
@pytest.mark.parametrize("new", [0, 1, 5])
def test_a_generator_is_left_where_the_scores_end(ahead, new, monkeypatch):
    """Also if a step's tokens are sampled at all positions at once, and after accepted drafts."""
    monkeypatch.setattr("ngramspec.decoding.setup.prefers_one_transfer", lambda device: ahead)
    model = tiny_llama(initializer_range=0.15)
    settings = {"do_sample": True, "max_new_tokens": 20}
    torch.manual_seed(2)
    text = model.generate(IDS, **settings)[0].tolist()
    nothing_after(model, text[9 + new])
    drawn = text[10:].index(text[9 + new]) + 1 if new else 0
    plain = failed(lambda: model.generate(IDS, **settings))
    torch.manual_seed(2)
    for _ in range(drawn):
        torch.empty(97).exponential_()
    assert torch.equal(torch.get_rng_state(), plain)
    for drafter in ["none", oracle(text), random_drafter(97)]:
        speculator = Speculator(drafter, 8)

        def call(generator=None, speculator=speculator):
            ngramspec.generate(model, IDS, speculator=speculator, generator=generator, **settings)

        assert torch.equal(failed(call), plain)
        own = torch.Generator().manual_seed(2)
        failed(lambda own=own, call=call: call(own))
        assert torch.equal(own.get_state(), plain)


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


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64])
def test_greedy_tokens_on_a_cpu_are_those_of_generate(dtype):
    """The argmax is torch's of a float32 copy: the first of equals, and NaN before all."""
    sampler = TokenSampler(None, StopRules(()), None, None, None)
    prompt = torch.zeros(2, 1, dtype=torch.int64)
    group = LockstepGroup([Row(None), Row(None)], sampler, None, None, prompt=prompt)
    torch.manual_seed(0)
    logits = torch.randn(2, 40, 1000, dtype=dtype)[:, ::2]  # rows that do not touch
    logits[0, 0] = 1.0
    logits[0, 1, 7:] = float("-inf")
    logits[0, 2, [50, 20, 30]] = float("inf")
    logits[0, 3, [600, 400]] = float("nan")
    logits[1] = logits[1].round()  # ties everywhere
    expected = logits.to(torch.float32).argmax(dim=-1)
    assert expected[0, [0, 2, 3]].tolist() == [0, 20, 400]
    for each in (logits, logits.requires_grad_()):
        assert not sampler.fetches_at_once
        group.begin_step()
        for row, tokens in zip(group.rows, expected, strict=True):
            row.take(Draft(tokens[:19].numpy().astype(np.int32)))
        for position in range(20):
            tokens = group.choose(range(2), each, None)
            assert tokens == expected[:, position].tolist()
            for row, token in zip(group.rows, tokens, strict=True):
                row.advance(token)
        assert each.argmax(-1).tolist() == expected.tolist()  # as at once, on a device


def test_stop_strings_read_the_tokens_on_the_host():
    """Stop strings read tokens on the host; custom criteria read those on the device."""
    stop = StopRules([StopStringCriteria(tiny_chat()[1], ["ab"])])
    a, b = ord("a") - 31, ord("b") - 31
    ids = torch.tensor([[a, b], [b, a]])

    def answers(criteria=()):
        stop.custom = list(criteria)
        by_row = stop.of_rows(ids[:, -1].tolist(), 2, lambda: ids)
        seen = stop.of_batch(2, lambda: ids.to("meta"), None)
        return [was or now for was, now in zip(by_row, seen, strict=True)]

    assert answers() == [True, False]
    devices = []
    assert answers([lambda ids, scores: devices.append(ids.device.type) or False]) == [True, False]
    assert devices == ["meta"]
