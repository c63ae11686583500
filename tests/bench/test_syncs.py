"""How often a step waits for the device."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch
from conftest import tiny_llama
from forced_text import IDS, TEXT, VOCAB

from ngramspec import Speculator
from ngramspec.bench.forced import ForcedProcessor, forced_model
from ngramspec.bench.syncs import host_syncs, syncs_per_step


@pytest.fixture(scope="module")
def model():
    return tiny_llama(vocab=VOCAB)


def test_every_read_of_a_tensor_is_counted_once():
    tensor = torch.tensor([1.0])
    with host_syncs(tensor.device) as places:
        reads = [bool(tensor), int(tensor), float(tensor), tensor.item(), tensor.tolist()]
        reads += [np.asarray(tensor), tensor.cpu(), tensor.nonzero(), 1.0 in tensor]
        tensor + 1
    assert len(places) == len(reads) == 9
    assert all(place.startswith("test_syncs.py:") for place in places)
    bool(tensor)
    assert len(places) == 9


@pytest.mark.parametrize("copying", [True, False])
def test_a_step_waits_for_the_device_once(model, copying):
    with forced_model(model, 256) as set_text:
        text = TEXT if copying else random.Random(6).choices(range(VOCAB), k=len(TEXT))
        set_text([*IDS, *text])
        found = syncs_per_step(model, IDS, len(TEXT))
    assert set(found["counts"]) == {1}


KINDS = {
    "a tree": ({"tree": 12}, {}),
    "sampled": ({}, {"do_sample": True, "temperature": 0.7, "top_k": 20}),
    "algorithm 1": ({"drafter": "ngram(sample=true)"}, {"do_sample": True}),
    "a static cache": ({}, {"cache_implementation": "static"}),
    "a fixed width": ({"width": 8}, {"cache_implementation": "static"}),
    "recorded scores": ({}, {"return_dict_in_generate": True, "output_scores": True}),
}


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_step_waits_once(model, kind):
    speculator, arguments = KINDS[kind]
    torch.manual_seed(0)
    events = []
    with forced_model(model, 256) as set_text:
        set_text([*IDS, *TEXT])
        speculator = Speculator(**speculator, on_step=events.append)
        found = syncs_per_step(model, IDS, len(TEXT), speculator, **arguments)
    assert set(found["counts"]) == {1}, found["places"]
    assert speculator.stats.drafted > 0
    assert speculator.stats.host_syncs == len(found["counts"]) == len(events) - 1
    assert speculator.observer is None


def test_a_processor_that_reads_the_history_costs_syncs(model):
    found = syncs_per_step(model, IDS, 20, logits_processor=[ForcedProcessor(len(IDS), TEXT)])
    assert found["most"] > 1
    with pytest.raises(ValueError, match="more new tokens"):
        syncs_per_step(model, IDS, 1)
