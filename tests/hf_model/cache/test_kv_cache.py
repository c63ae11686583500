"""Caches: what they hold after a stop, and what is refused with a remedy."""

from __future__ import annotations

import pytest
import torch
import transformers
from doubles import half_right, oracle
from families import build
from layer_states import GREEDY, PROMPT, model_of, new_cache
from transformers import DynamicCache

import ngramspec
from benchmarks import tiny as tiny_models
from ngramspec import Speculator, UnsupportedError
from ngramspec.hf_model.cache.kinds import KINDS
from ngramspec.hf_model.cache.kv_cache import KVCache
from ngramspec.hf_model.cache.layers import CacheLayer, DynamicAttention
from ngramspec.hf_model.compat.caches import cache_argument


class Stop(Exception):
    pass


@pytest.mark.parametrize("stop_after", [1, 2, 5, 12])
@pytest.mark.parametrize("how", ["streamer", "criterion", "processor", "length", "eos"])
def test_after_any_stop_the_cache_has_plain_generate_s_length(tiny, stop_after, how):
    text = tiny.generate(PROMPT, max_new_tokens=40, do_sample=False)[0].tolist()
    caches = []
    for speculator in (None, Speculator(oracle(text), 7), Speculator(half_right(text, 97), 7)):
        cache = DynamicCache(config=tiny.config)
        seen = []
        kwargs = {**cache_argument(cache), "do_sample": False, "max_new_tokens": 40}

        def count(*args, seen=seen):
            seen.append(1)
            if len(seen) == stop_after:
                raise Stop

        class Streamer:
            def put(self, tokens, count=count):
                if tokens.ndim == 1:
                    count()

            def end(self):
                pass

        if how == "streamer":
            kwargs["streamer"] = Streamer()
        elif how == "criterion":
            kwargs["stopping_criteria"] = [lambda ids, scores, count=count, **_: bool(count())]
        elif how == "processor":
            kwargs["logits_processor"] = [lambda ids, scores, count=count: count() or scores]
        elif how == "length":
            kwargs["max_new_tokens"] = stop_after
        else:
            kwargs["eos_token_id"] = text[10 + stop_after - 1]
        try:
            if speculator is None:
                tiny.generate(PROMPT, **kwargs)
            else:
                ngramspec.generate(tiny, PROMPT, speculator=speculator, **kwargs)
            stopped = how in ("length", "eos")
        except Stop:
            stopped = True
        assert stopped
        caches.append(cache)
    for ours in caches[1:]:
        assert ours.get_seq_length() == caches[0].get_seq_length()
        for mine, theirs in zip(ours.layers, caches[0].layers, strict=True):
            torch.testing.assert_close(mine.keys, theirs.keys, rtol=1e-4, atol=1e-5)
            torch.testing.assert_close(mine.values, theirs.values, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kept", [0, 6, 20])
def test_an_interrupted_prefill_over_windows_leaves_what_was_there(kept):
    """A window lets go of what it needs to go back: the interrupt itself has to come through."""
    model = build("gemma2 hybrid")  # windows of 12
    ids = torch.randint(3, 50, (1, 40), generator=torch.Generator().manual_seed(0))
    cache = DynamicCache(config=model.config)
    if kept:
        with torch.no_grad():
            model(ids[:, :kept], **cache_argument(cache))
    before = [(layer.get_seq_length(), layer.keys) for layer in cache.layers if kept]

    def interrupt(*_):
        raise Stop

    handle = model.model.layers[-1].register_forward_pre_hook(interrupt)
    drafter = half_right(ids[0].tolist(), 50)
    try:
        with pytest.raises(Stop):
            model.generate(ids, **cache_argument(cache), custom_generate=Speculator(drafter))
    finally:
        handle.remove()
    assert cache.get_seq_length() == kept
    for layer, (length, keys) in zip(cache.layers, before, strict=False):
        assert layer.get_seq_length() == length
        torch.testing.assert_close(layer.keys[:, :, -min(length, 11) :], keys[:, :, -11:])
    kwargs = {"max_new_tokens": 20, "do_sample": False}
    plain = model.generate(ids, **kwargs)
    assert torch.equal(plain, model.generate(ids, **cache_argument(cache), **kwargs))


def test_caches_that_cannot_be_rolled_back_are_refused_by_name(tiny):
    from transformers import MistralConfig

    sliding = MistralConfig(num_hidden_layers=2, sliding_window=4)
    assert KVCache(DynamicCache(config=sliding)).slides
    with pytest.raises(UnsupportedError, match="no key-value cache"):
        KVCache(None)


def test_every_kind_of_layer_can_be_rolled_back():
    for kind in {DynamicAttention, *(kind for kinds in KINDS.values() for kind in kinds)}:
        needed = ("truncate", "truncate_to", "states", "release")
        assert [each for each in needed if getattr(kind, each) is getattr(CacheLayer, each)] == []
        assert kind.convolves or (hasattr(kind, "compact") and hasattr(kind, "keep_rows"))


def test_branches_become_chains_and_the_statistics_say_why():
    for name, reason in [("Lfm2ForCausalLM", "convolutions"), ("DeepseekV32ForCausalLM", "index")]:
        speculator = Speculator(tree=8)
        ngramspec.generate(model_of(name), PROMPT, speculator=speculator, **GREEDY)
        assert [each for each in speculator.stats.chains if reason in each]


def test_what_cannot_be_rolled_back_is_refused_with_a_remedy():
    model = model_of("Lfm2ForCausalLM")
    static = {"cache_implementation": "static"} | GREEDY
    with pytest.raises(UnsupportedError, match="LinearAttentionLayer.*remove cache_impl"):
        ngramspec.generate(model, PROMPT, **static)
    with pytest.raises(UnsupportedError, match=r"width=8 .*convolutions.*use width='fit'"):
        ngramspec.generate(model, PROMPT, speculator=Speculator(width=8), **GREEDY)


def test_before_5_17_an_index_is_refused_under_sdpa(monkeypatch):
    """There a forward under a mask of bools attends to all keys that were not selected."""
    monkeypatch.setattr("ngramspec.hf_model.facts.has", lambda change: False)
    model = tiny_models.build(transformers.DeepseekV32ForCausalLM)
    with pytest.raises(UnsupportedError, match=r"DeepseekV32.*attn_implementation='eager'"):
        ngramspec.generate(model, PROMPT, **GREEDY)
    model.set_attn_implementation("eager")
    text = model.generate(PROMPT, **GREEDY)
    speculator = Speculator(half_right(text[0].tolist(), tiny_models.VOCAB), 5)
    assert torch.equal(text, ngramspec.generate(model, PROMPT, speculator=speculator, **GREEDY))


def test_layers_that_cannot_record_are_refused():
    """Before transformers 5.20 or so, a layer overwrites what it held."""
    made = new_cache(model_of("Lfm2ForCausalLM"))
    KVCache(made)
    made.layers[0].conv_states = None
    with pytest.raises(UnsupportedError, match="LinearAttentionLayer cannot be rolled back"):
        KVCache(made)


@pytest.mark.parametrize(
    ("name", "obstacle"),
    [
        ("DeepseekV4ForCausalLM", "merge several tokens into one entry"),
        ("MiniMaxForCausalLM", "states in a MiniMaxCache, which can be neither truncated"),
        ("xLSTMForCausalLM", "overwrites its states in an xLSTMCache"),
    ],
)
def test_caches_of_a_model_s_own_are_refused_by_what_is_in_the_way(name, obstacle):
    if not hasattr(transformers, name):
        pytest.skip(f"this transformers has no {name}")
    with pytest.raises(UnsupportedError, match=f"{name} cannot roll tokens back: .*{obstacle}"):
        ngramspec.generate(model_of(name), PROMPT, **GREEDY)
