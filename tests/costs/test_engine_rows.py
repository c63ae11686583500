"""What steps of a batch cost is learned from a simulated engine, and decides what is drafted."""

from __future__ import annotations

import numpy as np
import pytest

from ngramspec.costs.engine_rows import GivenEngineCosts, LearnedEngineCosts
from ngramspec.draft import EMPTY_DRAFT, Draft
from ngramspec.drafters.base import Drafter, DraftSession
from ngramspec.engines.rows import Rows, RowState

K = 8


def chain(*confidence):
    n = len(confidence)
    return Draft(np.arange(n, dtype=np.int32), None, np.array(confidence, np.float32))


class Sure(Drafter):
    """Drafts as many tokens as it may, all of one confidence, which is the truth."""

    estimates = True

    def __init__(self, confidence):
        self.confidence = confidence

    def start(self, tokens):
        return SureSession(self.confidence)


class SureSession(DraftSession):
    def __init__(self, confidence):
        self.confidence = confidence

    def propose(self, gamma, cost=None, *, tree=False):
        return chain(*[self.confidence] * gamma)

    def extend(self, tokens):
        return None


class Clock:
    def __init__(self):
        self.now = 100.0

    def __call__(self):
        return self.now


class SimulatedEngine:
    """Steps take what ``seconds(rows, drafted)`` says, on a clock of its own."""

    def __init__(self, confidence, seconds, rows=1, costs=None, seed=0):
        self.clock = Clock()
        self.seconds = seconds
        self.random = np.random.default_rng(seed)
        self.confidence = confidence
        costs = LearnedEngineCosts(K) if costs is None else costs
        self.drafter = Rows(Sure(confidence), K, 100, 1 << 20, costs, clock=self.clock)
        self.texts = [np.zeros(1 << 16, np.int32) for _ in range(rows)]
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


def dear(rows, drafted):
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
    engine = SimulatedEngine(0.9, dear, rows)
    engine.run(200)
    assert np.mean(engine.run(300)) < 0.02 * rows * K


def test_drafts_shrink_as_rows_are_added():
    """A twentieth of a step for a position: sixteen rows draft hardly anything."""

    def drafted(rows, confidence):
        engine = SimulatedEngine(
            confidence, lambda rows, drafted: 0.01 * (1 + 0.02 * rows + 0.05 * drafted), rows
        )
        engine.run(150)
        return np.mean(engine.run(200)) / rows

    sure = [drafted(rows, 0.95) for rows in (1, 4, 16)]
    rare = [drafted(rows, 0.2) for rows in (1, 4, 16)]
    assert sure[0] > sure[1] > sure[2]
    assert rare[0] > 0.5
    assert rare[1] < 0.1
    assert rare[2] < 0.1


@pytest.mark.parametrize(("seconds", "most"), [(cheap, K), (dear, 0), (middling, K)])
def test_the_curve_is_what_the_engine_s_steps_take(seconds, most):
    engine = SimulatedEngine(0.95, seconds)
    engine.run(300)
    curve = engine.drafter.costs.curve(1)
    wanted = [seconds(1, d) / seconds(1, 0) for d in range(most + 1)]
    assert curve[: most + 1] == pytest.approx(wanted, rel=0.25)


def test_never_much_slower_than_plain():
    """Whatever positions cost, and however seldom drafts are right."""
    for seconds in (cheap, dear, middling):
        for rows in (1, 4, 16):
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
    engine.seconds = dear
    engine.run(600)
    assert np.mean(engine.run(200)) < 0.05 * K


def test_longer_contexts_are_not_taken_for_the_cost_of_drafts():
    engine = SimulatedEngine(0.8, cheap)
    for step in range(600):
        engine.seconds = lambda rows, drafted, at=step: (1 + at / 4000) * cheap(rows, drafted)
        engine.step()
    assert engine.drafter.costs.curve(1)[K] < 1.2


def test_steps_with_prefills_are_not_timed():
    """A row comes with every other step, whose prefill takes thirty times as long."""
    clock = Clock()
    took = []

    class Noted(LearnedEngineCosts):
        def record_time(self, rows, drafted, seconds):
            took.append(seconds)

    rows = Rows(Sure(0.5), K, 100, 1 << 20, Noted(K), clock=clock)
    text = np.zeros(1000, np.int32)
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


def test_a_number_of_rows_begins_with_what_is_known_of_others():
    costs = LearnedEngineCosts(K, "cpu", "float32")
    for step in range(200):
        drafted = step % (4 * K + 1)
        costs.record_time(4, drafted, middling(4, drafted))
    curve = costs.curve(5)
    assert curve[0] == 1.0
    assert curve[K] == pytest.approx(middling(5, K) / middling(5, 0), rel=0.15)


def test_steps_that_cannot_be_timed_are_drafted_for_in_the_end():
    costs = LearnedEngineCosts(K)
    plans = [costs.curve(3) is None for _ in range(20)]
    assert plans == [True] * LearnedEngineCosts.MAX_UNTIMED_PLAIN_STEPS + [False] * (
        20 - LearnedEngineCosts.MAX_UNTIMED_PLAIN_STEPS
    )


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
