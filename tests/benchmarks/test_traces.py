"""The public traces, which the benchmarks play."""

from __future__ import annotations

import json

from benchmarks import agent_sessions
from benchmarks.harness import ROOT
from benchmarks.tables import PUBLIC
from ngramspec.measure.traces import by_group, read_traces


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
