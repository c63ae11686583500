"""Explaining a run: predictions from known figures, and what was judged at which depth."""

from __future__ import annotations

import numpy as np
import pytest
from forced_text import prompt, tiny_loaded

from ngramspec import Speculator
from ngramspec.measure.explain import (
    Run,
    acceptance,
    draft_text,
    explain,
    first_rejected,
    ladder,
    page,
    rung_rows,
)
from ngramspec.stats import DecodeStats, SourceStats
from ngramspec.theory.walltime import improvement

GAMMA, STEPS, ONE = 3, 40, 0.01


def step(index=1, drafted=3, accepted=(), emitted=1, parents=None, other=0.0):
    return {
        "prompt": 0,
        "index": index,
        "width": drafted + 1,
        "drafted": [f" d{node}" for node in range(drafted)],
        "source": ["copy"] * drafted,
        "parents": list(range(-1, drafted - 1)) if parents is None else parents,
        "accepted": list(accepted),
        "emitted": [f" e{token}" for token in range(emitted)],
        "draft_seconds": 0.0,
        "forward_seconds": ONE,
        "other_seconds": other,
    }


def ideal_run(cost=lambda n: 1.0, other=0.0, prefill=0.0):
    """A run in which every assumption of Theorem 3.8 holds, but for what is said otherwise."""
    hits = np.random.default_rng(1).random((STEPS, GAMMA)) < 0.7
    counts = np.cumprod(hits, axis=1).sum(axis=1)
    counted = enumerate(counts.tolist(), 1)
    steps = [step(i, GAMMA, range(n), n + 1, other=other) for i, n in counted]
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
        prefill_seconds=prefill,
        other_seconds=other * STEPS,
        sources={"copy": SourceStats(GAMMA * STEPS, verified, int(counts.sum()))},
    )
    return Run(
        "model",
        Speculator("copy+ngram", GAMMA).to_dict(),
        ["a"],
        [True],
        [emitted + 1],
        [{n: ONE * cost(n) for n in (1, 2, 3, 4)}],
        [[prefill]],
        [[prefill + emitted * ONE]],
        [[prefill + forward + other * STEPS]],
        [step(0, 0), *steps],
        stats,
    )


def test_where_the_assumptions_hold_all_predictions_are_the_measurement():
    run = ideal_run()
    speeds = [rung.speed for rung in ladder(run)]
    assert speeds[1:] == pytest.approx([run.speedup] * (len(speeds) - 1))
    assert speeds[0] == pytest.approx(run.speedup, rel=0.1)  # alpha is an estimate from 40 steps
    assert speeds[0] == pytest.approx(float(improvement(run.stats.alpha, GAMMA)))


def test_each_cause_is_found_in_its_own_rung():
    flat, steep = ideal_run(), ideal_run(cost=lambda n: 1 + 0.1 * (n - 1))
    speeds = {rung.name: rung.speed for rung in ladder(steep)}
    assert speeds["acceptance as measured"] == pytest.approx(flat.speedup)
    assert speeds["cost(n)"] == pytest.approx(flat.speedup / 1.3)
    assert speeds["cost(n)"] == pytest.approx(speeds["measured"])
    slow = ideal_run(other=ONE)
    speeds = {rung.name: rung.speed for rung in ladder(slow)}
    assert speeds["cost(n)"] == pytest.approx(flat.speedup)
    assert speeds["overhead"] == pytest.approx(flat.speedup / 2)
    assert speeds["overhead"] == pytest.approx(speeds["measured"])


def test_prefill_is_the_last_part():
    speeds = {rung.name: rung.speed for rung in ladder(ideal_run(prefill=0.5))}
    assert speeds["prefill"] == pytest.approx(speeds["measured"])
    assert speeds["prefill"] < speeds["overhead"]


def test_texts_of_different_lengths_are_compared_per_token():
    run = ideal_run(prefill=0.5)
    longer, half = ladder(run), (run.plain_tokens[0] + 1) // 2
    run.plain_rounds = [[0.5 + (half - 1) * ONE]]
    run.plain_tokens, run.same_text = [half], [False]
    for rung, known in zip(ladder(run), longer, strict=True):
        assert rung.speed == pytest.approx(known.speed)
    assert run.text_says == "0 of 1 texts equal the baseline's; times are per token."


