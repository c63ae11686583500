"""Explaining a run: predictions from known figures, and what was judged at which depth."""

from __future__ import annotations

from itertools import count

import numpy as np
import pytest
from forced_text import tiny_loaded

from ngramspec import Speculator
from ngramspec.measure.explain import (
    Run,
    Share,
    by_depth,
    curve,
    explain,
    first_rejected,
    judged,
    ladder,
    page,
    tree_text,
)
from ngramspec.stats import DecodeStats, SourceStats
from ngramspec.theory.walltime import improvement

GAMMA, STEPS, ONE = 3, 40, 0.01


def step(index=1, drafted=3, accepted=(), emitted=1, parents=None, prompt=0, width=None):
    return {
        "prompt": prompt,
        "index": index,
        "width": drafted + 1 if width is None else width,
        "drafted": [f" d{node}" for node in range(drafted)],
        "source": ["copy"] * drafted,
        "parents": parents,
        "accepted": list(accepted),
        "verified": 0,
        "emitted": [f" e{token}" for token in range(emitted)],
        "draft_seconds": 0.0,
        "forward_seconds": ONE,
        "other_seconds": 0.0,
    }


def ideal_run(alpha=0.7, seed=1, cost=lambda n: 1.0, other=0.0):
    """A run in which every assumption of Theorem 3.8 holds, but for what is said otherwise."""
    rng = np.random.default_rng(seed)
    hits = rng.random((STEPS, GAMMA)) < alpha
    counts = np.cumprod(hits, axis=1).sum(axis=1)
    steps = [step(i + 1, GAMMA, range(n), n + 1) for i, n in enumerate(counts.tolist())]
    emitted = int((counts + 1).sum())
    verified = int(np.minimum(counts + 1, GAMMA).sum())
    forward = ONE * cost(GAMMA + 1) * STEPS
    stats = DecodeStats(
        runs=1,
        target_calls=STEPS,
        emitted=emitted,
        drafted=GAMMA * STEPS,
        verified=verified,
        accepted=int(counts.sum()),
        prefill_seconds=0.0,
        other_seconds=other * STEPS,
        sources={"copy": SourceStats(GAMMA * STEPS, verified, int(counts.sum()))},
    )
    return Run(
        "model",
        {**Speculator("copy+ngram", GAMMA).to_dict(), "new": 9, "repeats": 1},
        {n: ONE * cost(n) for n in (1, 2, 4, 8)},
        100,
        ["a"],
        [emitted + 1],
        [True],
        [step(0, 0), *steps],
        stats,
        [emitted * ONE],
        [forward + other * STEPS],
        [0.0],
    )


def test_where_the_assumptions_hold_all_predictions_are_the_measurement():
    run = ideal_run()
    speeds = [rung.speed for rung in ladder(run)]
    assert speeds[1:] == pytest.approx([run.measured] * (len(speeds) - 1))
    assert speeds[0] == pytest.approx(run.measured, rel=0.1)  # one alpha for 40 steps' luck
    assert speeds[0] == pytest.approx(float(improvement(run.stats.alpha, GAMMA)))


def test_each_cause_is_found_in_its_own_rung():
    flat, steep = ideal_run(), ideal_run(cost=lambda n: 1 + 0.1 * (n - 1))
    speeds = {rung.name: rung.speed for rung in ladder(steep)}
    assert speeds["acceptance as measured"] == pytest.approx(flat.measured)
    assert speeds["cost(n)"] == pytest.approx(flat.measured / 1.3)
    assert speeds["cost(n)"] == pytest.approx(speeds["measured"])
    slow = ideal_run(other=ONE)
    speeds = {rung.name: rung.speed for rung in ladder(slow)}
    assert speeds["cost(n)"] == pytest.approx(flat.measured)
    assert speeds["overhead"] == pytest.approx(flat.measured / 2)
    assert speeds["overhead"] == pytest.approx(speeds["measured"])


def test_prefill_is_the_last_part():
    run = ideal_run()
    run.stats.prefill_seconds = 0.5
    run.plain_first_seconds, run.plain_seconds = [0.5], [0.5 + run.plain_seconds[0]]
    run.speculative_seconds = [0.5 + run.speculative_seconds[0]]
    speeds = {rung.name: rung.speed for rung in ladder(run)}
    assert speeds["prefill"] == pytest.approx(speeds["measured"])
    assert speeds["prefill"] < speeds["overhead"]


