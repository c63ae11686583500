"""What steps cost, assumed and then measured; which widths run, and when steps are plain."""

from __future__ import annotations

import gc
import math
import weakref
from dataclasses import replace

import numpy as np
import pytest
import torch
from conftest import tiny_llama
from cost_models import IDS, KIND, fed, step_costs
from doubles import oracle

from ngramspec import Speculator
from ngramspec.costs.model import MAX_COUNTS, ForwardKind, model_of
from ngramspec.costs.policies import CostGamma
from ngramspec.costs.processors import AMX, extended, initial_costs
from ngramspec.costs.steps import (
    CHEAP,
    MARGIN,
    MAX_LOSSES,
    MIN_PREFILL_POSITIONS,
    REPAID,
    losses_after,
    required_tokens,
)
from ngramspec.decoding.assistants import DraftingModel

FLAT = ForwardKind("gpu", "bfloat16")


def test_a_curve_is_as_assumed_until_it_is_measured():
    costs = step_costs()
    assert costs.times()[1:] == pytest.approx(
        np.interp(np.arange(1, 66), *extended(initial_costs(AMX, "float32")))
    )
    assert step_costs(kind=KIND).surcharge() == 1.0


def test_measured_widths_count_and_those_between_follow():
    costs = fed(step_costs(kind=FLAT), {1: 0.02, 5: 0.03, 9: 0.06})
    for length in (0, 5000):  # in contexts of any length, until these are timed
        costs.at(length)
        cost = costs.times()
        assert cost[1] == 1
        assert cost[5] == pytest.approx(1.5, abs=0.1)
        assert cost[9] == pytest.approx(3.0, abs=0.3)
        assert cost[1] < cost[3] < cost[5] < cost[7] < cost[9]
        assert cost[9] < cost[40]  # forty positions cost at least as much as nine


def test_stalls_do_not_move_it_and_a_lasting_change_does():
    costs = fed(step_costs(kind=FLAT), {1: 0.02, 5: 0.02})
    for _ in range(20):
        fed(costs, {5: 0.2, 1: 0.02}, 1)
        fed(costs, {5: 0.02, 1: 0.02}, 4)
    assert costs.times()[5] < 1.05
    fed(costs, {5: 0.03, 1: 0.02}, 40)
    assert costs.times()[5] == pytest.approx(1.5, abs=0.1)


def test_what_is_long_past_counts_less():
    costs = fed(step_costs(kind=FLAT), {1: 0.02, 5: 0.06})
    before = costs.times()[5]
    fed(costs, {1: 0.02}, 2000)
    assert 1.0 < costs.times()[5] < 1.4 < before


def test_steps_of_one_width_say_nothing():
    costs = fed(step_costs(kind=FLAT), {1: 0.02, 5: 0.03})
    before = costs.times()[5]
    for at in range(100):
        costs.record_time(5, 0.03 * 1.05**at)
    assert costs.times()[5] == pytest.approx(before, rel=0.08)


def test_without_a_plain_step_widths_are_compared_with_each_other():
    cost = fed(step_costs(kind=FLAT), {5: 0.02, 9: 0.03}).times()
    assert cost[1] == 1
    assert cost[9] / cost[5] == pytest.approx(1.5, abs=0.15)


def test_costs_of_long_contexts_are_told_from_those_of_short_ones():
    costs = step_costs(kind=FLAT)
    for _ in range(20):
        for length, seconds in ((100, 0.02), (6000, 0.05)):
            costs.at(length)
            fed(costs, {1: 0.02, 11: seconds}, 3)
    costly = costs.times()[11]
    costs.at(100)
    assert costs.times()[11] == pytest.approx(1, abs=0.1)
    assert costly == pytest.approx(2.5, abs=0.25)
    costs.at(2000)
    assert 1.1 < costs.times()[11] < 2.3


def test_generations_of_other_limits_and_rows_share_what_is_measured():
    model = tiny_llama()
    short = step_costs(model, limit=9)
    fed(short, {1: 0.02, 9: 0.1})
    assert len(short.required_tokens()) == 10
    long = step_costs(model)
    assert long.model is short.model
    assert 4 < long.times()[9] < long.times()[40]
    assert short.width(9, 65) == 9
    batch = step_costs(model, rows=3)  # nine positions in all of three rows
    assert batch.times()[3] > 1.5 * step_costs(rows=3).times()[3]


def test_each_number_of_rows_has_costs_of_its_own():
    batch = step_costs(rows=8)
    fed(batch, {width: 1 + 0.3 * (width - 1) for width in range(1, 6)}, 12)
    assert batch.times()[5] == pytest.approx(1 + 1.2, rel=0.05)
    batch.rows = 2
    fed(batch, {width: 1 + 0.9 * (width - 1) for width in range(1, 6)}, 12)
    assert batch.times()[5] == pytest.approx(4.6, rel=0.1)


