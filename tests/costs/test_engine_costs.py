"""Costs of an engine's steps are learned from few and noisy times, and decide what is drafted."""

from __future__ import annotations

import numpy as np
import pytest
from doubles import Clock
from engine_rows import Guess

from ngramspec.costs.engine import GivenEngineCosts, LearnedEngineCosts
from ngramspec.costs.steps import StepCosts
from ngramspec.draft import EMPTY_DRAFT
from ngramspec.engines.rows import Rows, RowState

K = 8


class SimulatedEngine:
    """Steps take what ``seconds(rows, drafted)`` says, on a clock of its own."""

    def __init__(self, confidence, seconds, rows=1, costs=None, seed=0):
        self.clock = Clock(100.0)
        self.seconds = seconds
        self.random = np.random.default_rng(seed)
        self.confidence = confidence
        costs = LearnedEngineCosts(K) if costs is None else costs
        self.drafter = Rows(Guess(), K, 100, 1 << 20, costs, clock=self.clock)
        self.texts = [np.full(1 << 16, round(100 * confidence), np.int32) for _ in range(rows)]
        self.lengths = [10] * rows
        self.drafts = [EMPTY_DRAFT] * rows
        self.emitted = 0

    def step(self, pause=0.0):
        drafted = sum(len(each) for each in self.drafts)
        self.clock.now += self.seconds(len(self.texts), drafted) + pause
        told = []
        for at, draft in enumerate(self.drafts):
            right = self.random.random(len(draft)) < self.confidence
            new = int(np.cumprod(right).sum()) + 1
            self.lengths[at] += new
            self.emitted += new
            told.append(RowState(at, self.texts[at], self.lengths[at], [0] * new))
        self.drafts = self.drafter.step(told)
        return sum(len(each) for each in self.drafts)

    def run(self, steps, **kwargs):
        return [self.step(**kwargs) for _ in range(steps)]


def cheap(rows, drafted):
    """A GPU with room: positions are nearly free."""
    return 0.01 * (1 + 0.002 * drafted)


def costly(rows, drafted):
    """A CPU: positions are paid, the more so the more rows there are."""
    return 0.01 * (rows + drafted)


def middling(rows, drafted):
    return 0.01 * (1 + 0.02 * rows + 0.2 * drafted)


def test_cheap_positions_are_used_up():
    engine = SimulatedEngine(0.8, cheap)
    assert max(engine.run(20)) == K
    assert np.mean(engine.run(200)[20:]) > 0.95 * K


@pytest.mark.parametrize("rows", [1, 4, 16])
def test_dear_positions_are_hardly_drafted_for(rows):
    """Where a position costs as much as a row, even a sure draft gains nothing."""
    engine = SimulatedEngine(0.9, costly, rows)
    engine.run(200)
    assert np.mean(engine.run(300)) < 0.02 * rows * K


def test_never_much_slower_than_plain():
    """Whatever positions cost, and however seldom drafts are right."""
    for seconds in (cheap, costly, middling):
        for rows in (1, 16):
            for confidence in (0.05, 0.5, 0.95):
                engine = SimulatedEngine(confidence, seconds, rows)
                engine.run(700)
                speed = engine.emitted / (engine.clock.now - 100)
                assert speed > 0.97 * rows / seconds(rows, 0), (seconds, rows, confidence)


def test_pauses_teach_nothing():
    """The engine waits for a slow client in every fifth step, once for an hour."""
    engine = SimulatedEngine(0.8, cheap)
    engine.run(50)
    engine.step(pause=3600.0)
    for _ in range(60):
        engine.run(4)
        engine.step(pause=0.3)
    assert np.mean(engine.run(50)) > 0.9 * K


def test_a_machine_that_became_slower_is_followed():
    engine = SimulatedEngine(0.8, cheap)
    engine.run(100)
    engine.seconds = lambda rows, drafted: 7 * cheap(rows, drafted)
    engine.run(60)
    assert np.mean(engine.run(100)) > 0.9 * K
    engine.seconds = costly
    engine.run(600)
    assert np.mean(engine.run(200)) < 0.05 * K


