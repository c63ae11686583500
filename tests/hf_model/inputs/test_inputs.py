"""The arguments of the forwards: prepared once, and extended as ``generate`` extends them."""

from __future__ import annotations

from functools import wraps

import numpy as np
import pytest
import torch
from conftest import tiny_llama
from transformers import GenerationMixin

from ngramspec import Speculator, generate
from ngramspec.hf_model.inputs.growth import OwnSlots, grow, grow_ragged
from ngramspec.hf_model.inputs.inputs import FREE_COLUMNS, Inputs
from ngramspec.hf_model.traits import traits_of

IDS = torch.tensor([[5, 6, 7, 8, 5, 6, 7, 9, 5, 6]])


def test_transformers_own_preparation_is_called_once(monkeypatch):
    calls = []
    inner = GenerationMixin.prepare_inputs_for_generation

    @wraps(inner)
    def prepare(self, *args, **kwargs):
        calls.append(kwargs["next_sequence_length"])
        return inner(self, *args, **kwargs)

    monkeypatch.setattr(GenerationMixin, "prepare_inputs_for_generation", prepare)
    model = tiny_llama()
    settings = {"max_new_tokens": 30, "do_sample": False}
    plain = model.generate(IDS, **settings)
    for extra, once in (({}, True), ({"cache_implementation": "static"}, False)):
        calls.clear()
        speculator = Speculator("copy", 4)
        assert torch.equal(generate(model, IDS, speculator=speculator, **settings, **extra), plain)
        assert speculator.stats.target_calls > 10
        assert (len(calls) == 2) == once  # the other call is the prefill's


@pytest.fixture
def inputs():
    model = tiny_llama()
    mask = torch.tensor([[0, 1, 1, 1], [1, 1, 1, 1]])
    kwargs = {"attention_mask": mask, "position_ids": mask.cumsum(1) - 1, "use_cache": True}
    return Inputs(model, traits_of(model, mask, kwargs), kwargs)


@pytest.mark.parametrize("ragged", [False, True])
def test_arguments_are_extended_step_by_step_as_in_generate(inputs, ragged):
    if ragged:
        inputs.ragged = True
        inputs._own = OwnSlots(np.array([[0, 1, 1, 1], [1, 1, 1, 1]], bool))
    expected = dict(inputs.kwargs)
    for kept in [1] * (FREE_COLUMNS + 10) + [3, 1, 7]:
        wider = inputs.grown(2, [3, 3])
        inputs.commit([kept, kept])
        for name in ("attention_mask", "position_ids"):
            assert torch.equal(wider[name], grow(name, expected[name], 2))
            expected[name] = grow(name, expected[name], kept)
            assert torch.equal(inputs.kwargs[name], expected[name])
            assert inputs.kwargs[name].is_contiguous()
        assert inputs.kwargs["use_cache"] is True


def test_rows_that_diverge_and_meet_again(inputs):
    inputs.ragged = True
    inputs._own = OwnSlots(np.array([[0, 1, 1, 1], [1, 1, 1, 1]], bool))
    expected = dict(inputs.kwargs)
    for kept in ([1, 1], [3, 1], [1, 1], [2, 2], [1, 4], [2, 2]):
        inputs.commit(kept)
        own = [each + 1 for each in kept]
        for name in ("attention_mask", "position_ids"):
            expected[name] = grow_ragged(name, expected[name], max(kept), own, committed=True)
            assert torch.equal(inputs.kwargs[name], expected[name])
