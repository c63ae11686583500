"""Rollback: after any step the cache is as if the rejected tokens had never been there."""

from __future__ import annotations

import pytest
import torch
from doubles import half_right, oracle
from families import build
from layer_states import assert_close, model_of, new_cache
from transformers import DynamicCache

from ngramspec import Speculator, UnsupportedError
from ngramspec.hf_model.cache.copies import Snapshot, memory
from ngramspec.hf_model.cache.kv_cache import KINDS, KVCache
from ngramspec.hf_model.cache.layers import CacheLayer
from ngramspec.hf_model.compat.caches import cache_argument, cache_of

PROMPT = torch.tensor([[5, 6, 7, 8, 5, 6, 7, 9, 5, 6]])


class Stop(Exception):
    pass


def assert_same_cache(ours, plain):
    assert ours.get_seq_length() == plain.get_seq_length()
    for mine, theirs in zip(ours.layers, plain.layers, strict=True):
        torch.testing.assert_close(mine.keys, theirs.keys, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(mine.values, theirs.values, rtol=1e-4, atol=1e-5)


def cache_after(model, ids):
    """The cache of one forward over ``ids`` that never saw anything else."""
    cache = DynamicCache(config=model.config)
    with torch.no_grad():
        model(ids, **cache_argument(cache))
    return cache


def test_after_every_step_the_cache_is_that_of_a_run_that_never_drafted(tiny):
    text = tiny.generate(PROMPT, max_new_tokens=40, do_sample=False)[0].tolist()
    cache = DynamicCache(config=tiny.config)
    committed = PROMPT[0].tolist()
    rejected = []

    def check(event):
        committed.extend(event.verdict.emitted)
        rejected.extend(event.rejected)
        assert_same_cache(cache, cache_after(tiny, torch.tensor([committed[:-1]])))

    speculator = Speculator(half_right(text, 97), 5, on_step=check)
    kwargs = {"max_new_tokens": 40, "do_sample": False, **cache_argument(cache)}
    out = tiny.generate(PROMPT, custom_generate=speculator, **kwargs)
    assert out[0].tolist() == text == committed
    assert len(rejected) > 5


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
                import ngramspec

                ngramspec.generate(tiny, PROMPT, speculator=speculator, **kwargs)
            stopped = how in ("length", "eos")
        except Stop:
            stopped = True
        assert stopped
        caches.append(cache)
    for ours in caches[1:]:
        assert_same_cache(ours, caches[0])


def test_an_interrupt_in_the_middle_of_a_forward_rolls_every_layer_back(tiny):
    """Ctrl-C between two layers: the first layer has the new positions, the second has not."""
    text = tiny.generate(PROMPT, max_new_tokens=40, do_sample=False)[0].tolist()
    cache = DynamicCache(config=tiny.config)
    calls = []

    def interrupt(module, args, kwargs):
        calls.append(1)
        if len(calls) == 4:
            raise KeyboardInterrupt

    speculator = Speculator(half_right(text, 97), 5)
    kwargs = {"max_new_tokens": 40, "do_sample": False, "custom_generate": speculator}
    handle = tiny.model.layers[1].register_forward_pre_hook(interrupt, with_kwargs=True)
    try:
        with pytest.raises(KeyboardInterrupt):
            tiny.generate(PROMPT, **cache_argument(cache), **kwargs)
    finally:
        handle.remove()
    length = cache.get_seq_length()
    assert [layer.get_seq_length() for layer in cache.layers] == [length, length]
    assert_same_cache(cache, cache_after(tiny, torch.tensor([text[:length]])))
    assert speculator.drafter.closed == 1
    assert tiny.generate(PROMPT, **kwargs)[0].tolist() == text  # everything works as before


def test_an_interrupted_prefill_leaves_the_kept_cache_as_it_was(tiny):
    cache = cache_after(tiny, PROMPT)
    longer = torch.cat((PROMPT, torch.tensor([[1, 2, 3]])), dim=1)
    handle = tiny.model.layers[1].register_forward_pre_hook(
        lambda *_: (_ for _ in ()).throw(Stop())
    )
    try:
        with pytest.raises(Stop):
            tiny.generate(longer, **cache_argument(cache), custom_generate=Speculator())
    finally:
        handle.remove()
    assert_same_cache(cache, cache_after(tiny, PROMPT))


def test_an_interrupted_prefill_leaves_no_layers_that_it_added(tiny):
    """A cache that was made without the model's config has no layers before its first forward."""
    cache = DynamicCache()

    def interrupt(*_):
        raise Stop

    handle = tiny.lm_head.register_forward_pre_hook(interrupt)
    try:
        with pytest.raises(Stop):
            tiny.generate(PROMPT, **cache_argument(cache), custom_generate=Speculator())
    finally:
        handle.remove()
    assert not cache.layers
    kwargs = {"max_new_tokens": 20, "do_sample": False}
    plain = tiny.generate(PROMPT, **kwargs)
    assert torch.equal(plain, tiny.generate(PROMPT, **cache_argument(cache), **kwargs))


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


@pytest.mark.parametrize("chunk", [None, 5])
def test_turns_over_a_kept_cache_with_windows(chunk):
    """One of them ends with the prefill's own token; plain generate goes on where it ended."""
    model = build("gemma2 hybrid")  # windows of 12
    ids = torch.randint(3, 50, (1, 20), generator=torch.Generator().manual_seed(0))
    texts = []
    for custom in (None, Speculator("copy(min_match=1)", 4)):
        cache, now = DynamicCache(config=model.config), ids
        for turn, (new, speculate) in enumerate([(10, 1), (1, 1), (6, 0), (20, 1), (6, 0)]):
            kwargs = {"max_new_tokens": new, "do_sample": False, "prefill_chunk_size": chunk}
            kwargs["custom_generate"] = custom if speculate else None
            now = model.generate(now, **cache_argument(cache), **kwargs)
            now = torch.cat((now, ids[:, turn : turn + 7]), dim=1)
        texts.append(now)
    assert torch.equal(*texts)


def test_a_kept_cache_goes_on_in_the_next_turn(tiny):
    """Multi-turn chat: prompt, answer, longer prompt with the same cache."""
    caches, texts = [], []
    for custom in (None, Speculator(gamma=5)):
        cache = DynamicCache(config=tiny.config)
        ids = PROMPT
        for turn in range(3):
            kwargs = {"max_new_tokens": 20, "do_sample": False, **cache_argument(cache)}
            ids = tiny.generate(ids, custom_generate=custom, **kwargs)
            ids = torch.cat((ids, torch.tensor([[turn + 1, 5, 6]])), dim=1)
        caches.append(cache)
        texts.append(ids)
    assert torch.equal(*texts)
    assert_same_cache(caches[1], caches[0])


def test_a_returned_cache_is_plain_generate_s(tiny):
    kwargs = {"max_new_tokens": 30, "do_sample": False, "return_dict_in_generate": True}
    plain = tiny.generate(PROMPT, **kwargs)
    ours = tiny.generate(PROMPT, custom_generate=Speculator(gamma=6), **kwargs)
    assert_same_cache(cache_of(ours), cache_of(plain))


def test_caches_that_cannot_be_rolled_back_are_refused_by_name(tiny):
    from transformers import MistralConfig

    sliding = MistralConfig(num_hidden_layers=2, sliding_window=4)
    assert KVCache(DynamicCache(config=sliding)).slides
    with pytest.raises(UnsupportedError, match="no key-value cache"):
        KVCache(None)


TEXT = torch.tensor([[5, 6, 7, 8, 15, 16, 17, 9, 25, 26, 11, 3, 2, 14, 30, 31, 7, 8]])


@pytest.mark.parametrize("name", ["Gemma2ForCausalLM", "GraniteMoeHybridForCausalLM"])
def test_a_snapshot_of_a_recording_cache_does_not_record(name):
    """A layer that goes on recording would keep the text that it ought to drop."""
    model = model_of(name)
    used, plain, restored = (new_cache(model) for _ in range(3))
    recording = [at for at, layer in enumerate(used.layers) if hasattr(layer, "record_past")]
    assert recording
    used.activate_past_recording()
    with torch.no_grad():
        for cache in (used, plain):
            model(TEXT[:, :10], **cache_argument(cache))
        for at in recording:
            used.layers[at].crop(0)  # no position is rejected; it goes on recording
        snapshot = Snapshot(used)
        snapshot.restore(restored, used)
        assert all(used.layers[at].record_past for at in recording)
        assert not any(restored.layers[at].record_past for at in recording)
        for at in range(10, TEXT.shape[1]):
            scores = [
                model(TEXT[:, at : at + 1], **cache_argument(cache)).logits
                for cache in (restored, plain)
            ]
            assert_close(*scores)
    for at in recording:
        own, other = restored.layers[at], plain.layers[at]
        for name, value in vars(other).items():
            if isinstance(value, torch.Tensor):
                assert getattr(own, name).shape == value.shape, name
        assert memory(own) <= memory(used.layers[at]) + memory(other)


def test_every_kind_of_layer_can_be_rolled_back():
    for kind in {kind for kinds in KINDS.values() for kind in kinds}:
        needed = ("truncate", "truncate_to", "states", "release")
        assert [each for each in needed if getattr(kind, each) is getattr(CacheLayer, each)] == []
        assert kind.convolves or (hasattr(kind, "compact") and hasattr(kind, "keep_rows"))