def test_longer_contexts_are_not_taken_for_the_cost_of_drafts():
    engine = SimulatedEngine(0.8, cheap)
    for step in range(600):
        engine.seconds = lambda rows, drafted, at=step: (1 + at / 4000) * cheap(rows, drafted)
        engine.step()
    assert engine.drafter.costs.relative(1, K)[K] < 1.2


def test_steps_with_prefills_are_not_timed():
    """A row comes with every other step, whose prefill takes thirty times as long."""
    clock = Clock(100.0)
    took = []

    class Noted(LearnedEngineCosts):
        def record_time(self, rows, drafted, seconds):
            took.append(seconds)

    rows = Rows(Guess(), K, 100, 1 << 20, Noted(K), clock=clock)
    text = np.full(1000, 50, np.int32)
    for step in range(40):
        with_prefill = step % 2 == 0
        clock.now += 0.3 if with_prefill else 0.01
        told = [RowState(f"{step // 2}", text, 10 + step % 2, [0])]
        told.append(RowState("long", text, 100 + step, [0]))
        if step % 10 == 5:
            clock.now += 0.2
            told.append(RowState("in its prefill", text, 500, []))
        rows.step(told)
    assert took == pytest.approx([0.01] * 16)


def test_steps_that_cannot_be_timed_are_drafted_for_in_the_end():
    costs = LearnedEngineCosts(K)
    plans = [costs.curve(3) is None for _ in range(20)]
    assert plans == [True] * StepCosts.MAX_UNTIMED + [False] * (20 - StepCosts.MAX_UNTIMED)


def test_given_curves():
    given = GivenEngineCosts({1: {8: 1.8}, 16: {16: 2.0, 32: 4.0}})
    assert given.curve(3)[[0, 4, 8, 16]] == pytest.approx([1, 1.4, 1.8, 2.6])
    assert given.curve(12)[[0, 16, 32, 48]] == pytest.approx([1, 2, 4, 6])
    engine = SimulatedEngine(0.9, cheap, costs=GivenEngineCosts({1: {8: 9.0}}))
    assert engine.run(30) == [0] * 30


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({}, "at least one number of rows"),
        ({1: {}}, "costs of 1 rows must have at least one entry"),
        ({0: {1: 1.0}}, "rows must be >= 1, got 0"),
        ({2: {0: 1.0}}, "costs of 2 rows: drafted must be >= 1 .* got 0: 1.0"),
        ({2: {4: float("nan")}}, "got 4: nan"),
        ({2: {4: -1.0}}, "got 4: -1.0"),
    ],
)
def test_given_curves_that_are_wrong_are_refused(table, message):
    with pytest.raises(ValueError, match=message):
        GivenEngineCosts(table)


ROWS = (1, 2, 3, 4, 6, 8, 11, 16)


def on_a_core(token):
    """Seconds of vLLM's steps on one core: SmolLM2-135M, float32, eager; ``token`` a token."""
    return lambda rows, drafted: 0.066 + 0.004 * rows + token * drafted


measured, costlier, cheaper = map(on_a_core, (0.00245, 0.008, 0.001))


def on_a_gpu(rows, drafted):
    """Positions cost nothing up to 64, and something beyond."""
    return 0.01 * max(1.0, (rows + drafted) / 64)


def learned(
    seconds,
    steps,
    device="cpu",
    rows=ROWS,
    noise=0.06,
    speed=lambda step: 1.0,
    costs=None,
    drafted=None,
    seed=7,
):
    """The costs after ``steps`` steps; by default, a third of them has no draft."""
    random = np.random.default_rng(seed)
    costs = costs or LearnedEngineCosts(K, device, "float32")
    for step in range(steps):
        r = int(random.choice(rows))
        some = drafted or (0, random.integers(1, 6), random.integers(1, 6 * r + 2))
        d = int(random.choice(some))
        costs.record_time(
            r, d, speed(step) * seconds(r, d) * np.exp(noise * random.standard_normal())
        )
    return costs


FEW = {"rows": (1,), "noise": 0.04, "drafted": (0, 1, 2, 4)}


