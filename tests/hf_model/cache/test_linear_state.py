"""Convolutions and indexed attention: rolled back, they are as if nothing had been rejected."""

from __future__ import annotations

import pytest
import torch
import transformers
from doubles import half_right
from layer_states import GREEDY, PROMPT, assert_close, cache_after, model_of, new_cache

import ngramspec
from benchmarks import tiny
from ngramspec import Speculator, UnsupportedError
from ngramspec.hf_model.cache.kv_cache import KVCache
from ngramspec.hf_model.compat.caches import cache_argument

# Convolutions beside attention; of keys and values inside it, with windows; an index of the keys.
CLASSES = ("Lfm2ForCausalLM", "Lfm3ForCausalLM", "InklingForCausalLM", "DeepseekV32ForCausalLM")
STATES = ("keys", "values", "indexer_keys")


class Stop(Exception):
    pass


@pytest.fixture(params=CLASSES)
def model(request):
    return model_of(request.param)


def assert_same_cache(ours, plain):
    """The same layers, but for what a window or a convolution no longer needs."""
    for mine, theirs in zip(ours.layers, plain.layers, strict=True):
        if hasattr(mine, "get_seq_length"):
            assert mine.get_seq_length() == theirs.get_seq_length()
        for name in STATES:
            own, other = (getattr(each, name, None) for each in (mine, theirs))
            if other is not None:
                assert_close(own, other)
        for at, inputs in getattr(theirs, "conv_states", {}).items():
            assert_close(mine.conv_states[at], inputs)


def test_after_every_step_the_cache_is_that_of_a_run_that_never_drafted(model):
    text = model.generate(PROMPT, **GREEDY)[0].tolist()
    ours, committed, rejected = new_cache(model), PROMPT[0].tolist(), []

    def check(event):
        committed.extend(event.verdict.emitted)
        rejected.extend(event.rejected)
        assert_same_cache(ours, cache_after(model, torch.tensor([committed[:-1]])))

    speculator = Speculator(half_right(text, tiny.VOCAB), 5, on_step=check)
    out = model.generate(PROMPT, **cache_argument(ours), custom_generate=speculator, **GREEDY)
    assert out[0].tolist() == text == committed
    assert len(rejected) > 5


def test_an_interrupted_forward_leaves_no_trace(model):
    """The first layer has seen the draft, the last one has not."""
    text = model.generate(PROMPT, **GREEDY)[0].tolist()
    ours, calls = new_cache(model), []

    def interrupt(*_):
        calls.append(1)
        if len(calls) == 4:
            raise KeyboardInterrupt

    speculator = Speculator(half_right(text, tiny.VOCAB), 5)
    handle = model.model.layers[-1].register_forward_pre_hook(interrupt)
    try:
        with pytest.raises(KeyboardInterrupt):
            model.generate(PROMPT, **cache_argument(ours), custom_generate=speculator, **GREEDY)
    finally:
        handle.remove()
    length = ours.get_seq_length()
    assert length > PROMPT.shape[1]
    assert_same_cache(ours, cache_after(model, torch.tensor([text[:length]])))


@pytest.mark.parametrize("hook", ["register_forward_pre_hook", "register_forward_hook"])
@pytest.mark.parametrize("name", ["DeepseekV32ForCausalLM", "Qwen4ExpForCausalLM"])
def test_a_forward_is_interrupted_between_keys_and_their_index(name, hook):
    """One model adds keys before their index, the other one the index before its keys."""
    model = model_of(name)
    text = model.generate(PROMPT, **GREEDY)
    ours, calls = new_cache(model), []

    def interrupt(*_):
        calls.append(1)
        if len(calls) == 4:
            raise KeyboardInterrupt

    drafter = half_right(text[0].tolist(), tiny.VOCAB)
    model.generate(PROMPT, custom_generate=Speculator(drafter, 5), **GREEDY)  # it may be probed
    indexer = [each for each in model.modules() if type(each).__name__.endswith("Indexer")][-1]
    handle = getattr(indexer, hook)(interrupt)
    kwargs = GREEDY | {**cache_argument(ours), "custom_generate": Speculator(drafter, 5)}
    try:
        with pytest.raises(KeyboardInterrupt):
            model.generate(PROMPT, **kwargs)
    finally:
        handle.remove()
    length = ours.get_seq_length()
    assert length >= PROMPT.shape[1]
    left = GREEDY | {"max_new_tokens": text.shape[1] - length - 1}
    again = model.generate(text[:, : length + 1], **cache_argument(ours), **left)
    assert torch.equal(again, text)


@pytest.mark.parametrize("kept", [0, 7])
def test_an_interrupted_prefill_leaves_what_was_there(model, kept):
    ours = cache_after(model, PROMPT[:, :kept]) if kept else new_cache(model)

    def interrupt(*_):
        raise Stop

    handle = model.model.layers[-1].register_forward_pre_hook(interrupt)
    try:
        with pytest.raises(Stop):
            model.generate(PROMPT, **cache_argument(ours), custom_generate=Speculator(), **GREEDY)
    finally:
        handle.remove()
    if kept:
        assert_same_cache(ours, cache_after(model, PROMPT[:, :kept]))
    text = model.generate(PROMPT, **cache_argument(ours), **GREEDY)
    assert torch.equal(text, model.generate(PROMPT, **GREEDY))


@pytest.mark.parametrize("chunk", [None, 5])
def test_plain_generate_goes_on_with_a_cache_that_was_kept(model, chunk):
    texts, caches = [], []
    for custom in (None, Speculator("copy(min_match=1)", 4)):
        ours, ids = new_cache(model), PROMPT
        for turn, (new, speculate) in enumerate([(9, 1), (1, 1), (6, 0), (12, 1), (6, 0)]):
            kwargs = {"max_new_tokens": new, "do_sample": False, "prefill_chunk_size": chunk}
            kwargs["custom_generate"] = custom if speculate else None
            ids = model.generate(ids, **cache_argument(ours), **kwargs)
            ids = torch.cat((ids, PROMPT[:, turn : turn + 3]), dim=1)
        texts.append(ids)
        caches.append(ours)
    assert torch.equal(*texts)
    assert_same_cache(caches[1], caches[0])


def test_a_prompt_shorter_than_the_kernel(model):
    prompt = PROMPT[:, :1]
    text = model.generate(prompt, **GREEDY)
    speculator = Speculator(half_right(text[0].tolist(), tiny.VOCAB), 5)
    assert torch.equal(text, ngramspec.generate(model, prompt, speculator=speculator, **GREEDY))


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
    model = tiny.build(transformers.DeepseekV32ForCausalLM)
    with pytest.raises(UnsupportedError, match=r"DeepseekV32.*attn_implementation='eager'"):
        ngramspec.generate(model, PROMPT, **GREEDY)
    model.set_attn_implementation("eager")
    text = model.generate(PROMPT, **GREEDY)
    speculator = Speculator(half_right(text[0].tolist(), tiny.VOCAB), 5)
    assert torch.equal(text, ngramspec.generate(model, PROMPT, speculator=speculator, **GREEDY))


def test_layers_that_cannot_record_are_refused():
    """Before transformers 5.20 or so, a layer overwrites what it held."""
    made = new_cache(model_of("Lfm2ForCausalLM"))
    KVCache(made)
    made.layers[0].conv_states = None
    with pytest.raises(UnsupportedError, match="LinearAttentionLayer cannot be rolled back"):
        KVCache(made)
