"""gamma="threshold": where chains end, how the threshold moves, and that the text stays."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from conftest import tiny_llama

import ngramspec
from ngramspec import Draft, Proposal, Speculator
from ngramspec.draft_length.schedule import ThresholdGamma, make_controller
from ngramspec.drafters import build_drafter
from ngramspec.measure.replay import Plan, Player, cost_curve
from ngramspec.measure.traces import Trace


def chain(*confidence, **fields):
    tokens = np.arange(len(confidence), dtype=np.int32)
    return Draft(tokens, confidence=np.array(confidence, np.float32), **fields)


def test_a_chain_ends_before_the_first_token_below():
    controller = ThresholdGamma(16)
    assert len(controller.keep(chain(0.9, 0.5, 0.39, 0.9))) == 2
    assert len(controller.keep(chain(0.9, 0.5))) == 2
    assert controller.plan(True) == (16, None)


def test_what_may_not_be_cut_is_not():
    controller = ThresholdGamma(16)
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
    controller, heuristic = (
        make_controller("threshold", 64, None),
        make_controller("heuristic", 64, None),
    )
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
        plan = Plan(cost=cost_curve("cpu", 64), gamma=gamma, gamma_max=32)
        found[gamma] = Player(build_drafter("auto"), plan).play([trace]).groups["g"]
    threshold, fixed = found["threshold"], found[32]
    assert threshold.accepted_fraction > 1.5 * fixed.accepted_fraction
    assert threshold.emitted / threshold.cost > fixed.emitted / fixed.cost


@pytest.mark.parametrize("tree", ["auto", None, 8])
def test_the_text_is_plain_generates(tree):
    model = tiny_llama()
    ids = torch.tensor([[5, 6, 7, 8, 5, 6, 7, 9, 5, 6]])
    plain = model.generate(ids, max_new_tokens=60, do_sample=False)
    speculator = Speculator(gamma="threshold", tree=tree)
    out = ngramspec.generate(
        model, input_ids=ids, max_new_tokens=60, do_sample=False, speculator=speculator
    )
    assert out.tolist() == plain.tolist()
    assert speculator.stats.drafted
