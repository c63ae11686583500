"""How much is drafted next, by hand, and on a simulated machine that stalls and drifts."""

from __future__ import annotations

import random
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from conftest import tiny_llama
from cost_models import KIND
from hypothesis import given
from hypothesis import strategies as st
from plain_text import same_text
from simulated_machine import CLOCKS, MACHINES, TEXTS, Model, share_of_best

import ngramspec
from ngramspec import Draft, Proposal, Speculator
from ngramspec.costs.model import model_of
from ngramspec.costs.policies import CostGamma, ThresholdGamma, make_controller, worthwhile_nodes
from ngramspec.costs.steps import StepCosts
from ngramspec.drafters import build_drafter
from ngramspec.measure.forwards import forced_model
from ngramspec.measure.replay import Player, ReplayPlan, cost_curve
from ngramspec.measure.traces import Trace

SEEDS = 2
KINDS = replace(KIND, dtype="bfloat16")
GPU = replace(KINDS, machine="gpu")


def shares(machine, clock, text, length, seeds=SEEDS, kinds=None):
    where = (MACHINES[machine], CLOCKS[clock], TEXTS[text])

    def costs(model):
        return StepCosts(model_of(model, kinds or (GPU if machine == "flat" else KINDS)), 65)

    return [
        share_of_best(partial(costs, Model()), *where, length=length, seed=seed)
        for seed in range(seeds)
    ]


@pytest.mark.every(12, 1)  # one with steep costs among them
@pytest.mark.long
@pytest.mark.parametrize("clock", [*CLOCKS])
@pytest.mark.parametrize(
    ("machine", "length"), [("attention", 300), *((machine, 4000) for machine in MACHINES)]
)
def test_what_is_chosen_is_worth_what_the_best_is(machine, clock, length):
    found = [each for text in TEXTS for each in shares(machine, clock, text, length)]
    assert sum(found) / len(found) > 0.95
    assert min(found) > 0.8


def test_a_machine_that_is_wrongly_taken_for_slow_is_found_out():
    """Forwards of any width cost the same, where wide ones are assumed to cost twice as much."""
    for clock in CLOCKS:
        found = shares("flat", clock, "copying", 8000, kinds=KINDS)
        assert sum(found) / len(found) > 0.9, clock


def test_branches_that_cost_much_give_way_to_chains():
    model, kinds = Model(), []

    class Noting(StepCosts):
        def record_time(self, width, seconds, tree=False):
            kinds.append("plain" if width == 1 else "tree" if tree else "chain")
            super().record_time(width, seconds, tree)

    for machine, most in (("attention", 1.0), ("costly trees", 0.25)):
        kinds.clear()
        where = (MACHINES[machine], CLOCKS["quiet"], TEXTS["talking"])
        share_of_best(lambda: Noting(model_of(model, KINDS), 65), *where, length=8000, calls=6)
        late = kinds[len(kinds) // 2 :]
        drafts = late.count("tree") + late.count("chain")
        assert drafts > len(late) // 3
        assert (late.count("tree") > 0.5 * drafts) == (most == 1.0)


def test_a_drafter_that_never_pays_is_asked_rarely_and_soon_again_once_it_does():
    controller = CostGamma(64, lambda: cost_curve("cpu", 64))
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
    controller = CostGamma(8, lambda: cost_curve("cpu", 8))
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


@given(
    st.lists(st.floats(0.01, 0.99), max_size=12),
    st.lists(st.floats(1, 3), min_size=14, max_size=14),
)
def test_the_worthwhile_length_is_the_best_of_all(confidence, cost):
    def value(n):
        reach = np.cumprod(np.array(confidence[:n], np.float64))
        return (1 + reach.sum()) / cost[n + 1]

    values = [value(n) for n in range(len(confidence) + 1)]
    reach = np.cumprod(np.array(confidence, np.float64))
    nodes = worthwhile_nodes(reach, np.array(cost, np.float32))
    assert values[nodes] == pytest.approx(max(values), rel=1e-5)


@pytest.mark.parametrize(("alpha", "c", "gamma"), [(0.8, 0.1, 6), (0.5, 0.05, 3), (0.9, 0.02, 19)])
def test_the_worthwhile_length_is_that_of_theorem_3_8(alpha, c, gamma):
    """Equal acceptance, drafting for c a token: the gamma of the closed form's maximum."""
    n = np.arange(40)
    factor = (1 - alpha ** (n + 1)) / ((1 - alpha) * (n * c + 1))
    assert factor.argmax() == gamma
    cost = np.concatenate(([0], 1 + c * np.arange(40))).astype(np.float32)
    assert worthwhile_nodes(np.cumprod(np.full(38, alpha)), cost) == gamma


def chain(*confidence, **fields):
    tokens = np.arange(len(confidence), dtype=np.int32)
    return Draft(tokens, confidence=np.array(confidence, np.float32), **fields)


def test_a_chain_ends_before_the_first_token_below_unless_it_may_not_be_cut():
    controller = ThresholdGamma(16)
    assert len(controller.keep(chain(0.9, 0.5, 0.39, 0.9))) == 2
    assert len(controller.keep(chain(0.9, 0.5))) == 2
    assert controller.plan(True) == (16, None)
    parents = np.array([-1, -1], np.int32)
    assert len(controller.keep(chain(0.9, 0.1, parents=parents))) == 2
    one = np.ones(2, np.float32)
    proposal = Proposal(np.arange(3, dtype=np.int32), np.arange(2, dtype=np.int32), one)
    assert len(controller.keep(chain(0.1, 0.1, proposal=proposal))) == 2
    assert len(controller.keep(Draft(np.arange(3, dtype=np.int32)))) == 3


def test_the_threshold_follows_failures_within_its_bounds():
    controller = ThresholdGamma(16)
    for _ in range(500):
        controller.observe(4, 3)
    assert controller.threshold == pytest.approx(controller.MAX_THRESHOLD)
    assert len(controller.keep(chain(0.45))) == 0  # nothing is drafted, and it falls
    assert controller.threshold < controller.MAX_THRESHOLD
    for _ in range(500):
        controller.observe(4, 4)
    assert controller.threshold == controller.MIN_THRESHOLD


def test_drafters_without_estimates_get_the_heuristic():
    controller, heuristic = (make_controller(each, 64, None) for each in ("threshold", "heuristic"))
    for drafted, accepted in ((8, 8), (16, 16), (32, 3)):
        assert controller.plan(False) == heuristic.plan(False)
        controller.observe(drafted, accepted)
        heuristic.observe(drafted, accepted)


def test_it_drafts_less_than_gamma_max_and_more_of_it_is_accepted():
    rng = np.random.default_rng(0)
    words = rng.integers(5, 60, (30, 6))
    text = words[rng.integers(0, 30, 400)].ravel().astype(np.int32)  # known words, in any order
    trace = Trace("g", "0", text[:1200], text[1200:])
    found = {}
    for gamma in ("threshold", 32):
        plan = ReplayPlan(cost=cost_curve("cpu", 64), gamma=gamma, gamma_max=32)
        found[gamma] = Player(build_drafter("auto"), plan).play([trace]).groups["g"]
    threshold, fixed = found["threshold"], found[32]
    assert threshold.acceptance_rate > 1.5 * fixed.acceptance_rate
    assert threshold.emitted / threshold.cost > fixed.emitted / fixed.cost


@pytest.mark.parametrize("tree", ["auto", None, 8])
def test_the_text_is_plain_generates(tiny, tree):
    assert same_text(tiny, Speculator(gamma="threshold", tree=tree), max_new_tokens=60).drafted