def off(costs, seconds, rows, most):
    """By what factor the curve is wrong at worst, of steps of up to ``most`` tokens a row."""
    curve = costs.relative(rows, most * rows)
    wanted = np.array([seconds(rows, d) / seconds(rows, 0) for d in range(most * rows + 1)])
    return float(np.exp(np.abs(np.log(curve / wanted)).max()))


@pytest.mark.parametrize("rows", ROWS)
def test_a_cpu_is_taken_to_be_a_little_dearer_than_measured_at_first(rows):
    curve = LearnedEngineCosts(K, "cpu", "float32").relative(rows, 12 * rows)
    wanted = [measured(rows, d) / measured(rows, 0) for d in range(12 * rows + 1)]
    assert np.all(curve >= np.array(wanted) - 1e-6)
    assert np.all(curve <= 1.15 * np.array(wanted))


def halved(step):
    """Another process takes half the time of each block of twenty steps."""
    return 1.0 + step // 20 % 2


@pytest.mark.parametrize(
    ("seconds", "steps", "how", "rows", "most", "factor"),
    [
        *[(each, 60, {}, ROWS, 6, 1.15) for each in (measured, costlier, cheaper)],
        (on_a_gpu, 100, {"device": "gpu", "rows": (1, 4, 16, 40)}, (1, 16, 40), 2, 1.3),
        (costlier, 100, {"rows": (4, 12)}, (8,), 4, 1.15),  # these rows were not timed
        (measured, 200, {"speed": halved}, ROWS, 6, 1.25),
    ],
)
def test_some_steps_are_enough(seconds, steps, how, rows, most, factor):
    costs = learned(seconds, steps, **how)
    assert max(off(costs, seconds, each, most) for each in rows) < factor


@pytest.mark.parametrize("token", [0.004, 0.012])
@pytest.mark.parametrize("first", [0.0, 0.004])
def test_twenty_steps_of_quantized_weights_are_enough_where_tokens_are_expensive(token, first):
    """llama.cpp: 0.2 or 0.6 of a step for each drafted token, and more for the first one."""

    def quantized(rows, drafted):
        return 0.02 + token * drafted + first * (drafted > 0)

    costs = LearnedEngineCosts(K, "cpu", "quantized")
    assert off(learned(quantized, 20, **FEW, costs=costs, seed=5), quantized, 1, 6) < 1.2


def test_expensive_tokens_are_learned_soon_though_they_were_assumed_cheap():
    """Weights of which nothing is known, whose drafted tokens cost fifteen times as much."""
    for seed in range(8):
        expensive = learned(lambda _, d: 0.02 + 0.012 * d, 20, **FEW, seed=seed)
        price = expensive.relative(1, 4)[-1] - 1.0
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
            price = costs.relative(rows, 2 * rows)[-1] - 1.0
            assert price == pytest.approx(measured(rows, 2 * rows) / measured(rows, 0) - 1, rel=0.4)


def test_other_costs_are_learned_after_those_of_the_past():
    """An engine whose drafted tokens come to cost three times as much, as in long contexts."""
    costs = learned(costlier, 400, noise=0.04, costs=learned(measured, 500, noise=0.04))
    for rows in ROWS:
        assert off(costs, costlier, rows, 4) < 1.15


def test_a_curve_begins_with_one_and_never_falls():
    costs = learned(lambda rows, drafted: 0.01 if drafted else 0.02, 50)
    for rows in (1, 5, 300, 2000):
        curve = costs.relative(rows, 24)
        assert curve.dtype == np.float32
        assert curve[0] == 1.0
        assert np.all(np.diff(curve) >= 0)
        assert len(curve) == 25


@pytest.mark.parametrize("device", ["cpu", "gpu"])
def test_times_that_mean_nothing_do_no_harm(device):
    """Of any length, or none at all, and numbers of rows and tokens beyond what is told apart."""
    random = np.random.default_rng(11)
    costs = LearnedEngineCosts(K, device, "float32")
    for step in range(4000):
        seconds = float(10.0 ** random.uniform(-12, 9)) * (step % 7 > 0)
        costs.record_time(int(random.integers(1, 90)), int(random.integers(0, 90)), seconds)
    for rows in (1, 8, 64, 90):
        assert np.isfinite(costs.relative(rows, 90)).all()
