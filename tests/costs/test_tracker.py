"""One generation's costs: which widths run, when steps are plain."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from conftest import tiny_llama
from cost_models import IDS, KIND, fed, tracker
from doubles import oracle

from ngramspec import Speculator
from ngramspec.costs.curve import curve_of
from ngramspec.costs.tracker import DraftMargin, StepCostTracker


def test_a_draft_is_padded_to_a_width_that_is_measured_to_be_cheaper():
    costs = fed(tracker(), {1: 0.02, 2: 0.05, 3: 0.05, 5: 0.03}, 20)
    assert [costs.width(n, 65) for n in (1, 2, 3, 4, 5, 6)] == [1, 5, 5, 5, 5, 6]
    assert costs.width(2, 4) == 2  # there is no room for 5
    envelope = costs.cost()
    assert envelope[2] == envelope[5]
    assert (np.diff(envelope) >= 0).all()
    assert envelope.flags.c_contiguous


def test_a_plain_step_is_timed_while_the_cost_of_drafts_is_unknown_and_matters():
    costs, planned = tracker(), []
    for _ in range(12):
        planned.append(costs.plain())
        costs.record_time(1 if planned[-1] else 5, 0.02)
        costs.record_acceptance(0 if planned[-1] else 4, 0 if len(planned) % 2 else 1)
    # the first step is not timed, and the second one is the first with a draft that was
    assert planned[:3] == [False, False, True]
    assert sum(planned) < 4
    assert not any(tracker(tokens=20).plain() for _ in range(12))


def test_few_plain_steps_are_timed_while_drafts_gain_much():
    model, planned = tiny_llama(), []
    for _ in range(2):
        costs = tracker(model)
        for _ in range(200):
            planned.append(costs.plain())
            costs.record_time(1 if planned[-1] else 9, 0.02)
            costs.record_acceptance(0 if planned[-1] else 8, 8)
    assert sum(planned[:20]) == StepCostTracker.INITIAL_PLAIN_STEPS
    assert 1 <= sum(planned[20:200]) <= 2
    assert sum(planned[200:]) == 1


@pytest.mark.parametrize(("times", "accepted"), [(4, 1), (8, 6)])
def test_a_draft_that_costs_more_than_it_gives_is_found_out(times, accepted):
    """Where a draft is assumed to cost 1.9 plain steps."""
    costs, planned = tracker(), []
    for _ in range(150):
        planned.append(costs.plain())
        costs.record_time(1 if planned[-1] else 9, 0.01 if planned[-1] else 0.01 * times)
        costs.record_acceptance(0 if planned[-1] else 8, accepted)
    assert costs.chains()[9] > 1 + accepted


def steps(costs, plan, machine=lambda at: 1.0):
    """Run steps of given widths on a machine where five positions cost 1.3 of one."""
    for at, width in enumerate(plan):
        costs.plain()
        costs.record_time(width, machine(at) * (0.02 if width == 1 else 0.026))
        costs.record_acceptance(width - 1, 0)


def test_a_machine_that_slows_down_does_not_change_what_widths_cost():
    """Plain steps while it is slow, drafted ones while it is fast, and the other way round."""
    for slow in (2.0, 0.5):
        model = tiny_llama()
        costs = tracker(model)
        steps(
            costs, [1] * 4 + ([1] * 9 + [5] * 20) * 3, lambda at, slow=slow: slow if at < 40 else 1
        )
        assert costs.chains()[5] == pytest.approx(1.3, abs=0.12)
        again = tracker(model)
        steps(again, [5] * 12, lambda at: 3.0)  # another call, on a machine three times as slow
        assert again.chains()[5] == pytest.approx(1.3, abs=0.12)


def test_costs_do_not_drift_while_nothing_is_compared():
    """A first plain step that was slow, then many of another width: they say nothing new."""
    costs = tracker()
    steps(costs, [1] * 4 + [5] * 9, lambda at: 1.1 if at == 1 else 1.0)
    before = costs.chains()[5]
    steps(costs, [5] * 120)
    assert costs.chains()[5] == pytest.approx(before, rel=0.03)
    steps(costs, ([1] + [5] * 8) * 12)
    assert costs.chains()[5] == pytest.approx(1.3, abs=0.12)


def factor(costs):
    """How many times what eight tokens add to a step's cost a draft of them must promise."""
    return (costs.cost()[9] - 1 - DraftMargin.MARGIN) / (costs.chains()[9:].min() - 1)


def timed_often(costs):
    """Costs that are known well, of which eight tokens add half a step's."""
    return fed(costs, {1: 0.02, 5: 0.026, 9: 0.03, 33: 0.04, 65: 0.05}, 40)


