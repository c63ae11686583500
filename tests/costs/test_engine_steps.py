"""Costs of steps of all numbers of rows are learned together, from few and noisy times."""

from __future__ import annotations

import numpy as np
import pytest

from ngramspec.costs.engine_steps import OCTAVES, EngineStepCosts, _hats, _Linear, _octaves, _Table

MOST = 1024
ROWS = (1, 2, 3, 4, 6, 8, 11, 16)


def measured(rows, drafted):
    """Seconds of vLLM's steps on one core: SmolLM2-135M, float32, eager."""
    return 0.066 + 0.004 * rows + 0.00245 * drafted


def dearer(rows, drafted):
    return 0.066 + 0.004 * rows + 0.008 * drafted


def cheaper(rows, drafted):
    return 0.066 + 0.004 * rows + 0.001 * drafted


def on_a_gpu(rows, drafted):
    """Positions are free up to 64, and paid behind."""
    return 0.01 * max(1.0, (rows + drafted) / 64)


def learned(seconds, steps, device="cpu", rows=ROWS, noise=0.06, speed=lambda step: 1.0):
    """The costs after so many steps, a third of them without a draft."""
    random = np.random.default_rng(7)
    costs = EngineStepCosts(device, "float32", MOST)
    for step in range(steps):
        r = int(random.choice(rows))
        d = int(random.choice((0, random.integers(1, 6), random.integers(1, 6 * r + 2))))
        costs.record_time(
            r, d, speed(step) * seconds(r, d) * np.exp(noise * random.standard_normal())
        )
    return costs


def off(costs, seconds, rows, most):
    """By what factor the curve is wrong at worst, of steps of up to ``most`` tokens a row."""
    curve = costs.curve(rows, most * rows)
    wanted = np.array([seconds(rows, d) / seconds(rows, 0) for d in range(most * rows + 1)])
    return float(np.exp(np.abs(np.log(curve / wanted)).max()))


@pytest.mark.parametrize("rows", ROWS)
def test_a_cpu_is_taken_to_be_a_little_dearer_than_measured_at_first(rows):
    curve = EngineStepCosts("cpu", "float32", MOST).curve(rows, 12 * rows)
    wanted = [measured(rows, d) / measured(rows, 0) for d in range(12 * rows + 1)]
    assert np.all(curve >= np.array(wanted) - 1e-6)
    assert np.all(curve <= 1.15 * np.array(wanted))


@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("seconds", [measured, dearer, cheaper])
def test_sixty_steps_of_a_cpu_are_enough(seconds, rows):
    assert off(learned(seconds, 60), seconds, rows, 6) < 1.15


@pytest.mark.parametrize("rows", [1, 16, 40])
def test_hundred_steps_of_a_gpu_are_enough(rows):
    costs = learned(on_a_gpu, 100, "gpu", rows=(1, 4, 16, 40))
    assert off(costs, on_a_gpu, rows, 2) < 1.3


def test_what_is_learned_of_some_numbers_of_rows_holds_for_others():
    costs = learned(dearer, 100, rows=(4, 12))
    assert off(costs, dearer, 8, 4) < 1.15


