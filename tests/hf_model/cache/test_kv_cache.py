"""Caches: what they hold after a stop, and what is refused with a remedy."""

from __future__ import annotations

import pytest
import transformers
from doubles import InterruptedStreamer, half_right, oracle
from layer_states import GREEDY, PROMPT, assert_same_cache, model_of
from transformers import DynamicCache

import ngramspec
from ngramspec import Speculator, UnsupportedError
from ngramspec.hf_model.cache.kv_cache import KVCache
from ngramspec.hf_model.compat.caches import cache_argument


class Stop(Exception):
    pass


@pytest.mark.parametrize("stop_after", [1, 5])
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

        if how == "streamer":
            kwargs["streamer"] = InterruptedStreamer(1 + stop_after)
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
        except (Stop, KeyboardInterrupt):
            stopped = True
        assert stopped
        caches.append(cache)
    for ours in caches[1:]:
        assert_same_cache(ours, caches[0])


def test_caches_that_cannot_be_rolled_back_are_refused_with_a_remedy():
    offloaded = DynamicCache()
    offloaded.offloading = True
    update = {"update": lambda self, *states: states}
    quantized = type("QuantizedCache", (DynamicCache,), update)()
    for cache, message in (
        (None, "no key-value cache"),
        (offloaded, "offloading.*remove cache_implementation"),
        (quantized, "QuantizedCache.*remove cache_implementation"),
    ):
        with pytest.raises(UnsupportedError, match=message):
            KVCache(cache)


def test_branches_become_chains_and_the_statistics_say_why():
    for name, reason in [("Lfm2ForCausalLM", "convolutions"), ("DeepseekV32ForCausalLM", "index")]:
        speculator = Speculator(tree=8)
        ngramspec.generate(model_of(name), PROMPT, speculator=speculator, **GREEDY)
        assert [each for each in speculator.stats.limits if reason in each]


def test_what_cannot_be_rolled_back_is_refused_with_a_remedy():
    model = model_of("Lfm2ForCausalLM")
    static = {"cache_implementation": "static"} | GREEDY
    with pytest.raises(UnsupportedError, match="LinearAttentionLayer.*remove cache_impl"):
        ngramspec.generate(model, PROMPT, **static)
    with pytest.raises(UnsupportedError, match=r"width=8 .*convolutions.*use width='fit'"):
        ngramspec.generate(model, PROMPT, speculator=Speculator(width=8), **GREEDY)


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