def test_drafts_that_are_rejected_have_to_promise_more_and_plain_steps_come_between():
    costs = timed_often(tracker())
    assert costs.cost()[1] == 1
    assert factor(costs) == pytest.approx(1.5, abs=0.01)
    dues = []
    for _ in range(40):
        dues.append(costs.plain())
        width = 1 if dues[-1] else 5
        costs.record_time(width, 0.02)
        costs.record_acceptance(width - 1, 0)
    assert 40 // 9 <= sum(dues) < 10
    assert factor(costs) == pytest.approx(1.5 + 8 * 0.25, abs=0.1)
    for _ in range(16 * 4):
        costs.record_acceptance(0, 0)
    assert factor(costs) == pytest.approx(1.5 + 4 * 0.25, abs=0.1)  # it is forgotten
    costs.record_acceptance(4, 1)
    assert factor(costs) == pytest.approx(1.5, abs=0.01)


def test_no_draft_is_believed_to_make_a_forward_cheaper():
    costs = tracker()
    fed(costs, {1: 0.02, 5: 0.01, 9: 0.03})
    assert (costs.cost()[2:] > 1.01).all()


def test_a_generation_measures_and_the_next_one_knows():
    model = tiny_llama()
    text = model.generate(IDS, max_new_tokens=100)
    speculator = Speculator(oracle(text[0].tolist()))
    ours = model.generate(IDS, max_new_tokens=100, custom_generate=speculator)
    assert torch.equal(text, ours)
    learned = curve_of(model, KIND)
    assert sum(map(learned.count, range(2, 66))) > 0
    steps = learned.steps
    model.generate(IDS, max_new_tokens=100, custom_generate=speculator)
    assert learned.steps > steps


def test_text_does_not_depend_on_padding():
    model = tiny_llama()
    text = model.generate(IDS, max_new_tokens=100)
    fed(tracker(model), {1: 0.02} | {n: 0.03 for n in range(2, 60) if n != 24} | {24: 0.021}, 20)
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
    monkeypatch.setattr("ngramspec.decoding.recorder.perf_counter", lambda: clock[0])

    def slow(*args, **kwargs):
        clock[0] += 0.06 if kwargs["input_ids"].shape[1] > 1 else 0.01
        return forward(*args, **kwargs)

    text = model.generate(IDS, max_new_tokens=100)[0].tolist()
    model.forward = slow
    speculator = Speculator(oracle(text), gamma_max=8)
    model.generate(IDS, max_new_tokens=100, custom_generate=speculator)
    assert curve_of(model, KIND).cost(9, 50)[9] > 1.9


def test_forwards_of_a_few_widths_count_at_those():
    costs = tracker(sizes=(1, 4, 16, 65))
    costs.plain(), costs.plain()
    for width, seconds in [*[(1, 0.02)] * 5, (2, 0.08), (4, 0.08)]:
        costs.record_time(width, seconds)
    assert [costs.curve.count(width) for width in (1, 2, 4, 16)] == [5, 0, 2, 0]
    cost = costs.cost()
    assert cost[4] > 1.2
    assert cost[2] == cost[3] == cost[4] > 1
    assert cost[5] == cost[16]
    assert costs.width(3, 65) == 3  # the target pads it


def test_pending_tokens_widen_a_forward_and_plain_steps_get_rid_of_them():
    costs = fed(tracker(kind=replace(KIND, machine="gpu")), {1: 0.02, 5: 0.03, 9: 0.04, 17: 0.06})
    free = costs.cost().copy()
    for _ in range(20):
        costs.record_acceptance(4, 4)  # whole drafts: nothing is left pending
    costs.at(0, 0)
    assert costs.cost()[9] == pytest.approx(free[9], rel=0.02)
    costs.at(0, 8)
    relative = costs.chains()[17] / costs.chains()[9]
    assert costs.cost()[9] == pytest.approx(1.02 + 1.5 * (relative - 1), rel=0.02)
    for _ in range(20):
        costs.record_acceptance(4, 2)  # whatever is drafted is pending again
    assert costs.cost()[2] > 1.5
    flat = tracker(kind=replace(KIND, machine="gpu"))
    unmeasured = flat.cost()[2]
    flat.at(0, 30)
    assert flat.cost()[2] == pytest.approx(unmeasured, rel=0.05)


def test_in_a_prefill_a_draft_costs_what_its_own_positions_add():
    costs = tracker()
    costs.at(300)
    step = costs.cost()
    costs.at(300, prefill=True)
    prefill = costs.cost()
    assert prefill[2] < step[2]
    slope = float(costs.chains()[65] - costs.chains()[33]) / 32
    assert prefill[40] - prefill[10] == pytest.approx(
        30 * slope * prefill[2] / (1 + slope), rel=0.01
    )


def test_the_margin_is_higher_until_drafts_were_timed():
    costs = tracker()
    first = costs.cost()[9] / costs.chains()[9:].min()
    fed(costs, {1: 0.02, 9: 0.0202}, 3)  # eight tokens are found to add next to nothing
    assert costs.cost()[9] / costs.chains()[9:].min() < first - 0.1


def test_costs_that_are_not_known_are_found_out_with_a_smaller_factor():
    cost = np.array([1, 1, 1.5], np.float32)
    assert DraftMargin().required(cost, known=0).tolist() == pytest.approx([1, 1, 1.52])
    assert DraftMargin().required(cost).tolist() == pytest.approx([1, 1, 1.77])
