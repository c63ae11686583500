"""Drafters that break the rules cost a draft at most; those that keep failing are stopped."""

from __future__ import annotations

import logging

import numpy as np
import pytest
import torch
from conftest import tiny_llama
from doubles import ScriptedDrafter, draft_of
from faulty_drafters import (
    BROKEN,
    HOSTILE,
    TEXT,
    VOCAB,
    Counting,
    drafting_of,
    learn,
    raising,
    step,
    with_,
)

from ngramspec import Speculator, Verdict
from ngramspec.costs.policies import make_controller
from ngramspec.decoding.row import FORGIVING_DRAFTS as FORGIVEN
from ngramspec.decoding.row import MAX_FAULTS as FAULTS
from ngramspec.draft import EMPTY_DRAFT
from ngramspec.drafters import CalibratedDrafter, PriorityDrafter


def begin_sampled(row, session):
    session.begin_sampling(1.0, (7, 0))


@pytest.mark.parametrize("tree", [False, True])
@pytest.mark.parametrize("case", HOSTILE)
@pytest.mark.parametrize("inside", [None, PriorityDrafter, CalibratedDrafter])
def test_whatever_propose_returns_costs_the_draft_at_most(case, tree, inside):
    drafter = Counting(HOSTILE[case])
    if inside is not None:
        drafter = inside([drafter] if inside is PriorityDrafter else drafter)
    drafting, stats = drafting_of(drafter, tree=8 if tree else None)
    replaced = inside is CalibratedDrafter and case.startswith("confidence")
    for _ in range(2):
        assert len(step(drafting, stats)) == (3 if replaced else 0)
    drafting.close()
    assert replaced or stats.drafter_faults >= 2


@pytest.mark.parametrize("case", BROKEN)
def test_a_drafter_that_is_none_costs_the_draft_at_most(case):
    cost = np.ones(20, np.float32)
    controller = make_controller("auto", 8, lambda: cost)
    kwargs = {"controller": controller, "begin": begin_sampled, "tree": "auto"}
    drafting, stats = drafting_of(BROKEN[case], **kwargs)
    if case.startswith("branches"):  # looked at where there is a cost
        BROKEN[case].estimates = True
    for _ in range(2):
        assert len(step(drafting, stats)) == 0
    drafting.close()
    assert stats.drafter_faults >= 2
    assert stats.sources == {}


def test_in_a_generation_too(tiny, caplog):
    prompt = torch.tensor([[5, 6, 7, 8, 5, 6, 7]])
    plain = tiny.generate(prompt, max_new_tokens=12, do_sample=False)
    drafters = [Counting(HOSTILE[case]) for case in ("proposal a string", "a subclass")]
    for drafter in (*drafters, BROKEN["source_names ()"], BROKEN["source_names that raise"]):
        speculator = Speculator(drafter, 4)
        events = []
        speculator.on_step = events.append
        ours = tiny.generate(prompt, max_new_tokens=12, do_sample=False, custom_generate=speculator)
        assert torch.equal(plain, ours)
        assert speculator.stats.drafter_faults == FAULTS
        assert speculator.stats.drafters_stopped == 1
        assert len(events) == 12


def test_what_start_returned_is_named(caplog):
    drafting, stats = drafting_of(BROKEN["start a number"])
    step(drafting, stats)
    assert "start must return a DraftSession, got int" in caplog.text


# Drafters that keep failing


@pytest.mark.parametrize("method", ["start", "propose", "observe", "extend", "begin_sampling"])
def test_a_drafter_that_keeps_failing_reads_the_text_a_few_times_only(method, caplog):
    caplog.set_level(logging.WARNING, "ngramspec")
    drafter = Counting(failing=[method])
    text = np.zeros(1000, np.int32)
    drafting, stats = drafting_of(drafter, tokens=text, begin=begin_sampled)
    for _ in range(50):
        step(drafting, stats)
    assert drafter.calls["start"] == FAULTS
    assert drafter.read < (FAULTS + 1) * len(text)
    assert stats.drafter_faults == FAULTS
    assert stats.drafters_stopped == 1
    assert drafter.calls["close"] == (0 if method == "start" else FAULTS)
    first, last = (record.getMessage() for record in caplog.records)
    assert first == f"Counting failed, the step has no draft: OSError('{method}')"
    assert last == "Counting failed 4 times and is no longer called in this generation"


