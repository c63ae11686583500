"""Whose turn it is."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from ngramspec.server.errors import ApiError
from ngramspec.server.scheduler import MAX_TURNS_BEFORE_CHAT, Scheduler


class FakeJob:
    def __init__(self, name, first=True, ready=True, joins=False):
        self.name, self.request, self.joins = name, SimpleNamespace(first=first), joins
        self.cancelled, self.ended, self.ready = False, False, ready

    def __repr__(self):
        return self.name


def turns(scheduler, count):
    return "".join(str(job) for _ in range(count) for job in scheduler.next())


def test_jobs_take_fair_turns():
    scheduler = Scheduler(4, 4)
    scheduler.add([FakeJob("a"), FakeJob("b")])
    scheduler.add([FakeJob("c")])
    assert turns(scheduler, 6) == "abcabc"


def test_completions_come_before_chats_which_are_not_forgotten():
    scheduler = Scheduler(4, 4)
    chat, job = FakeJob("x", first=False), FakeJob("a")
    scheduler.add([chat])
    assert turns(scheduler, 2) == "xx"
    scheduler.add([job])
    assert (
        turns(scheduler, 2 * MAX_TURNS_BEFORE_CHAT + 2) == ("a" * MAX_TURNS_BEFORE_CHAT + "x") * 2
    )
    scheduler.remove(job)
    assert turns(scheduler, 2) == "xx"


def test_a_waiting_completion_gets_the_next_place():
    scheduler = Scheduler(1, 4)
    first, chat, job = FakeJob("a"), FakeJob("x", first=False), FakeJob("b")
    scheduler.add([first])
    assert turns(scheduler, 1) == "a"
    scheduler.add([chat])
    scheduler.add([job])
    assert (scheduler.active, scheduler.waiting) == (1, 2)
    scheduler.remove(first)
    assert turns(scheduler, 2) == "bb"


def test_a_cancelled_job_has_the_next_turn_even_if_it_waits():
    scheduler = Scheduler(1, 4)
    first, second = FakeJob("a"), FakeJob("b")
    scheduler.add([first])
    scheduler.add([second])
    second.cancelled = True
    assert scheduler.next() == [second]


def test_a_newer_request_of_a_session_cancels_the_older_one():
    scheduler = Scheduler(4, 4)
    older, newer, other = FakeJob("a"), FakeJob("b"), FakeJob("c")
    scheduler.add([older], ("u", "s"))
    scheduler.add([other], ("v", "s"))
    scheduler.add([newer], ("u", "s"))
    assert [job.cancelled for job in (older, newer, other)] == [True, False, False]
    older.ended = True
    scheduler.remove(older)
    scheduler.add([FakeJob("d")], ("u", "s"))
    assert newer.cancelled


def test_too_many_are_refused_whole():
    scheduler = Scheduler(1, 2)
    scheduler.add([FakeJob("a"), FakeJob("b")])
    with pytest.raises(ApiError, match="too many requests"):
        scheduler.add([FakeJob("c"), FakeJob("d")])
    assert len(scheduler) == 2
    scheduler.add([FakeJob("e")])


def test_a_job_that_is_not_ready_is_passed_over():
    scheduler = Scheduler(4, 4)
    second = FakeJob("b", ready=False)
    scheduler.add([FakeJob("a"), second])
    assert turns(scheduler, 2) == "aa"
    second.ready = True
    assert sorted(turns(scheduler, 2)) == ["a", "b"]


def test_steps_that_can_share_a_forward_are_one_turn():
    scheduler = Scheduler(5, 5)
    steps = [FakeJob(name, joins=True) for name in "ac"]
    prefill = FakeJob("b")
    scheduler.add([steps[0]])
    scheduler.add([prefill])
    scheduler.add([steps[1]])
    assert [scheduler.next() for _ in range(4)] == [steps, [prefill], steps, [prefill]]
    prefill.joins = True
    assert scheduler.next() == [*steps, prefill]
    steps[1].cancelled = True
    assert scheduler.next() == [steps[1]]
    scheduler.remove(steps[1])
    assert sorted(turns(scheduler, 1)) == ["a", "b"]


def test_chats_do_not_ride_along_with_completions():
    scheduler = Scheduler(4, 4)
    chats = [FakeJob(name, first=False, joins=True) for name in "xy"]
    job = FakeJob("a", joins=True)
    scheduler.add([*chats, job])
    assert [scheduler.next() for _ in range(MAX_TURNS_BEFORE_CHAT + 1)] == [
        [job]
    ] * MAX_TURNS_BEFORE_CHAT + [chats]


def test_nothing_to_do():
    assert Scheduler(1, 1).next() == []
