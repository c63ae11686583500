"""Copies of a cache's states: checkpoints of recurrent states, and snapshots at one length."""

from __future__ import annotations

import pytest
import torch
import transformers
from doubles import oracle
from layer_states import GREEDY, PROMPT, assert_close, cache_after, model_of, new_cache

import ngramspec
from benchmarks import tiny
from ngramspec import Speculator, UnsupportedError
from ngramspec.hf_model.cache.copies import Checkpoint, Snapshot, copy_positions, memory
from ngramspec.hf_model.compat.caches import cache_argument, parameter_of
from ngramspec.hf_model.compat.package import before
from ngramspec.hf_model.trials import why_not_continued

CLASSES = ("BambaForCausalLM", "Qwen3NextForCausalLM", "ZayaForCausalLM", "Mamba2ForCausalLM")
TEXT = torch.tensor([[5, 6, 7, 8, 15, 16, 17, 9, 25, 26, 11, 3, 2, 14, 30, 31, 7, 8]])


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
    fresh.restore()
    assert not made.has_previous_state()
    assert made.layers[0].recurrent_states[0] is None


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


@pytest.mark.parametrize("windows", [True, False])
def test_layers_that_a_forward_added_are_copied(windows):
    """The layers of Dory run in loops, with one layer in the cache for each loop."""
    model = model_of("DoryForCausalLM")
    if not windows:
        config = type(model.config)(**model.config.to_diff_dict() | {"layer_types": None})
        config.layer_types = ["full_attention"] * config.num_hidden_layers
        model = type(model)(config).eval()
    used, copied = new_cache(model), new_cache(model)
    with torch.no_grad():
        model(TEXT[:, :10], **cache_argument(used))
        if windows:
            Snapshot(used).restore(copied, used)
        else:
            copy_positions(copied, used, 10)
        own, other = (model(TEXT[:, 10:], **cache_argument(each)).logits for each in (copied, used))
    assert len(copied.layers) == len(used.layers) > model.config.num_hidden_layers
    assert_close(own, other)
