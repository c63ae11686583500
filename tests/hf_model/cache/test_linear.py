"""Recurrent states: after a rejected draft they are as if there had been none."""

from __future__ import annotations

import pytest
import torch
import transformers
from doubles import half_right, oracle
from layer_states import GREEDY, PROMPT, assert_close, cache_after, model_of, new_cache

import ngramspec
from benchmarks import tiny
from ngramspec import Speculator, UnsupportedError
from ngramspec.hf_model.cache.copies import MAX_PENDING_TOKENS, Checkpoint
from ngramspec.hf_model.compat.caches import cache_argument, cache_of, parameter_of
from ngramspec.hf_model.compat.names import before
from ngramspec.hf_model.trials import why_not_continued

ATTENTION = ("BambaForCausalLM", "Qwen3NextForCausalLM", "ZayaForCausalLM")  # beside the state,
CLASSES = (*ATTENTION, "Mamba2ForCausalLM")  # and none
STATES = ("conv_states", "recurrent_states")


def assert_same_cache(ours, plain):
    for mine, theirs in zip(ours.layers, plain.layers, strict=True):
        for name in ("keys", "values"):
            if getattr(theirs, name, None) is not None:
                own, other = getattr(mine, name), getattr(theirs, name)
                assert_close(own, other)
        for name in STATES if hasattr(theirs, "conv_states") else ():
            for at, state in getattr(theirs, name).items():
                assert_close(getattr(mine, name)[at], state)


@pytest.mark.parametrize("name", ATTENTION)
def test_after_every_step_the_states_are_those_of_a_run_that_never_drafted(name):
    """The cache may hold fewer tokens than are committed: those pending are run again."""
    model = model_of(name)
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
    assert 0 < max(pending) < MAX_PENDING_TOKENS + 5
    assert_same_cache(ours, cache_after(model, out[:, :-1]))


@pytest.mark.parametrize("name", ATTENTION)
def test_a_text_that_ends_inside_a_draft_leaves_nothing_pending(name):
    """A last forward over the accepted tokens brings a kept cache to plain decoding's place."""
    model = model_of(name)
    text = model.generate(PROMPT, **GREEDY)[0].tolist()
    for end in range(12, 20):
        ours = new_cache(model)
        kwargs = GREEDY | {**cache_argument(ours), "eos_token_id": text[end]}
        speculator = Speculator(oracle([*text[: end + 1], *text[:10]]), 5)
        out = model.generate(PROMPT, custom_generate=speculator, **kwargs)
        assert_same_cache(ours, cache_after(model, out[:, :-1]))


@pytest.mark.parametrize("name", CLASSES)
def test_a_returned_cache_is_plain_generate_s(name):
    model = model_of(name)
    kwargs = GREEDY | {"return_dict_in_generate": True, "output_hidden_states": True}
    plain = model.generate(PROMPT, **kwargs)
    drafter = half_right(plain.sequences[0].tolist(), tiny.VOCAB)
    ours = ngramspec.generate(model, PROMPT, speculator=Speculator(drafter, 5), **kwargs)
    assert torch.equal(ours.sequences, plain.sequences)
    if cache_of(plain) is not None:
        assert_same_cache(cache_of(ours), cache_of(plain))
    assert len(ours.hidden_states) == len(plain.hidden_states)
    for mine, theirs in zip(ours.hidden_states, plain.hidden_states, strict=True):
        for own, other in zip(mine, theirs, strict=True):
            assert_close(own, other, within=1e-3)


@pytest.mark.parametrize("name", ATTENTION)
def test_an_interrupted_forward_leaves_no_trace(name):
    """The first layer has seen the draft, the last one has not."""
    model = model_of(name)
    text = model.generate(PROMPT, **GREEDY)[0].tolist()
    for stop in (1, 4, 6):
        ours, calls = new_cache(model), []

        def interrupt(*_, calls=calls, stop=stop):
            calls.append(1)
            if len(calls) == stop:
                raise KeyboardInterrupt

        speculator = Speculator(half_right(text, tiny.VOCAB), 5)
        handle = model.model.layers[-1].register_forward_pre_hook(interrupt)
        try:
            with pytest.raises(KeyboardInterrupt):
                model.generate(PROMPT, **cache_argument(ours), custom_generate=speculator, **GREEDY)
        finally:
            handle.remove()
        length = ours.get_seq_length()
        so_far = torch.tensor([text[: max(length + 1, PROMPT.shape[1])]])
        same = cache_after(model, so_far[:, :length]) if length else new_cache(model)
        if length:
            assert_same_cache(ours, same)
        kwargs = {"do_sample": False, "max_new_tokens": 3}
        more = model.generate(so_far, **cache_argument(ours), **kwargs)
        assert torch.equal(more, model.generate(so_far, **cache_argument(same), **kwargs))