def test_drafts_that_cannot_be_verified_stop_it_too():
    drafter = Counting(lambda gamma: draft_of([VOCAB]))
    drafting, stats = drafting_of(drafter)
    for _ in range(50):
        step(drafting, stats)
    assert drafter.calls == {
        **{"start": 1, "propose": 4, "extend": 4, "close": 1},
        **{"observe": 0, "begin_sampling": 0},
    }
    assert (stats.drafter_faults, stats.drafters_stopped) == (4, 1)


@pytest.mark.parametrize(("sound", "asked"), [(1, 7), (FORGIVEN - 1, 25), (FORGIVEN, 100)])
def test_now_and_then_it_may_fail(sound, asked):
    """After a few sound steps a fault is forgiven; with fewer in between faults add up."""
    calls = iter(range(1000))
    drafter = Counting(
        lambda gamma: EMPTY_DRAFT if next(calls) % (sound + 1) else raising(OSError())(gamma)
    )
    drafting, stats = drafting_of(drafter)
    for _ in range(100):
        step(drafting, stats)
    assert drafter.calls["propose"] == asked
    assert stats.drafters_stopped == (asked < 100)


def test_steps_that_ask_for_nothing_forgive_nothing():
    drafter = Counting(lambda gamma: draft_of([VOCAB]))
    drafting, stats = drafting_of(drafter)
    for _ in range(6):
        step(drafting, stats)
        for _ in range(2 * FORGIVEN):
            drafting.propose(0)
            learn(drafting, Verdict([], 0, [1]))
    assert stats.drafter_faults == FAULTS


def test_another_drafter_begins_with_a_clean_record():
    bad, other, good = (Counting(failing=["propose"]) for _ in range(3))
    good.failing = set()
    current = [bad]
    drafting, stats = drafting_of(lambda: current[0])
    for swapped_to in (bad, other, bad, good):
        current[0] = swapped_to
        for _ in range(10):
            step(drafting, stats)
    assert (bad.calls["propose"], other.calls["propose"], good.calls["propose"]) == (8, 4, 10)
    assert (stats.drafter_faults, stats.drafters_stopped) == (12, 3)
    assert stats.drafted == 20


def test_a_generation_begins_with_a_clean_record_and_logs_once_for_all_rows(caplog):
    rows, drafter = 3, Counting(failing=["propose"])
    model = tiny_llama()
    speculator = Speculator(drafter, 4)
    for runs in (1, 2):
        model.generate(
            torch.ones(3, 6).long(), max_new_tokens=20, do_sample=False, custom_generate=speculator
        )
        assert drafter.calls["start"] == rows * FAULTS * runs
        assert speculator.stats.drafters_stopped == rows * runs
        assert len(caplog.records) == 2 * runs


# Several draft sources


def test_a_tier_s_fault_behind_others_costs_its_own_part():
    def fails(drafted, gamma):
        raise OSError("below")

    below = ScriptedDrafter(lambda at, gamma: EMPTY_DRAFT)
    start = below.start

    def begin(tokens):
        session = start(tokens)
        session.propose_after = fails
        return session

    below.start = begin
    above = ScriptedDrafter(lambda at, gamma: draft_of([1, 2]))
    drafting, stats = drafting_of(PriorityDrafter([above, below]))
    for _ in range(FAULTS):
        assert step(drafting, stats).tokens.tolist() == [1, 2]
    assert len(step(drafting, stats)) == 0
    assert (stats.drafter_faults, stats.accepted) == (FAULTS, FAULTS)
    assert above.closed == below.closed == FAULTS


def test_tiers_end_with_each_other():
    good, bad = ScriptedDrafter(lambda at, gamma: EMPTY_DRAFT), Counting(failing=["close"])
    session = PriorityDrafter([bad, good]).start(TEXT)
    with pytest.raises(OSError, match="close"):
        session.close()
    assert good.closed == 1
    with pytest.raises(OSError, match="start"):
        PriorityDrafter([good, Counting(failing=["start"])]).start(TEXT)
    assert good.closed == 2


def test_tiers_without_names_are_refused_where_they_are_put_together():
    for kind in (lambda inner: PriorityDrafter([Counting(), inner]), CalibratedDrafter):
        with pytest.raises(ValueError, match=r"1\.\.128 source names, got 0"):
            kind(with_(source_names=()))
