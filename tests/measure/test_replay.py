"""Replay against hand-counted figures, traces, costs, and the commands replay and record."""

from __future__ import annotations

import json

import numpy as np
import pytest
from doubles import ScriptedDrafter, draft_of, ids
from forced_text import tiny_loaded

from ngramspec.cli import main
from ngramspec.draft import Draft, verified_nodes
from ngramspec.drafters import ValueDrafter
from ngramspec.measure.replay import Player, ReplayPlan, compare, cost_curve
from ngramspec.measure.traces import Trace, read_traces, write_traces


def trace(output, prompt=(1, 2), group="g", id="0"):
    return Trace(group, id, ids(*prompt), ids(*output))


def plan(**changes):
    return ReplayPlan(**{"cost": cost_curve("cpu", 64), "gamma": 4, **changes})


# The tree of Stratos's note: after a b, the drafts c e, c f, d g, d h.
A, B, C, D, E, F, G, H = range(8)
TREE = Draft(ids(C, D, E, F, G, H), ids(-1, -1, 0, 0, 1, 1))


@pytest.mark.parametrize(
    ("said", "path", "verified"),
    [
        ([C, E, A], [0, 2], [(0, 0), (2, 1)]),
        ([C, F, A], [0, 3], [(0, 0), (2, 1), (3, 1)]),
        ([D, G, A], [1, 4], [(0, 0), (1, 0), (4, 1)]),
        ([D, H, A], [1, 5], [(0, 0), (1, 0), (4, 1), (5, 1)]),
        ([D, A, A], [1], [(0, 0), (1, 0), (4, 1), (5, 1)]),
        ([A, C, E], [], [(0, 0), (1, 0)]),
        ([C, E], [0], [(0, 0), (2, 1), (3, 1)]),  # no room for more: the target adds the last
    ],
)
def test_the_path_through_a_tree(said, path, verified):
    accepted = TREE.path_along(said[:-1])
    assert accepted == path
    assert list(verified_nodes(TREE, accepted, len(TREE))) == [node for node, _ in verified]
    assert TREE.verdict(accepted, said[: len(accepted) + 1]).verified == len(verified)


def test_a_hand_counted_replay():
    """Steps: right right wrong; wrong; and one token with nothing left to draft."""
    drafts = {1: [11, 12, 99, 14], 4: [99], 5: [15, 16, 17, 18]}
    drafter = ScriptedDrafter(lambda at, gamma: draft_of(drafts.get(at - 2, [])[:gamma]))
    player = Player(drafter, plan()).play([trace([10, 11, 12, 13, 14, 15, 16])])
    tally = player.groups["g"]
    assert (tally.target_calls, tally.emitted) == (3, 6)
    assert (tally.drafted, tally.verified, tally.accepted) == (4 + 1 + 1, 3 + 1 + 1, 2 + 0 + 1)
    assert tally.cost == pytest.approx(1.0 + 1.0 + 1.0, abs=0.02)
    figures = tally.to_dict()
    assert figures["tokens_per_call"] == 2.0
    assert figures["alpha"] == 0.6
    assert figures["acceptance_rate"] == 0.5
    assert figures["drafted_per_step"] == 2.0
    assert len(tally.nanoseconds) == 3
    assert [gamma for _, gamma in drafter.asked] == [4, 2, 1]


def repetitive(seed, n=200, group="g"):
    rng = np.random.default_rng(seed)
    base = rng.integers(0, 50, n)
    noisy = np.where(rng.random(n) < 0.1, rng.integers(0, 50, n), base)
    return Trace(group, str(seed), base.astype(np.int32), noisy.astype(np.int32))


def test_compare_reports_groups_and_sources():
    traces = [repetitive(seed, group="ab"[seed % 2]) for seed in range(12)]
    found = compare(ValueDrafter, plan(gamma="auto"), traces)
    assert set(found["groups"]) == {"a", "b"}
    verified = sum(share["verified"] for share in found["sources"].values())
    assert verified > 100
    product = np.prod([group["tokens_per_call"] for group in found["groups"].values()])
    assert found["mean"]["tokens_per_call"] == pytest.approx(product**0.5)


