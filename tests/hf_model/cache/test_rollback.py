"""The laws of every kind of layer: rolled back, it is as if nothing had been rejected."""

from __future__ import annotations

from contextlib import contextmanager

import pytest
import torch
from doubles import half_right, oracle
from layer_states import (
    GREEDY,
    PROMPT,
    assert_same_cache,
    cache_after,
    model_of,
    new_cache,
)
from transformers import DynamicCache, StaticCache

from benchmarks import tiny
from ngramspec import Speculator
from ngramspec.hf_model.cache.copies import MAX_PENDING_TOKENS
from ngramspec.hf_model.compat.caches import cache_argument

# Full attention; windows; convolutions beside attention; of keys and values inside it, with
# windows; an index of the keys.
CROPPED = (
    *("LlamaForCausalLM", "Gemma2ForCausalLM", "Lfm2ForCausalLM", "Lfm3ForCausalLM"),
    *("InklingForCausalLM", "DeepseekV32ForCausalLM"),
)
RECURRENT = ("BambaForCausalLM", "Qwen3NextForCausalLM", "ZayaForCausalLM")  # beside attention


@pytest.fixture(params=(*CROPPED, *RECURRENT))
def model(request):
    return model_of(request.param)


@pytest.fixture
def recurrent(request):
    return request.node.callspec.params["model"] in RECURRENT


@contextmanager
def interrupted(module, call, hook="register_forward_pre_hook"):
    """Interrupt the module's n-th call; the interrupt has to come through."""
    calls = []

    def interrupt(*_):
        calls.append(1)
        if len(calls) == call:
            raise KeyboardInterrupt

    handle = getattr(module, hook)(interrupt)
    try:
        with pytest.raises(KeyboardInterrupt):
            yield
    finally:
        handle.remove()


def test_after_every_step_the_cache_is_that_of_a_run_that_never_drafted(model, recurrent):
    """One with recurrent states may hold fewer tokens: those pending are run again."""
    text = model.generate(PROMPT, **GREEDY)[0].tolist()
    ours, committed, rejected, pending = new_cache(model), PROMPT[0].tolist(), [], []

    def check(event):
        committed.extend(event.verdict.emitted)
        rejected.extend(event.rejected)
        length = ours.get_seq_length()
        pending.append(len(committed) - 1 - length)
        assert_same_cache(ours, cache_after(model, torch.tensor([committed[:length]])))

    speculator = Speculator(half_right(text, tiny.VOCAB), 5, on_step=check)
    out = model.generate(PROMPT, **cache_argument(ours), custom_generate=speculator, **GREEDY)
    assert out[0].tolist() == text == committed
    assert len(rejected) > 5
    assert 0 in pending
    assert (0 < max(pending) < MAX_PENDING_TOKENS + 5) if recurrent else not any(pending)
    assert_same_cache(ours, cache_after(model, out[:, :-1]))


@pytest.mark.every(4)
def test_a_text_that_ends_inside_a_draft_leaves_nothing_pending(model):
    """With recurrent states, a last forward over the accepted tokens updates a kept cache."""
    text = model.generate(PROMPT, **GREEDY)[0].tolist()
    for end in range(12, 20):
        ours = new_cache(model)
        kwargs = GREEDY | {**cache_argument(ours), "eos_token_id": text[end]}
        speculator = Speculator(oracle([*text[: end + 1], *text[:10]]), 5)
        out = model.generate(PROMPT, custom_generate=speculator, **kwargs)
        assert_same_cache(ours, cache_after(model, out[:, :-1]))


@pytest.mark.every(6)
@pytest.mark.parametrize("call", [1, 4])
def test_an_interrupted_forward_leaves_no_trace(model, call):
    """The first layer has seen the draft, the last one has not."""
    text = model.generate(PROMPT, **GREEDY)[0].tolist()
    ours, speculator = new_cache(model), Speculator(half_right(text, tiny.VOCAB), 5)
    model.generate(PROMPT, custom_generate=Speculator("none"), **GREEDY)  # it may be probed
    with interrupted(model.model.layers[-1], call):
        model.generate(PROMPT, **cache_argument(ours), custom_generate=speculator, **GREEDY)
    assert speculator.drafter.closed == (call > 1)  # there is no session before the prefill
    length = ours.get_seq_length()
    so_far = torch.tensor([text[: max(length + 1, PROMPT.shape[1])]])
    same = cache_after(model, so_far[:, :length]) if length else new_cache(model)
    if length:
        assert_same_cache(ours, same)
    kwargs = {"do_sample": False, "max_new_tokens": 3}
    more = model.generate(so_far, **cache_argument(ours), **kwargs)
    assert torch.equal(more, model.generate(so_far, **cache_argument(same), **kwargs))
    again = model.generate(PROMPT, custom_generate=speculator, **GREEDY)
    assert again[0].tolist() == text  # everything works as before