def test_a_row_bears_its_share_of_a_wider_forward():
    batch = step_costs(rows=4)
    fed(batch, {width: 1 + 0.4 * (width - 1) for width in range(1, 6)}, 12)
    row = CostGamma(8, batch.required_tokens, drafting=batch.share)
    gamma, cost = row.plan(estimates=True)
    assert gamma == 8
    assert cost[1:] == pytest.approx(1 + (batch.required_tokens()[1:] - 1) / 4)
    assert row.plan(estimates=False)[1] is None
    assert np.all(batch.required_tokens()[2:] > 1)


@pytest.mark.parametrize(("factor", "surcharge"), [(1.3, 1.3), (0.97, 1.0)])
def test_branches_have_a_surcharge_which_a_few_trees_teach(factor, surcharge):
    trees = fed(step_costs(kind=KIND), {1: 0.02, 9: 0.03}, 4)
    for width in (5, 7, 12, 9):
        fed(trees, {1: 0.02, width: 0.03 * factor}, 1, tree=True)
        fed(trees, {width: 0.03}, 1)
    assert trees.surcharge() == pytest.approx(surcharge, abs=0.1)
    assert trees.surcharge() >= 1.0
    assert trees.times()[9] == pytest.approx(1.5, abs=0.15)


class Module(dict):
    """A model without a hash, as mlx's are."""


@pytest.mark.parametrize("make", [tiny_llama, Module])
def test_costs_of_model_of_are_kept_for_a_model_and_go_with_it(make):
    target = make()
    costs = model_of(target, KIND)
    assert model_of(target, KIND) is costs
    assert model_of(make(), KIND) is not costs
    assert model_of(target, FLAT) is not costs
    gone = weakref.ref(costs)
    del target, costs
    gc.collect()
    assert gone() is None


def test_a_draft_is_padded_to_a_width_that_is_measured_to_be_cheaper():
    costs = fed(step_costs(), {1: 0.02, 2: 0.05, 3: 0.055, 5: 0.03}, 20)
    assert [costs.width(n, 65) for n in (1, 2, 3, 4, 5, 6)] == [1, 5, 5, 5, 5, 6]
    assert costs.width(2, 4) == 2  # there is no room for 5
    envelope = costs.required_tokens()
    assert envelope[2] == envelope[5]
    assert (np.diff(envelope) >= 0).all()
    assert envelope.flags.c_contiguous


def test_a_plain_step_is_padded_where_one_position_is_slow():
    """bfloat16 attention over one position: all costs are relative to the cheapest step."""
    costs = step_costs(kind=FLAT)
    costs.plain(), costs.plain(), costs.plain()
    assert costs.width(1, 65) == 1  # it is run to be timed
    costs.record_time(1, 0.05)
    assert not costs.plain()
    assert costs.width(1, 65) == 2  # two may be cheaper, which is found out
    fed(costs, {1: 0.05, 2: 0.02, 3: 0.021, 9: 0.04})
    assert [costs.width(n, 65) for n in (1, 2, 3)] == [2, 2, 3]
    assert costs.width(1, 1) == 1
    cost = costs.required_tokens()
    assert cost[1] == 1
    assert cost[2] == pytest.approx(1 + MARGIN, abs=0.01)
    assert cost[9] == pytest.approx(1 + 1.5, abs=0.2)
    alone = step_costs(kind=FLAT, pads=False)  # of a recurrent target
    fed(alone, {1: 0.05, 2: 0.02, 9: 0.04})
    assert alone.width(1, 65) == 1
    assert alone.required_tokens()[2] == pytest.approx(0.4, abs=0.05)  # nothing is clamped at 1
    assert alone.required_tokens()[9] == pytest.approx(0.8, abs=0.1)


def test_two_positions_are_not_tried_where_they_are_known_to_cost_more():
    costs = step_costs(kind=ForwardKind("avx2", "float32"))
    fed(costs, {1: 0.02, 9: 0.05}, 1)
    costs.plain()
    assert costs.width(1, 65) == 1