@pytest.mark.parametrize(
    ("plain", "says"),
    [
        (1.05, "plain: 0.50 ms"),
        (1.01, "plain: below the noise of 0.20 ms"),
        (0.99, "plain: below the noise of 0.20 ms"),
        (0.97, "not resolved"),
    ],
)
def test_a_part_below_the_noise_has_no_figure(plain, says):
    run = ideal_run()
    run.plain_seconds = [plain * run.plain_seconds[0]]
    run.plain_rounds = run.speculative_rounds = [[0.49, 0.5, 0.5]]
    assert run.noise == pytest.approx(0.02)
    overhead = next(rung for rung in ladder(run) if rung.name == "overhead")
    assert says in overhead.says
    assert overhead.resolved == (says != "not resolved")


def test_noise_is_the_range_of_the_rounds():
    run = ideal_run()
    assert run.noise is None
    assert "only one timed round" in run.noise_says
    run.plain_rounds = [[1.0, 1.5, 1.0], [2.0, 1.5, 2.6]]  # 3.0, 3.0, 3.6 together
    run.speculative_rounds = [[1.0, 1.0, 1.0], [1.0, 1.0, 1.0]]
    assert run.noise == pytest.approx(0.2)
    assert "differ by up to 20%" in run.noise_says
    run.plain_rounds = run.speculative_rounds
    assert run.noise == 0.01


def test_every_round_of_a_run_is_kept(monkeypatch):
    """By a clock that goes on by a second at each look."""
    now = count()
    monkeypatch.setattr("ngramspec.measure.calls.perf_counter", lambda: float(next(now)))
    monkeypatch.setattr(
        "ngramspec.measure.explain.forward_seconds",
        lambda model, context, widths, *rest: dict.fromkeys(widths, 2.0),
    )
    stages = []
    prompts = [("a", [5, 6, 7, 5, 6, 7]), ("b", [8, 9, 8, 9])]
    found = explain(
        tiny_loaded(), prompts, Speculator("copy"), new=8, repeats=3, on_stage=stages.append
    )
    assert found.plain_rounds == found.speculative_rounds == [[1.0] * 3] * 2
    assert found.noise == 0.01
    assert "prompt 2 of 2: whole calls" in stages
    assert not {rung.name: rung.resolved for rung in ladder(found)}["overhead"]


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (step(), [(0, 0, False)]),
        (step(accepted=(0, 1), emitted=3), [(0, 0, True), (1, 1, True), (2, 2, False)]),
        (step(accepted=(0,), emitted=1), [(0, 0, True)]),  # a stop: the rest was not judged
        (
            step(drafted=4, accepted=(1, 2), emitted=3, parents=[-1, -1, 1, 0]),
            [(0, 0, False), (1, 0, True), (2, 1, True)],
        ),
        (step(drafted=0), []),
    ],
)
def test_what_a_step_judged(given, expected):
    assert judged(given) == expected


def test_acceptance_by_depth_counts_steps():
    steps = [
        step(0, 0),
        step(accepted=(0, 1), emitted=3),
        step(),
        step(drafted=2, accepted=(1,), emitted=2, parents=[-1, -1]),
    ]
    assert by_depth(steps) == {0: Share(3, 2), 1: Share(1, 1), 2: Share(1, 0)}


def test_costs_between_and_beyond_the_measured():
    cost = curve({n: ONE * (1 + 0.1 * (n - 1)) for n in (1, 2, 4, 8)})
    assert cost[[1, 2, 3, 8, 20]] == pytest.approx([1, 1.1, 1.2, 1.7, 2.9])


def test_a_tree_is_told_in_lines():
    given = step(drafted=4, accepted=(1, 2), emitted=3, parents=[-1, -1, 1, 0])
    assert tree_text(given).splitlines()[1:] == [
        "· ' d0' (copy)",
        "  · ' d3' (copy)",
        "✓ ' d1' (copy)",
        "  ✓ ' d2' (copy)",
    ]
    assert first_rejected(given) is None
    assert first_rejected(step(accepted=(0,), emitted=2)) == 1
    assert "no draft" in tree_text(step(drafted=0))


def test_the_page_escapes_and_needs_nothing_else():
    run = ideal_run()
    run.steps[1]["emitted"][0] = "<script>&"
    html = page(run)
    assert "<script" not in html
    assert "&lt;script&gt;&amp;" in html
    for word in ("http://", "https://", "src=", "@import", "url("):
        assert word not in html
    for word in ("Theorem 3.8", "position 3", "✓"):
        assert word in html
    assert html.count("<svg") == 4  # a source and three positions
