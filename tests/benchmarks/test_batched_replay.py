"""Replays in batches, and the public traces that are replayed."""

from __future__ import annotations

import json

import numpy as np
import pytest

from benchmarks import agent_sessions
from benchmarks.harness import ROOT
from benchmarks.replay import BatchPlan, BatchPlayer, GeneratePlan, GeneratePlayer, flat, measured
from benchmarks.tables import PUBLIC
from ngramspec.drafters import build_drafter
from ngramspec.measure.replay import Player, ReplayPlan
from ngramspec.measure.traces import Trace, by_group, read_traces


def trace(seed, count=60, group="g"):
    rng = np.random.default_rng(seed)
    text = np.tile(rng.integers(3, 50, 12), 9).astype(np.int32)
    text[rng.random(len(text)) < 0.1] = 60
    return Trace(group, str(seed), text[:-count], text[-count:])


def test_the_curve_by_hand():
    curve = BatchPlan(2, gamma_max=3, free=4).curve(2)
    assert curve.tolist() == [1, 1, 1, 1.25, 1.5, 1.75, 2]
    assert BatchPlan(8, gamma_max=1, free=4).curve(8)[[0, 8]].tolist() == [1, 2]


def test_costs_by_hand():
    assert flat(4).tolist() == [1, 1, 1, 1, 1, 1.25]
    plan = GeneratePlan(3, flat(4), gamma_max=3)
    assert plan.cost(3).tolist() == [1, 1, 1.5, 2.25, 3]
    assert plan.cost(1).tolist() == [1, 1, 1, 1, 1]
    known = measured(np.array([1, 1, 1, 1.5, 1.5, 1.5], np.float32))
    assert known.tolist() == [1, 1, 1, 1.5]
    assert GeneratePlan(2, known, gamma_max=1).cost(2).tolist() == [1, 1, 2]


@pytest.mark.parametrize(
    ("player", "plan", "tree"),
    [
        (BatchPlayer, BatchPlan(1, gamma_max=8, free=9), False),
        (GeneratePlayer, GeneratePlan(1, flat(9), gamma_max=8), False),
        (GeneratePlayer, GeneratePlan(1, flat(9), gamma_max=8, tree=True), True),
    ],
)
def test_one_row_is_the_replay_of_single_traces(player, plan, tree):
    traces = [trace(seed) for seed in range(4)]
    single = ReplayPlan(np.ones(10, np.float32), gamma_max=8, tree=tree)
    alone = Player(build_drafter("auto"), single).play(traces).groups["g"]
    batch = player(build_drafter("auto"), plan).play(traces).tally
    for name in ("emitted", "target_calls", "drafted", "accepted"):
        assert getattr(batch, name) == getattr(alone, name), name


def test_the_public_traces_are_small_and_of_several_kinds():
    path = ROOT / PUBLIC
    assert path.stat().st_size <= 1_000_000
    traces = read_traces(path)
    assert all(len(each.output) <= 128 for each in traces)
    groups = by_group(each for each in traces if not each.session)
    assert groups.keys() == {"summary", "answer", "chat", "edit", "code", "tools"}
    assert all(len(each.prompt) in range(100, 600) for many in groups.values() for each in many)


def test_public_sessions_are_those_of_the_script():
    """By their number of turns, and the calls, whose form all agree on."""
    passages = dict.fromkeys(("ferry", "meeting", "bakery"), "text")
    made = list(agent_sessions.traces(lambda text: list(text.encode()), passages))
    public = [each for each in read_traces(ROOT / PUBLIC) if each.session]
    assert [(each.id, each.group) for each in made] == [(each.id, each.group) for each in public]
    names = {each["function"]["name"] for each in agent_sessions.tools()}
    calls = [bytes(each.output.tolist()).decode() for each in made]
    calls = [json.loads(text.split("\n")[1]) for text in calls if text.startswith("<tool_call>")]
    assert {call["name"] for call in calls} == names
    for call in calls:
        assert call["arguments"].keys() == agent_sessions.SCHEMAS[call["name"]][1].keys()