def test_a_plain_step_is_timed_at_first_and_from_time_to_time():
    model, planned = tiny_llama(), []
    for _ in range(2):
        costs = step_costs(model)
        for _ in range(200):
            planned.append(costs.plain())
            costs.record_time(1 if planned[-1] else 9, 0.02)
            costs.record_acceptance(9, 0 if planned[-1] else 8, 8)
    assert planned[:3] == [False, False, True]  # the first steps are not timed
    assert sum(planned[3:200]) == 1
    assert 1 <= sum(planned[200:]) <= 2
    engine = step_costs(packed=True)
    planned.clear()
    for _ in range(300):
        planned.append(engine.plain())
        engine.rows = 1 + len(planned) % 7
        engine.record_time(1 if planned[-1] else 9, 0.02)
    assert planned[0]
    assert 5 < sum(planned[:100]) < 12
    assert sum(planned[200:]) <= 2


def test_heads_cost_what_their_forwards_take_beside_plain_steps():
    costs = step_costs(kind=FLAT)
    head = DraftingModel(None, 97, costs, 0.25)
    assert head.cost(1) == 0.25
    assert head.reading_cost(100) == math.inf  # a draft for the prefill
    costs.record_prefill(6.0, 300)
    assert head.reading_cost(100) == math.inf  # no other forward has been timed
    fed(costs, {1: 0.5}, 3)
    assert head.reading_cost(100) == pytest.approx(0.25 * 100 * 0.02 / 0.5)
    for seconds in (9.0, 0.1, 0.1):  # caches are cold in the first
        head.record(seconds)
    assert head.cost(1) == pytest.approx(0.2)
    costs.record_prefill(0.5, MIN_PREFILL_POSITIONS - 1)  # says nothing about long texts
    assert head.reading_cost(100) == 0.0


@pytest.mark.parametrize(("times", "accepted"), [(4, 1), (8, 6)])
def test_a_draft_that_costs_more_than_it_gives_is_found_out(times, accepted):
    """Where a draft is assumed to cost 1.9 plain steps."""
    costs, planned = step_costs(), []
    for _ in range(150):
        planned.append(costs.plain())
        costs.record_time(1 if planned[-1] else 9, 0.01 if planned[-1] else 0.01 * times)
        costs.record_acceptance(9, 0 if planned[-1] else 8, accepted)
    assert costs.required_tokens()[9] > 1 + accepted


def steps(costs, plan, machine=lambda at: 1.0):
    """Run steps of given widths on a machine where five positions cost 1.3 of one."""
    for at, width in enumerate(plan):
        costs.plain()
        costs.record_time(width, machine(at) * (0.02 if width == 1 else 0.026))
        costs.record_acceptance(width, width - 1, 0)


def test_a_machine_that_slows_down_does_not_change_what_widths_cost():
    """Plain steps while it is slow, drafted ones while it is fast, and the other way round."""
    for slow in (2.0, 0.5):
        model = tiny_llama()
        costs = step_costs(model)
        steps(
            costs, [1] * 4 + ([1] * 9 + [5] * 20) * 3, lambda at, slow=slow: slow if at < 40 else 1
        )
        assert costs.times()[5] == pytest.approx(1.3, abs=0.12)
        again = step_costs(model)
        steps(again, [5] * 12, lambda at: 3.0)  # another call, on a machine three times as slow
        assert again.times()[5] == pytest.approx(1.3, abs=0.12)


def test_drafts_that_cost_more_than_they_yield_have_to_promise_more():
    """How many times what eight tokens add to a step's cost a draft of them must promise."""
    costs = fed(step_costs(), {1: 0.02, 5: 0.026, 9: 0.03, 33: 0.04, 65: 0.05}, 40)
    price = costs.times()[9:].min() - 1  # about half a plain step

    def factor():
        return (costs.required_tokens()[9] - 1 - MARGIN) / price

    assert factor() == pytest.approx(1.5, abs=0.01)
    costs.record_acceptance(9, 8, 0)
    assert factor() == pytest.approx(2.5 - REPAID, abs=0.01)
    costs.record_acceptance(1, 0, 0)
    assert factor() == pytest.approx(2.5 - 2 * REPAID, abs=0.01)
    for _ in range(40):
        costs.record_acceptance(9, 8, 0)
    assert factor() == pytest.approx(1.5 + MAX_LOSSES, abs=0.01)
    costs.record_acceptance(9, 8, 1)
    assert factor() == pytest.approx(2.5 + MAX_LOSSES - REPAID - 1 / price, abs=0.01)
    costs.record_acceptance(9, 8, 2)
    assert factor() == pytest.approx(1.5, abs=0.01)
    assert required_tokens(np.array([1, 1, 0.8, 1.5], np.float32)).tolist() == (
        pytest.approx([1, 1, 0.82, 1.77])
    )