def test_traces_are_written_and_read_back(tmp_path):
    path = tmp_path / "traces.jsonl"
    assert write_traces(path, [trace([5, 6, 7]), trace([8], id="short")]) == 2
    (read_back,) = read_traces(path)
    assert (read_back.group, read_back.id) == ("g", "0")
    assert read_back.prompt.tolist() == [1, 2]
    assert read_back.output.tolist() == [5, 6, 7]
    assert read_back.output.dtype == np.int32


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "line 1: not JSON"),
        pytest.param("[" * 200_000, "line 1: not JSON", id="deep"),
        ("\udcff", "line 1: not JSON"),
        ("[]", "line 1: must be an object, got list"),
        ('{"group": "g", "id": 1, "prompt": []}', "line 1: 'output' is missing"),
        ('{"group": "g", "id": 1, "prompt": [], "output": [1, -2]}', r"must lie in 0\.\."),
        ('{"group": "g", "id": 1, "prompt": "text", "output": [1]}', "prompt must be a list"),
        ('{"group": "g", "id": 1, "prompt": [true], "output": [1]}', "prompt must be a list"),
        ('{"group": "g", "id": 1, "prompt": [], "output": [1]}', "no trace with an output of two"),
    ],
)
def test_bad_traces_are_named(tmp_path, line, message):
    path = tmp_path / "traces.jsonl"
    path.write_bytes(line.encode(errors="surrogateescape"))
    with pytest.raises(ValueError, match=message):
        read_traces(path)


def test_costs_run_straight_between_their_points(tmp_path):
    cpu = cost_curve("cpu", 64)
    assert cpu.shape == (66,)
    assert cpu[1] == cpu[5] == 1.0
    assert cpu[20] == pytest.approx((1.22 + 1.40) / 2)
    path = tmp_path / "mine.json"
    path.write_text(json.dumps({"positions": [1, 3], "cost": [1, 2]}))
    assert cost_curve(str(path), 4)[1:].tolist() == [1, 1.5, 2, 2, 2]
    path.write_text(json.dumps({"positions": [1, 3], "cost": [40.0, 80.0]}))  # milliseconds
    assert cost_curve(str(path), 4)[1:].tolist() == [1, 1.5, 2, 2, 2]
    wrong = [{"positions": [2], "cost": [1]}, {"positions": [1, 1], "cost": [1, 2]}, [], {}]
    for bad in [*wrong, {"positions": [1, 2], "cost": [1, float("nan")]}]:
        path.write_text(json.dumps(bad))
        with pytest.raises(ValueError, match="positions"):
            cost_curve(str(path), 4)


@pytest.fixture
def traces(tmp_path):
    path = tmp_path / "traces.jsonl"
    write_traces(path, [repetitive(seed, group="ab"[seed % 2]) for seed in range(6)])
    return path


def test_replay_prints_and_writes(traces, tmp_path, capsys):
    out = tmp_path / "out.json"
    command = ["replay", "--traces", str(traces), "--drafter", "auto", "--drafter"]
    command += ["copy+ngram(window=64)", "--json", str(out)]
    assert main(command) == 0
    printed = capsys.readouterr().out
    for word in ("cpu curve", "gpu curve", "auto", "copy+ngram(window=64)"):
        assert word in printed
    written = json.loads(out.read_text())
    assert {result["curve"] for result in written["results"]} == {"cpu", "gpu"}
    assert written["results"][0]["groups"]["a"]["tokens_per_call"] > 1.5
    assert all(written[name] for name in ("command", "where"))


def test_replay_of_trees(traces, tmp_path):
    found = {}
    for name, arguments in (("chains", []), ("trees", ["--tree", "24"])):
        out = tmp_path / f"{name}.json"
        command = ["replay", "--traces", str(traces), "--curve", "gpu"]
        assert main([*command, "--json", str(out), *arguments]) == 0
        found[name] = json.loads(out.read_text())
    assert found["trees"]["settings"]["gamma_max"] == 24
    mean = {name: each["results"][0]["mean"] for name, each in found.items()}
    assert mean["trees"]["tokens_per_call"] > 0.9 * mean["chains"]["tokens_per_call"] > 5
    assert mean["trees"]["drafted_per_step"] <= 24
    shares = found["trees"]["results"][0]["sources"]
    assert sum(share["verified"] for share in shares.values()) > 100


def test_record_writes_what_replay_reads(tmp_path, monkeypatch, capsys):
    loaded = tiny_loaded()
    monkeypatch.setattr("ngramspec.measure.models.load", lambda *args, **kwargs: loaded)
    prompts, out = tmp_path / "p.jsonl", tmp_path / "t.jsonl"
    prompts.write_text('"Say hello."\n')
    command = ["record", "--prompts", str(prompts), "--out", str(out)]
    assert main([*command, "--max-new-tokens", "6", "--top-k", "2"]) == 0
    told = capsys.readouterr()
    assert told.err == "prompt 1 of 1\n"
    assert told.out == f"1 trace of tiny (bfloat16) in {out}\n"
    (recorded,) = read_traces(out)
    assert recorded.group == "p"
    assert len(recorded.output) == 6
    assert recorded.top_tokens.ids[:, 0].tolist() == recorded.output.tolist()  # greedy
    assert recorded.prompt.tolist() == loaded.encode("Say hello.", chat=True)
