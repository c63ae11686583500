"""How many tokens are drafted in the next step."""

from __future__ import annotations

import random

import pytest
import torch
from conftest import tiny_llama

import ngramspec
from ngramspec import Speculator
from ngramspec.costs.curve import assumed_cost
from ngramspec.draft_length.schedule import CostGamma
from ngramspec.measure.forwards import forced_model


def test_a_drafter_that_never_pays_is_asked_rarely_and_soon_again_once_it_does():
    controller = CostGamma(64, lambda: assumed_cost("amx", 64))
    drafted = []
    for _ in range(160):
        gamma, _ = controller.plan(False)
        drafted.append(gamma > 0)
        if gamma:
            controller.observe(gamma, 0)
    assert sum(drafted[-80:]) == 80 // CostGamma.STEPS_BETWEEN_TRIALS
    steps = 0
    while sum(drafted[-3:]) < 3 and steps < 20:
        gamma, _ = controller.plan(False)
        drafted.append(gamma > 0)
        if gamma:
            controller.observe(gamma, gamma)
        steps += 1
    assert steps <= CostGamma.STEPS_BETWEEN_TRIALS + 3


def test_a_draft_of_another_rank_may_be_longer_than_any_of_one_s_own():
    controller = CostGamma(8, lambda: assumed_cost("amx", 8))
    controller.plan(True)
    controller.observe(8, 0)  # drafts that end by cost do not change the length of others
    assert controller.plan(False)[0] == 8
    for accepted in (0, 90):
        controller.observe(90, accepted)
    assert controller.plan(False)[0] > 0


@pytest.mark.parametrize("drafter", ["auto", "copy+ngram+unigram"])
def test_a_text_that_begins_to_copy_is_drafted_again_within_a_few_steps(drafter):
    model, make = tiny_llama(vocab=997, positions=2048), random.Random(3)
    prompt = [make.randrange(1, 997) for _ in range(120)]
    for waiting in (40, 160, 320):
        text = [make.randrange(1, 997) for _ in range(waiting)] + prompt[20:100]
        steps = []
        speculator = Speculator(drafter, on_step=steps.append)
        ids = torch.tensor([prompt])
        with forced_model(model, 1024) as set_text:
            set_text([*prompt, *text])
            ours = ngramspec.generate(
                model, ids, speculator=speculator, max_new_tokens=len(text), do_sample=False
            )
        assert ours[0].tolist() == [*prompt, *text]
        at, ends = 0, []
        for step in steps:
            at += len(step.verdict.emitted)
            ends.append((at, step))
        waited = [step for at, step in ends if at <= waiting]
        assert sum(len(step.drafted) for step in waited) < waiting  # tried now and then
        copying = [step for at, step in ends if at > waiting]
        first = next(i for i, step in enumerate(copying) if step.accepted)
        assert first <= 6
        assert len(copying) < 30  # of 80 tokens
