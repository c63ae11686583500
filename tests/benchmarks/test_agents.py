"""Agent sessions: the public ones, and their replay."""

from __future__ import annotations

import json

import numpy as np
import pytest

from benchmarks import agent_sessions
from benchmarks.__main__ import main
from benchmarks.agents import turns
from benchmarks.harness import ROOT
from benchmarks.tables import PUBLIC, TABLES
from ngramspec.measure.traces import Trace, by_group, write_traces


@pytest.fixture
def recorded(tmp_path):
    """A file of a session and its repetition, whose turns copy each other, and one turn without."""
    rng, traces = np.random.default_rng(0), []
    outputs = [rng.integers(1, 90, 24).astype(np.int32) for _ in range(2)]
    for group, session in (("first", "t.0"), ("again", "t.1"), ("again", "other.1")):
        history = rng.integers(1, 90, 40).astype(np.int32)
        for turn, output in enumerate(outputs):
            traces.append(Trace(group, f"{session}/{turn}", history, output, session=session))
            new = rng.integers(1, 90, 8).astype(np.int32)
            history = np.concatenate((history, output, new))
    traces.append(Trace("first", "no session", outputs[0], outputs[1]))
    path = tmp_path / "traces.jsonl"
    write_traces(path, traces)
    return path


def test_public_sessions_carry_their_history_and_vary():
    traces = turns(ROOT / PUBLIC)
    groups = by_group(traces)
    assert list(groups) == [agent_sessions.FIRST, agent_sessions.AGAIN]
    assert all("scripted" in each.id for each in traces)
    before: dict[str, list[int]] = {}
    for each in traces:
        prompt, known = each.prompt.tolist(), before.get(each.session, [])
        assert prompt[: len(known)] == known
        before[each.session] = prompt + each.output.tolist()
    first, again = (
        {each.session: each.output.tolist() for each in groups[group]} for group in groups
    )
    assert any(first[name] != again[name[:-1] + "1"] for name in first)


def test_public_sessions_are_those_of_the_script():
    """By their number of turns, and the calls, whose form all agree on."""
    passages = dict.fromkeys(("ferry", "meeting", "bakery"), "text")
    made = list(agent_sessions.traces(lambda text: list(text.encode()), passages))
    assert [each.id for each in made] == [each.id for each in turns(ROOT / PUBLIC)]
    names = {each["function"]["name"] for each in agent_sessions.tools()}
    calls = [bytes(each.output.tolist()).decode() for each in made]
    calls = [json.loads(text.split("\n")[1]) for text in calls if text.startswith("<tool_call>")]
    assert {call["name"] for call in calls} == names
    for call in calls:
        assert call["arguments"].keys() == agent_sessions.SCHEMAS[call["name"]][1].keys()


def test_replay_of_sessions(recorded, tmp_path, capsys):
    out = tmp_path / "out.json"
    assert main(["agents", "--traces", str(recorded), "--tree", "16", "--json", str(out)]) == 0
    found = json.loads(out.read_text())
    assert found["turns"] == {"first": 2, "again": 4}
    assert len(found["rows"]) == 2 * 2 * 3
    known = {
        row["known"]: row["tokens_per_cost"]
        for row in found["rows"]
        if row["trees"] and row["curve"] == "gpu"
    }
    assert known["no store"]["again"] < 1.5
    assert known["store"]["first"] < 1.5
    assert known["store"]["again"] > 4
    assert "trees, gpu, ngramspec, store: tokens per cost first" in capsys.readouterr().out
    table = TABLES["agents"].render(found)
    assert "| again | 4 | ngramspec, store |" in table
