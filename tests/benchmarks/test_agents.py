"""The public agent sessions are those of their script."""

from __future__ import annotations

import json

from benchmarks import agent_sessions
from benchmarks.agents import turns
from benchmarks.harness import ROOT
from benchmarks.tables import PUBLIC


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