@pytest.mark.parametrize("name", ATTENTION)
def test_plain_generate_goes_on_with_a_cache_that_was_kept(name):
    model, texts = model_of(name), []
    for custom in (None, Speculator("copy(min_match=1)", 4)):
        ours, ids = new_cache(model), PROMPT
        for turn, (new, speculate) in enumerate([(9, 1), (1, 1), (6, 0), (12, 1), (6, 0)]):
            kwargs = {"max_new_tokens": new, "do_sample": False, **cache_argument(ours)}
            ids = model.generate(ids, custom_generate=custom if speculate else None, **kwargs)
            ids = torch.cat((ids, PROMPT[:, turn : turn + 3]), dim=1)
        texts.append(ids)
    assert torch.equal(*texts)


def test_accepted_drafts_leave_nothing_pending():
    """Each forward then has the last committed token and its draft, and no more."""
    model = model_of("Qwen3NextForCausalLM")
    text = model.generate(PROMPT, **GREEDY)[0].tolist()
    widths = []
    speculator = Speculator(oracle(text), 5, on_step=lambda event: widths.append(event.width))
    ngramspec.generate(model, PROMPT, speculator=speculator, **GREEDY)
    assert set(widths[1:-1]) == {6}


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("MambaForCausalLM", "does not continue"),
        ("JambaForCausalLM", "does not continue"),
        ("RecurrentGemmaForCausalLM", "not in its cache"),
        ("Zamba2ForCausalLM", "clamps"),
        ("RwkvForCausalLM", "recurrent state outside the caches"),
    ],
)
def test_models_whose_wider_forward_is_another_are_refused_by_name(name, reason):
    with pytest.raises(UnsupportedError, match=rf"{name} .*{reason}"):
        ngramspec.generate(model_of(name), PROMPT, **GREEDY)


@pytest.mark.skipif(
    before("5.20") and not before("5.17"), reason="plain decoding fails in transformers 5.19"
)
def test_the_probe_leaves_alone_what_a_model_keeps_in_its_modules():
    """Plain decoding goes on from it, after a text that the caller has begun."""
    model = tiny.build(transformers.RecurrentGemmaForCausalLM)  # never probed before
    seen = []
    for speculator in (None, Speculator(unsupported="plain")):
        begun = cache_after(model, PROMPT[:, :8])
        asked = GREEDY | {**cache_argument(begun), "custom_generate": speculator}
        out = model.generate(PROMPT, **asked)
        states = [getattr(each, "recurrent_states", None) for each in model.modules()]
        seen.append((out, [each for each in states if each is not None]))
    assert torch.equal(seen[0][0], seen[1][0])
    assert len(seen[0][1]) > 0
    assert all(map(torch.equal, seen[0][1], seen[1][1]))


@pytest.mark.parametrize("name", CLASSES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_probe_lets_a_model_pass_in_any_dtype(name, dtype):
    model = tiny.build(getattr(transformers, name)).to(dtype)
    assert why_not_continued(model) is None


def test_a_checkpoint_puts_states_back_where_they_were():
    model = model_of("Mamba2ForCausalLM")
    made = new_cache(model)
    fresh = Checkpoint(made.layers)
    fresh.save()
    name = parameter_of(model.forward)
    with torch.no_grad():
        model(PROMPT, **{name: made})
        checkpoint = Checkpoint(made.layers)
        checkpoint.save()
        state = made.layers[0].recurrent_states[0]
        before = state.clone()
        model(PROMPT[:, :3], **{name: made})
    assert not torch.equal(state, before)
    checkpoint.restore()
    assert made.layers[0].recurrent_states[0] is state  # compiled forwards know the address
    assert torch.equal(state, before)
    kinds = [getattr(layer, kind) for layer in made.layers for kind in STATES]
    sizes = [each.nbytes for states in kinds for each in states.values()]
    assert checkpoint.nbytes == sum(sizes)
    fresh.restore()
    assert not made.has_previous_state()
    assert made.layers[0].recurrent_states[0] is None


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