def test_what_the_prefill_drafts_is_no_part_of_the_steps():
    run, known = ideal_run(other=ONE), ladder(ideal_run(other=ONE))
    run.stats.draft_seconds += 0.3
    run.stats.other_seconds += 0.2
    run.speculative_rounds = [[run.speculative_rounds[0][0] + 0.5]]
    found = ladder(run)
    assert [each.speed for each in found[:4]] == pytest.approx([each.speed for each in known[:4]])
    assert found[4].speed == pytest.approx(run.speedup)


@pytest.mark.parametrize(
    ("plain", "resolved", "says"),
    [(1.05, True, "plain: 0.50 ms"), (0.99, True, "plain: 0.00 ms"), (0.97, False, "not resolved")],
)
def test_a_part_below_the_noise_has_no_figure(plain, resolved, says):
    run = ideal_run()
    seconds = plain * run.plain_rounds[0][0]
    run.plain_rounds = [[0.98 * seconds, seconds, seconds]]
    run.speculative_rounds *= 3
    run.speculative_rounds = [[each for (each,) in run.speculative_rounds]]
    assert run.noise == pytest.approx(0.02)
    rungs = {rung.name: rung.says for rung in ladder(run)}
    assert ("overhead" in rungs) == ("prefill" in rungs) == resolved
    assert says in " ".join(rungs.values())


def test_noise_is_the_range_of_the_rounds():
    run = ideal_run()
    run.plain_rounds = [[1.0, 1.5, 1.0], [2.0, 1.5, 2.6]]  # 3.0, 3.0, 3.6 together
    run.speculative_rounds = [[1.0, 1.0, 1.0], [1.0, 1.0, 1.0]]
    assert run.noise == pytest.approx(0.2)
    assert "differ by up to 20%" in run.noise_says
    assert [change[-7:] for _, _, change, _ in rung_rows(run)][1:3] == ["+0.04", "(noise)"]
    run.plain_rounds = run.speculative_rounds
    assert run.noise == 0.01
    run = ideal_run(other=0.001)
    assert [change for _, _, change, _ in rung_rows(run)][2:4] == ["+0.00 (noise)", "-0.22"]


def test_every_round_of_a_run_is_kept():
    stages = []
    prompts = [prompt(id="a", text=None), prompt(id="b", ids=(8, 9, 8, 9), text=None)]
    found = explain(
        tiny_loaded(), prompts, Speculator("copy"), new=8, repeats=3, on_stage=stages.append
    )
    assert found.prompts == ["copy, a", "copy, b"]
    rounds = (found.first_rounds, found.plain_rounds, found.speculative_rounds)
    assert [[len(times) for times in each] for each in rounds] == [[3, 3]] * 3
    assert stages == ["prompt 1 of 2", "prompt 2 of 2"]
    for each in found.steps:
        if each["index"]:
            assert {1, each["width"]} <= found.forward_seconds[each["prompt"]].keys()


def test_acceptance_by_position_counts_steps():
    run = ideal_run()
    run.steps = [
        step(0, 0),
        step(accepted=(0, 1), emitted=3),
        step(),
        step(drafted=2, accepted=(1,), emitted=2, parents=[-1, -1]),
        step(accepted=(0,), emitted=1),  # a stop: the rest was not judged
    ]
    counts = list(acceptance(run).items())[1:]  # after the source
    assert counts == [("position 1", (4, 3)), ("position 2", (1, 1)), ("position 3", (1, 0))]


def test_a_tree_is_told_in_lines():
    given = step(drafted=4, accepted=(1, 2), emitted=3, parents=[-1, -1, 1, 0])
    assert draft_text(given).splitlines()[1:] == [
        "1 · ' d0' (copy)",
        "2 ✓ ' d1' (copy) after 0",
        "3 ✓ ' d2' (copy)",
        "4 · ' d3' (copy) after 1",
    ]
    assert first_rejected(given) is None
    assert first_rejected(step(accepted=(0,), emitted=2)) == 1


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
    assert html.count("<meter") == 4  # a source and three positions