def test_swings_of_the_machine_s_speed_are_not_taken_for_costs():
    """Another process takes half the time of each block of twenty steps."""
    costs = learned(measured, 200, speed=lambda step: 1.0 + step // 20 % 2)
    for rows in ROWS:
        assert off(costs, measured, rows, 6) < 1.25


@pytest.mark.parametrize("token", [0.004, 0.012])
@pytest.mark.parametrize("first", [0.0, 0.004])
def test_twenty_steps_of_quantized_weights_are_enough_where_tokens_are_dear(token, first):
    """llama.cpp: 0.2 or 0.6 of a step for each drafted token, and more for the first one."""

    def quantized(rows, drafted):
        return 0.02 + token * drafted + first * (drafted > 0)

    random = np.random.default_rng(5)
    costs = EngineStepCosts("cpu", "quantized", MOST)
    for _ in range(20):
        drafted = int(random.choice((0, 1, 2, 4)))
        costs.record_time(
            1, drafted, quantized(1, drafted) * np.exp(0.04 * random.standard_normal())
        )
    assert off(costs, quantized, 1, 6) < 1.2


def test_dear_tokens_are_soon_believed_though_they_were_taken_to_be_cheap():
    """Weights of which nothing is known, whose drafted tokens are fifteen times as dear."""
    for seed in range(8):
        random = np.random.default_rng(seed)
        costs = EngineStepCosts("cpu", "float32", MOST)
        for _ in range(20):
            drafted = int(random.choice((0, 1, 2, 4)))
            seconds = (0.02 + 0.012 * drafted) * np.exp(0.04 * random.standard_normal())
            costs.record_time(1, drafted, seconds)
        price = costs.curve(1, 4)[-1] - 1.0
        assert price == pytest.approx(4 * 0.6, rel=0.25)


@pytest.mark.parametrize("seed", range(4))
def test_stalls_of_a_cpu_s_steps_do_not_bend_what_is_known(seed):
    """A tenth of all steps stall, and the machine's speed changes every thirty steps."""
    random = np.random.default_rng(seed)
    stalls = 1.0 + (random.random(2000) < 0.1) * random.exponential(0.5, 2000)
    speeds = np.exp(0.15 * random.standard_normal(67)).repeat(30)[:2000] * stalls
    for steps in (500, 1000, 1500, 2000):
        costs = learned(measured, steps, noise=0.04, speed=lambda step: speeds[step])
        for rows in (1, 4, 16):
            price = costs.curve(rows, 2 * rows)[-1] - 1.0
            assert price == pytest.approx(measured(rows, 2 * rows) / measured(rows, 0) - 1, rel=0.4)


def test_other_costs_are_learned_after_those_of_the_past():
    """An engine whose drafted tokens become three times as dear, as contexts may make them."""
    random = np.random.default_rng(3)
    costs = EngineStepCosts("cpu", "float32", MOST)
    for step in range(900):
        rows, seconds = int(random.choice(ROWS)), measured if step < 500 else dearer
        drafted = int(random.integers(0, 3 * rows))
        costs.record_time(
            rows, drafted, seconds(rows, drafted) * np.exp(0.04 * random.standard_normal())
        )
    for rows in ROWS:
        assert off(costs, dearer, rows, 4) < 1.15


def test_one_step_has_the_features_that_it_has_in_an_array():
    hats = _hats(MOST + 1)
    for positions in range(1, MOST + 1):
        row = np.zeros(OCTAVES)
        for at, share in _octaves(positions):
            row[at] = share
        np.testing.assert_allclose(row, hats[positions], atol=1e-12)
    for form, own in ((_Linear("float32"), np.array((0.3, -0.2))), (_Table(64, "float32"), [0.1])):
        drafted = np.arange(24)
        logs, features = form.steps(5, drafted, own)
        for d in drafted.tolist():
            log, feature = form.steps(5, d, own)
            assert log == pytest.approx(logs[d])
            assert feature == pytest.approx([each[d] for each in features])


def test_a_curve_begins_with_one_and_never_falls():
    costs = learned(lambda rows, drafted: 0.01 if drafted else 0.02, 50)
    for rows in (1, 5, MOST - 3, MOST, MOST + 5):
        curve = costs.curve(rows, 24)
        assert curve.dtype == np.float32
        assert curve[0] == 1.0
        assert np.all(np.diff(curve) >= 0)
        assert len(curve) == 1 + min(24, max(MOST - rows, 0))


@pytest.mark.parametrize("device", ["cpu", "gpu"])
def test_times_that_mean_nothing_do_no_harm(device):
    """Of any length, or none at all, and numbers of rows and tokens beyond what is told apart."""
    random = np.random.default_rng(11)
    costs = EngineStepCosts(device, "float32", 64)
    for step in range(4000):
        seconds = float(10.0 ** random.uniform(-12, 9)) * (step % 7 > 0)
        likely = costs.record_time(
            int(random.integers(1, 90)), int(random.integers(0, 90)), seconds
        )
        assert 0 <= likely <= 1
    for rows in (1, 8, 64, 90):
        assert np.isfinite(costs.curve(rows, 90)).all()
