"""A row: its session, what that may change, and what it never sees."""

from __future__ import annotations

import numpy as np
import pytest
from doubles import ScriptedDrafter, draft_of
from faulty_drafters import (
    OK,
    VOCAB,
    Counting,
    CountingSession,
    drafting_of,
    ids,
    learn,
    raising,
    step,
    with_,
)

from ngramspec import Draft, Verdict
from ngramspec.costs.policies import make_controller


def test_what_should_end_the_generation_ends_it():
    for error in (KeyboardInterrupt, SystemExit):
        drafting, stats = drafting_of(Counting(raising(error)))
        with pytest.raises(error):
            drafting.propose(8)
        assert stats.drafter_faults == 0


def test_names_of_tiers_are_those_of_the_session_s_start():
    class Changing(Counting):
        source_names = ("a", "b")

    drafter = Changing(lambda gamma: Draft(OK, source=np.array([0, 1, 1], np.int8)))
    drafting, stats = drafting_of(drafter)
    assert len(step(drafting, stats)) == 3
    drafter.source_names = ()
    assert len(step(drafting, stats)) == 3
    assert {name: source.drafted for name, source in stats.sources.items()} == {"a": 2, "b": 4}


def test_a_new_drafter_that_cannot_be_prepared_only_loses_drafts():
    """For instance one that takes no stores, assigned while a call that has some runs."""
    drafters = [Counting()]
    row, stats = drafting_of(lambda: drafters[-1])

    def prepared(drafter):
        if drafter is not drafters[0]:
            raise ValueError("it takes no stores")
        return drafter

    row.connect(lambda: drafters[-1], prepared=prepared)
    assert len(row.propose(8)) == 2
    drafters.append(Counting())
    assert [len(row.propose(8)) for _ in range(3)] == [0, 0, 0]
    assert stats.drafter_faults == stats.drafters_stopped == 1
    drafters.append(drafters[0])
    assert len(row.propose(8)) == 2


# What a session does to what it was given, or has returned


def test_a_session_cannot_change_a_draft_after_it_returned_it():
    buffer, source = np.zeros(8, np.int32), np.zeros(3, np.int8)

    class Writing(Counting):
        def start(self, tokens):
            session = super().start(tokens)

            def observe(draft, accepted, verified=None):
                draft.tokens[:] = -7

            session.observe = observe
            return session

    def make(gamma):
        buffer[:3] = OK
        return Draft(buffer[:3], source=source)

    drafting, stats = drafting_of(Writing(make))
    draft = drafting.propose(8)
    buffer[:] = VOCAB  # as another row's session would that shares it
    assert draft.tokens.tolist() == [1, 2, 3]
    verdict = Verdict([0], 2, [1, 6])
    learn(drafting, verdict)
    assert draft.tokens.tolist() == [1, 2, 3]
    assert draft.source.tolist() == [0, 0, 0]
    assert verdict.accepted == [0]
    assert stats.drafter_faults == 1  # what it observes is read-only
    stats.count_step(draft, verdict, drafting.source_names)


def test_a_session_observes_its_own_draft_as_far_as_it_was_verified():
    mine = draft_of([1, 2, 3, 4])
    scripted = ScriptedDrafter(lambda at, gamma: mine)
    drafting, _ = drafting_of(scripted)
    for length in (4, 2):
        drafting.reset()
        drafting.propose(8)
        drafting.cut(length)
        learn(drafting, Verdict([0], 2, [1, 6]))
    assert [draft.tokens.tolist() for draft, _, _ in scripted.observed] == [[1, 2, 3, 4], [1, 2]]


def test_costs_are_not_the_session_s_to_change():
    cost = np.linspace(1, 2, 20).astype(np.float32)

    class Session(CountingSession):
        def propose(self, gamma, cost=None, *, tree=False):
            cost[:] = 0
            return draft_of([1, 2])

    drafter = with_(estimates=True, start=lambda self, tokens: Session(self))
    drafting, stats = drafting_of(drafter, controller=make_controller("auto", 8, lambda: cost))
    for _ in range(3):
        assert len(step(drafting, stats)) == 2
    assert stats.drafter_faults == 0
    assert cost[0] == 1


# Ids that the target has no logits for


def test_drafters_never_see_ids_outside_the_vocabulary():
    seen = []

    class Reading(Counting):
        def start(self, tokens):
            seen.append(tokens.tolist())
            return super().start(tokens)

    text = ids(-100, 0, 5, VOCAB, -200, 96, 2**31 - 1, -(2**31), 7)
    drafting, stats = drafting_of(Reading(failing=["extend"]), tokens=text)
    step(drafting, stats)
    step(drafting, stats)
    assert seen == [[0, 5, 96, 7], [0, 5, 96, 7, 1, 6]]
    drafting, _ = drafting_of(Reading(), tokens=ids(-1, VOCAB))
    drafting.propose(8)
    assert seen[2] == []
