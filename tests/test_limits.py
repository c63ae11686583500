"""What limited a run is counted, and logged once."""

from __future__ import annotations

import pickle

import pytest
import torch
from any_model import tiny_chat
from batches import batch
from conftest import tiny_llama
from families import build
from transformers import LlamaForCausalLM, pipeline

import ngramspec
from ngramspec import DecodeStats, Speculator, UnsupportedError
from ngramspec.hf import PatchedBatch, PatchedGenerate
from ngramspec.stats import NO_DRAFTS, PLAIN, TOGETHER

GREEDY = {"do_sample": False, "max_new_tokens": 12, "pad_token_id": 0}


def own(ids, scores):
    return scores


CALLS = {
    TOGETHER: (batch, {"logits_processor": [own]}, "a logits processor that may mix rows"),
    PLAIN: (lambda: batch(1), {"use_cache": False}, "use_cache"),
}


@pytest.mark.parametrize("limit", CALLS)
def test_what_limits_calls_is_counted_and_logged_once(limit, caplog):
    inputs, kwargs, why = CALLS[limit]
    model = build("llama")
    with ngramspec.enable(model) as handle:
        for _ in range(2):
            model.generate(**inputs(), **GREEDY | kwargs)
        (found,) = handle.stats.limits
        assert handle.stats.limits == {found: 2}
        assert found.startswith(f"{limit}: ")
        assert why in found
        assert str(handle.stats).endswith(f", {found}")
        assert [each.getMessage() for each in caplog.records].count(found) == 1
        model.generate(**batch(), **GREEDY)
        assert handle.stats.limits == {found: 2}


def test_steps_without_drafts_are_explained(monkeypatch):
    model, speculator = build("llama"), Speculator()
    reason = "a hook has shortened some layers of the cache"
    check = ngramspec.hf_model.target.Target._use_cache

    def shortened(target):
        check(target)
        target.no_drafts = reason

    monkeypatch.setattr(ngramspec.hf_model.target.Target, "_use_cache", shortened)
    out = ngramspec.generate(model, **batch(1), **GREEDY, speculator=speculator)
    assert out.shape[1] > 12
    assert speculator.stats.limits == {f"{NO_DRAFTS}: {reason}": 1}
    assert speculator.stats.drafted == 0


def test_statistics_and_handles_say_how_it_goes():
    stats = DecodeStats(target_calls=10, emitted=24, drafted=40, verified=30, accepted=14)
    assert str(stats) == "2.40 tokens per forward, accepted 14 of 30 checked"
    stats.limits["rows advance together: x"] = stats.limits["drafts are chains: y"] = 1
    assert str(stats).endswith(" checked, rows advance together: x")
    handle = ngramspec.enable(tiny_llama())
    handle.speculator.count(stats)
    assert repr(handle) == "on for LlamaForCausalLM, 2.4 tokens per forward"
    handle.disable()
    assert repr(handle) == "off for LlamaForCausalLM, 2.4 tokens per forward"


def test_continuous_batching_is_said_not_to_be_accelerated(monkeypatch, caplog):
    def generate_batch(self, inputs):
        return [inputs]

    model = tiny_llama()
    monkeypatch.setattr(type(model), "generate_batch", generate_batch)
    handle = ngramspec.enable(model)
    for _ in range(2):
        assert model.generate_batch([1, 2]) == [[1, 2]]
    assert caplog.text.count("generate_batch is not accelerated") == 1
    copied = vars(pickle.loads(pickle.dumps(model)))
    assert not {PatchedBatch, PatchedGenerate} & {*map(type, copied.values())}
    handle.disable()
    assert not {"generate", "generate_batch"} & {*vars(model)}
    model.generate_batch = own = str
    ngramspec.enable(model).disable()
    assert vars(model)["generate_batch"] is own


def test_what_a_model_is_wrapped_in_is_refused_by_name():
    model, tokenizer = tiny_chat()
    with pytest.raises(TypeError, match=r"got TextGenerationPipeline; pass its \.model"):
        ngramspec.enable(pipeline("text-generation", model=model, tokenizer=tokenizer))
    for wrapper in (torch.nn.DataParallel(model), torch.nn.Sequential(model)):
        hint = r"; pass its \.module" if hasattr(wrapper, "module") else "$"
        with pytest.raises(TypeError, match=f"got {type(wrapper).__name__}{hint}"):
            ngramspec.enable(wrapper)


def test_a_model_of_openvino_is_told_of_its_own_prompt_lookup():
    kind = type("OVModelForCausalLM", (LlamaForCausalLM,), {})
    model = kind(tiny_llama().config)
    with pytest.raises(
        UnsupportedError, match="runs in OpenVINO; its own generate has prompt lookup"
    ):
        ngramspec.generate(model, **batch(1), **GREEDY)
