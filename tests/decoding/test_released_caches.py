"""When a call ends, for whatever reason, its cache is freed without a garbage collection."""

from __future__ import annotations

from contextlib import suppress

import families
import pytest
import torch
import transformers
from caches_made import made_caches
from conftest import tiny_llama
from transformers import StoppingCriteria

import ngramspec
from benchmarks import tiny as tiny_models
from ngramspec import Speculator, UnsupportedError
from ngramspec.stepwise import JointSteps, open_generation

IDS = torch.tensor([[5, 6, 7, 8, 5, 6, 7, 9, 5, 6]])
GREEDY = {"max_new_tokens": 12, "do_sample": False}


class Streamer:
    """A streamer that raises a new error of the given class at the fourth call; None: never."""

    def __init__(self, error=None):
        self.error, self.calls = error, 0

    def put(self, value):
        self.calls += 1
        if self.calls == 4 and self.error is not None:
            raise self.error

    def end(self):
        pass


class StopsWithError(StoppingCriteria):
    def __call__(self, input_ids, scores, **kwargs):
        if input_ids.shape[1] > 13:
            raise ValueError("the criterion raises")
        return torch.zeros(len(input_ids), dtype=torch.bool)


def enabled(model, **kwargs):
    with ngramspec.enabled(model):
        model.generate(IDS, **GREEDY, **kwargs)


def hook(model, **kwargs):
    model.generate(IDS, **GREEDY | kwargs, custom_generate=Speculator())


def ours(model, ids=IDS, **kwargs):
    ngramspec.generate(model, ids, **GREEDY | kwargs)


def stepwise(model, steps=100, **kwargs):
    with open_generation(model, IDS, **GREEDY, **kwargs) as run:
        while steps and not run.finished:
            run.step()
            steps -= 1


CALLS = {
    "generate": ours,
    "hook": hook,
    "enabled": enabled,
    "stepwise": stepwise,
    "stepwise, closed early": lambda model: stepwise(model, 2),
    "sampled": lambda model: ours(model, do_sample=True),
    "static": lambda model: ours(model, cache_implementation="static"),
    "batch": lambda model: ours(model, IDS.repeat(3, 1)),
    "beams": lambda model: ours(model, num_beams=3),
    "several answers": lambda model: ours(model, do_sample=True, num_return_sequences=3),
    "trees": lambda model: ours(model, speculator=Speculator(tree=9, gamma=4)),
    "assistant": lambda model: ours(model, assistant_model=tiny_llama(seed=1)),
    "streamed": lambda model: ours(model, streamer=Streamer()),
    "interrupted": lambda model: ours(model, streamer=Streamer(KeyboardInterrupt)),
    "failed": lambda model: ours(model, stopping_criteria=[StopsWithError()]),
    "failed with beams": lambda model: ours(
        model, stopping_criteria=[StopsWithError()], num_beams=2
    ),
    "refused": lambda model: ours(model, num_beams=2, streamer=Streamer()),
    "refused, so plain": lambda model: ours(
        model, speculator=Speculator(width=8, unsupported="plain")
    ),
}


@pytest.mark.parametrize("name", CALLS)
def test_no_cache_of_a_call_outlives_it(name, tiny):
    call = CALLS[name]
    with made_caches() as caches, suppress(KeyboardInterrupt, ValueError, UnsupportedError):
        call(tiny)
    assert caches.made
    assert not caches.alive


@pytest.mark.parametrize("family", ["t5", "mistral sliding", "gemma3 hybrid"])
def test_no_cache_of_another_kind_of_model_outlives_its_call(family):
    model = families.build(family)
    with made_caches() as caches:
        ours(model, max_new_tokens=8)
    assert caches.made
    assert not caches.alive


def test_no_recurrent_state_outlives_its_call():
    model = tiny_models.build(transformers.Qwen3NextForCausalLM)
    with made_caches() as caches:
        ours(model, max_new_tokens=8)
    assert caches.made
    assert not caches.alive


def test_a_generation_that_fails_in_a_joint_step_frees_its_cache(tiny):
    with made_caches() as caches:
        steps = JointSteps(tiny)
        before = caches.alive
        runs = [
            open_generation(tiny, IDS, **GREEDY, stopping_criteria=criteria)
            for criteria in ([], [StopsWithError()])
        ]
        for run in runs:
            run.step()
        failed = 0
        while not all(run.finished for run in runs):
            added = steps.step([run for run in runs if not run.finished])
            failed += sum(isinstance(each, ValueError) for each in added)
            for each in added:
                if isinstance(each, Exception):
                    each.__traceback__ = None  # as the server does once it has logged it
            del added, each
        for run in runs:
            run.close()
        del runs, run
        assert failed == 1
        assert caches.made > before
        assert caches.alive == before