@pytest.mark.parametrize("hook", ["register_forward_pre_hook", "register_forward_hook"])
@pytest.mark.parametrize("name", ["DeepseekV32ForCausalLM", "Qwen4ExpForCausalLM"])
def test_a_forward_is_interrupted_between_keys_and_their_index(name, hook):
    """One model adds keys before their index, the other one the index before its keys."""
    model = model_of(name)
    text = model.generate(PROMPT, **GREEDY)
    ours, drafter = new_cache(model), half_right(text[0].tolist(), tiny.VOCAB)
    model.generate(PROMPT, custom_generate=Speculator(drafter, 5), **GREEDY)  # it may be probed
    indexer = [each for each in model.modules() if type(each).__name__.endswith("Indexer")][-1]
    kwargs = GREEDY | {**cache_argument(ours), "custom_generate": Speculator(drafter, 5)}
    with interrupted(indexer, 4, hook):
        model.generate(PROMPT, **kwargs)
    length = ours.get_seq_length()
    assert length >= PROMPT.shape[1]
    left = GREEDY | {"max_new_tokens": text.shape[1] - length - 1}
    again = model.generate(text[:, : length + 1], **cache_argument(ours), **left)
    assert torch.equal(again, text)


@pytest.mark.every(8)
@pytest.mark.parametrize("kept", [0, 7, 9])  # windows have 8 positions
def test_an_interrupted_prefill_leaves_what_was_there(model, kept):
    ours = cache_after(model, PROMPT[:, :kept]) if kept else new_cache(model)
    speculator = Speculator()
    model.generate(PROMPT, custom_generate=speculator, **GREEDY)  # the model may be probed
    with interrupted(model.model.layers[-1], 1):
        model.generate(PROMPT, **cache_argument(ours), custom_generate=speculator, **GREEDY)
    if kept:
        assert_same_cache(ours, cache_after(model, PROMPT[:, :kept]))
    text = model.generate(PROMPT, **cache_argument(ours), **GREEDY)
    assert torch.equal(text, model.generate(PROMPT, **GREEDY))


@pytest.mark.parametrize("call", [1, 4])  # the prefill, or a later forward
@pytest.mark.parametrize("kept", [0, 7, 9])
def test_an_interrupt_leaves_a_static_cache_with_its_own_layers(kept, call):
    model = model_of("Gemma2ForCausalLM")
    text = model.generate(PROMPT, **GREEDY)
    ours = StaticCache(model.config, max_cache_len=64)
    own = [*ours.layers]
    with torch.no_grad():
        model(PROMPT[:, :kept], **cache_argument(ours)) if kept else None
    kwargs = GREEDY | {**cache_argument(ours), "custom_generate": Speculator(oracle(text[0]), 3)}
    with interrupted(model.model.layers[-1], call):
        model.generate(PROMPT, **kwargs)
    assert own == ours.layers
    (length,) = {int(each.get_seq_length()) for each in own}
    assert length == (kept if call == 1 else PROMPT.shape[1] + 8)
    for begin in (text[:, : max(length + 1, PROMPT.shape[1])], text):
        left = {"do_sample": False, "max_length": max(begin.shape[1] + 3, text.shape[1])}
        more = model.generate(begin, **cache_argument(ours), **left)
        assert torch.equal(more, model.generate(begin, **left))


def test_an_interrupted_prefill_leaves_no_layers_that_it_added(tiny):
    """A cache that was made without the model's config has no layers before its first forward."""
    cache = DynamicCache()
    with interrupted(tiny.lm_head, 1):
        tiny.generate(PROMPT, **cache_argument(cache), custom_generate=Speculator())
    assert not cache.layers
    plain = tiny.generate(PROMPT, **GREEDY)
    assert torch.equal(plain, tiny.generate(PROMPT, **cache_argument(cache), **GREEDY))


def test_plain_generate_goes_on_with_a_cache_that_was_kept(model):
    """One of the turns ends with the prefill's own token; a prompt is shorter than a kernel."""
    texts, caches = [], []
    for custom in (None, Speculator("copy(min_match=1)", 4)):
        ours, ids = new_cache(model), PROMPT[:, :1]
        for turn, (new, speculate) in enumerate([(9, 1), (1, 1), (6, 0), (12, 1), (6, 0)]):
            kwargs = {"max_new_tokens": new, "do_sample": False, "prefill_chunk_size": 5}
            kwargs["custom_generate"] = custom if speculate else None
            ids = model.generate(ids, **cache_argument(ours), **kwargs)
            ids = torch.cat((ids, PROMPT[:, turn : turn + 3]), dim=1)
        texts.append(ids)
        caches.append(ours)
    assert torch.equal(*texts)
    assert_same_cache(caches[1], caches[0])
