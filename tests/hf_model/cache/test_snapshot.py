"""Snapshots of caches whose layers do not keep every position."""

from __future__ import annotations

import pytest
import torch
from layer_states import assert_close, model_of, new_cache

from ngramspec.hf_model.cache.snapshot import Snapshot, memory
from ngramspec.hf_model.compat.cache_name import cache_argument
from ngramspec.hf_model.compat.layers import may_record, records_past

TEXT = torch.tensor([[5, 6, 7, 8, 15, 16, 17, 9, 25, 26, 11, 3, 2, 14, 30, 31, 7, 8]])


@pytest.mark.parametrize("name", ["Gemma2ForCausalLM", "GraniteMoeHybridForCausalLM"])
def test_a_snapshot_of_a_recording_cache_does_not_record(name):
    """A layer that goes on recording would keep the text that it ought to drop."""
    model = model_of(name)
    used, plain, restored = (new_cache(model) for _ in range(3))
    recording = [at for at, layer in enumerate(used.layers) if may_record(layer)]
    assert recording
    used.activate_past_recording()
    with torch.no_grad():
        for cache in (used, plain):
            model(TEXT[:, :10], **cache_argument(cache))
        for at in recording:
            used.layers[at].crop(0)  # no position is rejected; it goes on recording
        snapshot = Snapshot(used)
        snapshot.restore(restored, used)
        assert all(records_past(used.layers[at]) for at in recording)
        assert not any(records_past(restored.layers[at]) for at in recording)
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
