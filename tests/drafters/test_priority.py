"""Drafters in order of priority: each continues where those above it end."""

from __future__ import annotations

import pytest
from doubles import ScriptedDrafter, draft_of, ids

from ngramspec.drafters import (
    CopyDrafter,
    PriorityDrafter,
)


def test_tiers_lower_ones_are_asked_only_where_higher_ones_end():
    asked = []

    def source(name, tokens):
        class Named(ScriptedDrafter):
            source_names = (name,)

            def start(self, committed):
                session = super().start(committed)
                session.propose_after = lambda drafted, gamma: (
                    asked.append((name, drafted.tolist(), gamma)) or draft_of(tokens[:gamma])
                )
                return session

        return Named(lambda at, gamma: draft_of(tokens[:gamma]))

    drafter = PriorityDrafter([source("a", [1, 2]), source("b", []), source("c", [3, 4, 5])])
    session = drafter.start(ids(9))
    draft = session.propose(4)
    assert draft.tokens.tolist() == [1, 2, 3, 4]
    assert [drafter.source_names[i] for i in draft.source] == ["a", "a", "c", "c"]
    assert asked == [("a", [], 4), ("b", [1, 2], 2), ("c", [1, 2], 2)]
    asked.clear()
    assert session.propose(2).tokens.tolist() == [1, 2]
    assert asked == [("a", [], 2)]


@pytest.mark.parametrize(
    ("accepted", "verified", "expected"),
    [
        (4, 4, {"a": (2, 2), "b": (2, 2)}),
        (3, 4, {"a": (2, 2), "b": (1, 2)}),
        (2, 3, {"a": (2, 2), "b": (0, 1)}),
        (1, 2, {"a": (1, 2)}),
        (0, 1, {"a": (0, 1)}),
        (1, 1, {"a": (1, 1)}),
        (0, None, {"a": (0, 1)}),
        (4, None, {"a": (2, 2), "b": (2, 2)}),
    ],
)
def test_each_tier_observes_its_own_part(accepted, verified, expected):
    parts = {"a": [1, 2], "b": [3, 4]}
    drafters = {}
    for name, tokens in parts.items():
        drafters[name] = ScriptedDrafter(lambda at, gamma: draft_of([]))
        start = drafters[name].start

        def begin(committed, start=start, tokens=tokens):
            session = start(committed)
            session.propose_after = lambda drafted, gamma: draft_of(tokens[:gamma])
            return session

        drafters[name].start = begin
    session = PriorityDrafter(list(drafters.values())).start(ids(9))
    draft = session.propose(4)
    session.observe(draft, range(accepted), verified)
    got = {
        name: (len(drafter.observed[0][1]), drafter.observed[0][2])
        for name, drafter in drafters.items()
        if drafter.observed
    }
    assert got == expected


def test_a_custom_drafter_below_others_begins_but_does_not_continue():
    custom = ScriptedDrafter(lambda at, gamma: draft_of([50] * gamma))
    session = PriorityDrafter([CopyDrafter(2), custom]).start(ids(1, 2, 3))
    draft = session.propose(3)
    assert draft.tokens.tolist() == [50, 50, 50]
    assert draft.source.tolist() == [1, 1, 1]