def test_losses_count_by_row_and_less_for_cheap_drafts():
    costs = fed(step_costs(rows=4), {1: 0.02, 9: 0.03}, 40)
    costs.record_acceptance(9, 32, 0)
    costs.record_acceptance(9, 32, 1)  # a quarter of a token a row, of about half a step
    price = costs.times()[9:].min() - 1
    assert costs._losses == pytest.approx(2 - 2 * REPAID - 0.25 / price, abs=0.01)
    assert losses_after(0.0, 1.0 + CHEAP / 5, 0) == pytest.approx(0.2 - REPAID)
    assert losses_after(0.0, 1.0, 0) == 0.0


def test_text_does_not_depend_on_padding():
    model = tiny_llama()
    text = model.generate(IDS, max_new_tokens=100)
    fed(step_costs(model), {1: 0.02} | {n: 0.03 for n in range(2, 60) if n != 24} | {24: 0.021}, 20)
    widths = []
    forward = model.forward
    model.forward = lambda *args, **kwargs: (
        widths.append(kwargs["input_ids"].shape[1]) or forward(*args, **kwargs)
    )
    ours = model.generate(IDS, max_new_tokens=100, custom_generate=Speculator("copy+ngram"))
    assert torch.equal(text, ours)
    assert 24 in widths[1:]


@pytest.mark.measured
def test_what_the_machine_takes_is_what_is_learned(monkeypatch):
    model, clock = tiny_llama(), [0.0]
    forward = model.forward
    monkeypatch.setattr("ngramspec.decoding.loop.perf_counter", lambda: clock[0])

    def slow(*args, **kwargs):
        clock[0] += 0.06 if kwargs["input_ids"].shape[1] > 1 else 0.01
        return forward(*args, **kwargs)

    text = model.generate(IDS, max_new_tokens=100)[0].tolist()
    model.forward = slow
    speculator = Speculator(oracle(text), gamma_max=8)
    model.generate(IDS, max_new_tokens=100, custom_generate=speculator)
    assert step_costs(model).times()[9] > 1.9


def test_the_counts_of_steps_are_bounded():
    """An engine's steps have any number of rows and of positions."""
    model = step_costs().model
    pairs = [(rows, rows + drafted) for rows in range(1, 61) for drafted in range(30)]
    for at, pair in enumerate(pairs):
        for given in (pair, pair, (1, 1)):
            model._count(*given)
        if at == MAX_COUNTS // 2:
            assert len(model.counts) == sum(map(len, model.timed.values())) == at + 1
    assert set(model.counts) == {(1, 1), *pairs[1 - MAX_COUNTS :]}
    assert model.counts[1, 1] == len(pairs) + 2
    timed = [(rows, each) for rows, of in model.timed.items() for each in of]
    assert sorted(timed) == sorted(model.counts)


def test_forwards_of_a_few_widths_count_at_those():
    costs = step_costs(sizes=(1, 4, 16, 65))
    costs.plain(), costs.plain()
    for width, seconds in [*[(1, 0.02)] * 5, (2, 0.08), (4, 0.08)]:
        costs.record_time(width, seconds)
    assert [costs.model.counts.get((1, width), 0) for width in (1, 2, 4, 16)] == [5, 0, 2, 0]
    cost = costs.required_tokens()
    assert cost[4] > 1.2
    assert cost[2] == cost[3] == cost[4] > 1
    assert cost[5] == cost[16]
    assert costs.width(3, 65) == 3  # the target pads it


def test_pending_tokens_widen_a_forward_and_plain_steps_get_rid_of_them():
    kind = replace(KIND, machine="gpu")
    costs = fed(step_costs(kind=kind, pads=False), {1: 0.02, 5: 0.03, 9: 0.04, 17: 0.06})
    free = costs.required_tokens().copy()
    costs.at(0, 0)
    assert free[9] < costs.required_tokens()[9] < 1.4 * free[9]  # half of all drafts leave some
    costs.at(0, 8)
    relative = costs.times()[17] / costs.times()[9]
    assert costs.required_tokens()[9] > 1 + 1.5 * (relative - 1)
    assert costs.required_tokens()[2] > 1.2
    flat = step_costs(kind=kind, pads=False)
    unmeasured = flat.required_tokens()[2]
    flat.at(0, 30)
    assert flat.required_tokens()[2] == pytest.approx(unmeasured, rel=0.05)


def test_in_a_prefill_a_draft_costs_what_its_own_positions_add():
    costs = step_costs()
    costs.at(300)
    step = costs.required_tokens()
    costs.at(300, prefill=True)
    prefill = costs.required_tokens()
    assert prefill[2] < step[2]
    slope = float(costs.times()[65] - costs.times()[33]) / 32
    assert prefill[40] - prefill[10] == pytest.approx(1.5 * 30 * slope, rel=0.01)
