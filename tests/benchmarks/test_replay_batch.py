"""Replay in batches of ``generate``: one width for all rows, chains and trees."""

from __future__ import annotations

import json

import numpy as np
import pytest
from command import exit_code
from test_replay_rows import Knowing, trace

from benchmarks.__main__ import main
from benchmarks.replay_batch import GeneratePlan, GeneratePlayer, compare_trees, flat, measured
from ngramspec.drafters import build_drafter
from ngramspec.measure.replay import Plan, Player
from ngramspec.measure.traces import write_traces


def test_costs_by_hand():
    assert flat(4).tolist() == [1, 1, 1, 1, 1, 1.25]
    plan = GeneratePlan(3, flat(4), gamma_max=3)
    assert plan.cost(3).tolist() == [1, 1, 1.5, 2.25, 3]
    assert plan.cost(1).tolist() == [1, 1, 1, 1, 1]
    known = measured(np.array([1, 1, 1, 1.5, 1.5, 1.5], np.float32))
    assert known.tolist() == [1, 1, 1, 1.5]
    assert GeneratePlan(2, known, gamma_max=1).cost(2).tolist() == [1, 1, 2]


def test_the_sure_row_widens_the_forward_of_all():
    """Two rows of 12 tokens, one of which is sure: three forwards, in which positions are free."""
    traces = [trace(seed, count=13) for seed in range(2)]
    drafter = Knowing(traces, [1.0, 0.001])
    player = GeneratePlayer(drafter, GeneratePlan(2, flat(100), gamma_max=4)).play(traces)
    assert player.plain == 12
    assert drafter.lengths["0"][0] == drafter.lengths["1"][0] == 4
    assert player.tally.emitted == 24
    assert player.tally.cost == 3  # all that is drafted is right


def test_one_row_is_the_replay_of_single_traces():
    traces = [trace(seed) for seed in range(4)]
    for tree in (False, True):
        plan = Plan(np.ones(10, np.float32), gamma_max=8, tree=tree)
        alone = Player(build_drafter("auto"), plan).play(traces).groups["g"]
        own = GeneratePlan(1, flat(9), gamma_max=8, tree=tree)
        batch = GeneratePlayer(build_drafter("auto"), own).play(traces).tally
        for name in ("emitted", "target_calls", "drafted", "accepted"):
            assert getattr(batch, name) == getattr(alone, name), name


def test_all_rows_are_played_to_their_ends():
    traces = [trace(seed, count=20 + 7 * seed, group=f"group {seed % 2}") for seed in range(7)]
    found = compare_trees(lambda: build_drafter("auto"), GeneratePlan(3, flat(64)), traces)
    assert set(found) == {"group 0", "group 1", "mean"}
    for measure in ("tokens_per_call", "speedup"):
        values = [found[f"group {each}"]["trees"][measure] for each in range(2)]
        assert found["mean"]["trees"][measure] == pytest.approx(np.sqrt(values[0] * values[1]))
        assert min(values) > 1


def test_the_command(tmp_path, capsys):
    path, out = tmp_path / "traces.jsonl", tmp_path / "out.json"
    write_traces(path, [trace(seed, group=f"group {seed % 2}") for seed in range(4)])
    options = ["replay", "--traces", str(path), "--json", str(out), "--new", "30"]
    assert exit_code([*options, "--together", "2", "4", "--curve", "cpu"], main) == 0
    results = json.loads(out.read_text())["results"]
    assert [(each["rows"], each["curve"]) for each in results] == [(2, "cpu"), (4, "cpu")]
    assert set(results[0]["groups"]) == {"group 0", "group 1", "mean"}
    assert "auto, 4 rows, cpu" in capsys.readouterr().out
    assert exit_code([*options, "--together", "0"], main) == 2
