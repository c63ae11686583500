"""How often a step waits for the device."""

from __future__ import annotations

import random
from contextlib import contextmanager, nullcontext

import numpy as np
import pytest
import torch
from batches import RowTrees
from conftest import tiny_llama
from doubles import ScriptedDrafter, oracle
from forced_text import IDS, TEXT, VOCAB
from torch.utils._python_dispatch import TorchDispatchMode
from waits import check_one_wait

from benchmarks.host_time import ForcedProcessor
from benchmarks.syncs import host_syncs, syncs_per_step
from ngramspec import Draft, Proposal, Speculator, generate
from ngramspec.decoding.observer import VERIFICATION, Observer
from ngramspec.measure.forwards import forced_model


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
    check_one_wait(found)


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
    check_one_wait(found)
    assert speculator.stats.drafted > 0
    assert speculator.stats.host_syncs == len(found["counts"]) == len(events) - 1
    assert speculator.observer is None


def test_a_processor_that_is_not_transformers_own_costs_syncs(model):
    found = syncs_per_step(model, IDS, 20, logits_processor=[ForcedProcessor(len(IDS), TEXT)])
    assert found["most"] > 1
    with pytest.raises(ValueError, match="more new tokens"):
        syncs_per_step(model, IDS, 1)


READ = {  # of the forced text they forbid nothing
    **{"repetition_penalty": 1.2, "no_repeat_ngram_size": 50, "encoder_repetition_penalty": 1.1},
    **{"sequence_bias": [[[7, 8], 2.0]], "min_new_tokens": 20, "eos_token_id": VOCAB - 1},
}
ROWS = {
    "greedy": ({}, {}),
    "trees": ({"tree": 8}, {}),
    "sampled": ({}, {"do_sample": True, "temperature": 0.7, "top_k": 20}),
    "sampled trees": ({"tree": 8}, {"do_sample": True}),
    "algorithm 1": ({"drafter": "ngram(sample=true)"}, {"do_sample": True}),
    "processors that read the text": ({}, READ),
    "sampled, with processors that read the text": ({"tree": 8}, READ | {"do_sample": True}),
}


@pytest.mark.parametrize("kind", ROWS)
def test_a_step_of_many_rows_waits_once_too(model, kind):
    """Also where nothing was drafted, and transformers would read a mask of padding."""
    speculator, arguments = ROWS[kind]
    torch.manual_seed(0)
    for rows in (1, 3, 8):
        with forced_model(model, 256) as set_text:
            set_text([*IDS, *TEXT])
            speculating = Speculator(**speculator)
            found = syncs_per_step(model, IDS, len(TEXT), speculating, rows=rows, **arguments)
        assert list(found["places"].values()) == [found["steps"]], found["places"]
        assert found["most"] == 1
        assert speculating.stats.drafted > 0
        assert speculating.stats.host_syncs == found["steps"]


@pytest.mark.parametrize("scores", [False, True])
def test_a_step_of_beams_waits_once_for_their_tokens_and_whether_to_stop(model, scores):
    kept = {"return_dict_in_generate": True, "output_scores": True} if scores else {}
    for padding in (0, 3):
        mask = torch.ones((1, len(IDS)), dtype=torch.int64)
        mask[:, :padding] = 0  # a mask that hides something is not dropped
        given = {"num_beams": 3, "attention_mask": mask, **kept}
        found = syncs_per_step(model, IDS, 20, Speculator("none"), **given)
        assert list(found["places"].values()) == [found["steps"]], found["places"]


class Operations(TorchDispatchMode):
    """Counts operations on scores and probabilities; what is done with ids is the host's."""

    def __init__(self):
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        tensors = [each for each in args if isinstance(each, torch.Tensor)]
        self.count += not func.is_view and any(each.is_floating_point() for each in tensors)
        return func(*args, **(kwargs or {}))


class Sections(Observer):
    """Counts the operations of every step's verification."""

    def __init__(self, one_transfer):
        self.one_transfer = one_transfer
        self.counts = []

    @contextmanager
    def section(self, name):
        with Operations() if name == VERIFICATION else nullcontext() as operations:
            yield
        if operations is not None:
            self.counts.append(operations.count)


def sure(at, gamma):
    """What follows, sampled from a distribution of one token."""
    tokens = np.array([*IDS, *TEXT][at : at + gamma], np.int32)
    starts = np.arange(len(tokens) + 1, dtype=np.int32)
    return Draft(tokens, None, None, Proposal(starts, tokens, np.ones(len(tokens), np.float32)))


SAMPLED = {"do_sample": True, "temperature": 0.9, "top_k": 20}


@pytest.mark.parametrize("one_transfer", [True, False])
@pytest.mark.parametrize("kind", ["greedy", "chains", "trees", "stochastic"])
def test_verification_is_as_many_operations_for_many_rows(model, kind, one_transfer):
    """All rows draft the same. On a CPU greedy tokens are NumPy's, row by row."""
    if kind == "greedy" and not one_transfer:
        return
    counts = []
    for rows in (2, 8):
        drafter = oracle([*IDS, *TEXT]) if kind in ("greedy", "chains") else ScriptedDrafter(sure)
        if kind == "trees":
            drafter = RowTrees([[*IDS, *TEXT]])
        speculator = Speculator(drafter, 6, tree=6 if kind == "trees" else None)
        observer = speculator.observer = Sections(one_transfer)
        asked = {"max_new_tokens": len(TEXT)} | ({} if kind == "greedy" else SAMPLED)
        torch.manual_seed(0)
        with forced_model(model, 256) as set_text:
            set_text([*IDS, *TEXT])
            generate(model, torch.tensor([IDS] * rows), speculator=speculator, **asked)
        assert speculator.stats.accepted > rows
        counts.append(observer.counts)
    assert counts[0] == counts[1]
