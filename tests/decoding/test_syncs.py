"""What a step costs the host: how often it waits for the device, and its Python calls."""

from __future__ import annotations

import sys
from contextlib import contextmanager, nullcontext
from itertools import product
from statistics import median

import numpy as np
import pytest
import torch
from batches import RowTrees
from conftest import tiny_llama
from doubles import ScriptedDrafter, oracle
from forced_text import IDS, TEXT
from torch.utils._python_dispatch import TorchDispatchMode

from benchmarks.syncs import host_syncs, syncs_per_step
from ngramspec import Draft, Proposal, Speculator, generate
from ngramspec.decoding.observer import VERIFICATION, Observer
from ngramspec.hf_model.compat.package import MARKS_CACHES, has
from ngramspec.measure.forwards import forced_model


def check_one_wait(found):
    """That each step waited once; before they were marked, masks of callers' caches were read."""
    counts, places = found["counts"], found["places"]
    if has(MARKS_CACHES):
        assert set(counts) == {1}, places
        return
    assert sum(n for at, n in places.items() if not at.startswith("masking_utils")) == len(counts)
    assert set(counts) <= {1, 2}, places


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


@pytest.mark.parametrize("rows", [1, 8])
def test_the_statistics_count_the_waits_of_steps_whatever_drafts(tiny, rows):
    """Kinds of calls, on a pretended GPU, are in tests/gpu."""
    with forced_model(tiny, 256) as set_text:
        set_text([*IDS, *TEXT])
        speculator = Speculator()
        found = syncs_per_step(tiny, IDS, len(TEXT), speculator, rows=rows)
    check_one_wait(found)
    assert speculator.stats.drafted > 0
    assert speculator.stats.host_syncs == len(found["counts"]) == found["steps"]
    assert speculator.observer is None


class ForcedProcessor:
    """Allows one token only: the text's at this place, or after its end its last one.

    The text begins after ``prompt_length`` tokens.
    """

    def __init__(self, prompt_length, tokens):
        self.prompt_length = prompt_length
        self.tokens = tokens

    def __call__(self, input_ids, scores):
        at = min(input_ids.shape[1] - self.prompt_length, len(self.tokens) - 1)
        forced = torch.full_like(scores, -torch.inf)
        forced[:, self.tokens[at]] = 0.0
        return forced


def test_a_processor_that_is_not_transformers_own_costs_syncs(tiny):
    found = syncs_per_step(tiny, IDS, 20, logits_processor=[ForcedProcessor(len(IDS), TEXT)])
    assert found["most"] > 1
    with pytest.raises(ValueError, match="more new tokens"):
        syncs_per_step(tiny, IDS, 1)


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


@pytest.mark.parametrize(
    ("kind", "one_transfer"),
    [("greedy", True), *product(["chains", "trees", "stochastic"], [True, False])],
)
def test_verification_is_as_many_operations_for_many_rows(tiny, kind, one_transfer):
    """All rows draft the same. On a CPU greedy tokens are NumPy's, row by row."""
    counts = []
    for rows in (2, 8):
        drafter = oracle([*IDS, *TEXT]) if kind in ("greedy", "chains") else ScriptedDrafter(sure)
        if kind == "trees":
            drafter = RowTrees([[*IDS, *TEXT]])
        speculator = Speculator(drafter, 6, tree=6 if kind == "trees" else None)
        observer = speculator.observer = Sections(one_transfer)
        asked = {"max_new_tokens": len(TEXT)} | ({} if kind == "greedy" else SAMPLED)
        torch.manual_seed(0)
        with forced_model(tiny, 256) as set_text:
            set_text([*IDS, *TEXT])
            generate(tiny, torch.tensor([IDS] * rows), speculator=speculator, **asked)
        assert speculator.stats.accepted > rows
        counts.append(observer.counts)
    assert counts[0] == counts[1]
    assert counts[0] if kind == "greedy" else any(counts[0])


PROMPT = [*range(5, 55)]


def calls_between_forwards(model, rows=1, text=None, **settings):
    """The median number of Python calls between two forwards, and the calls' statistics."""
    ids = torch.tensor([PROMPT] * rows)
    counts, running = [], [True]
    inner = model.forward

    def forward(*args, **kwargs):
        running[0] = True
        outputs = inner(*args, **kwargs)
        counts.append(0)
        running[0] = False
        return outputs

    def count(frame, event, argument):
        if event == "call" and not running[0]:
            counts[-1] += 1

    processors = [] if text is None else [ForcedProcessor(len(PROMPT), text)]
    speculator = Speculator(**settings)
    model.forward = forward
    sys.setprofile(count)
    try:
        generate(
            model,
            ids,
            attention_mask=torch.ones_like(ids),
            speculator=speculator,
            max_new_tokens=60,
            do_sample=False,
            eos_token_id=None,
            pad_token_id=0,
            logits_processor=processors,
        )
    finally:
        sys.setprofile(None)
        del model.forward
    return median(counts[2:-1]), speculator.stats


def test_a_step_of_eight_rows_without_a_draft():
    """It made 1470 calls."""
    found, stats = calls_between_forwards(tiny_llama(vocab=128), rows=8, drafter="none")
    assert stats.plain_steps == stats.target_calls
    assert found <= 650


def test_a_chain_of_10_under_a_processor():
    """It made 1270 calls."""
    found, stats = calls_between_forwards(
        tiny_llama(vocab=128), text=PROMPT + PROMPT, drafter="copy", gamma=10, tree=None
    )
    assert stats.tokens_per_call > 6
    assert found <= 600
