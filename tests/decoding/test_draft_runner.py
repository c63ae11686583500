"""The drafting side of a generation against drafters that break every rule."""

from __future__ import annotations

import logging

import numpy as np
import pytest
import torch
from conftest import tiny_llama
from doubles import ScriptedDrafter, draft_of

from ngramspec import DecodeStats, Draft, Drafter, DraftSession, Proposal, Speculator, Verdict
from ngramspec.decoding.draft_runner import FAULTS, FORGIVEN, DraftRunner
from ngramspec.draft import EMPTY_DRAFT
from ngramspec.draft_length.schedule import FixedGamma, make_controller
from ngramspec.drafters import CalibratedDrafter, TieredDrafter

VOCAB = 97
TEXT = np.arange(5, dtype=np.int32)


def ids(*tokens):
    return np.array(tokens, np.int32)


class Counting(Drafter):
    """Counts what its sessions are asked, and how many tokens they were given to read.

    Args:
        make: what propose returns, called with gamma.
        failing: the methods that raise.
    """

    def __init__(self, make=lambda gamma: draft_of([1, 2]), failing=()):
        self.make, self.failing = make, set(failing)
        self.calls = dict.fromkeys(
            ("start", "propose", "observe", "extend", "close", "begin_sampling"), 0
        )
        self.read = 0

    def called(self, method):
        self.calls[method] += 1
        if method in self.failing:
            raise OSError(method)

    def start(self, tokens):
        self.read += len(tokens)
        self.called("start")
        return CountingSession(self)


class CountingSession(DraftSession):
    def __init__(self, owner):
        self.owner = owner

    def propose(self, gamma, cost=None, *, tree=False):
        self.owner.called("propose")
        return self.owner.make(gamma)

    def observe(self, draft, accepted, tested=None):
        self.owner.called("observe")

    def extend(self, tokens):
        self.owner.called("extend")

    def begin_sampling(self, temperature, seed):
        self.owner.called("begin_sampling")

    def close(self):
        self.owner.called("close")


def drafting_of(drafter, *, tokens=TEXT, controller=None, **more):
    """A DraftRunner of a drafter, or of what a function returns, and its statistics."""
    current = drafter if callable(drafter) else lambda: drafter
    stats = DecodeStats()
    return DraftRunner(current, controller or FixedGamma(8), tokens, VOCAB, stats, **more), stats


def step(drafting, stats):
    """A step as the loop does it, in which the first token is accepted."""
    draft = drafting.propose(8)
    accepted = [0] if len(draft) else []
    emitted = [int(draft.tokens[0]) if len(draft) else 5, 6]
    verdict = Verdict(accepted, min(len(draft), 2), emitted)
    drafting.learn(draft, verdict)
    stats.count_step(draft, verdict, drafting.tiers)  # and this may not raise for it
    return draft


class Bomb:
    def __getattr__(self, name):
        raise RuntimeError(name)

    def __len__(self):
        raise RuntimeError("len")

    def __bool__(self):
        raise RuntimeError("bool")

    def __eq__(self, other):
        raise RuntimeError("eq")

    __hash__ = None


class Lying(Draft):
    """A subclass that says that it is short, and fails as soon as it is used."""

    def __len__(self):
        return 1

    def as_chain(self):
        raise ZeroDivisionError

    head = as_chain


def raising(error):
    def make(gamma):
        raise error

    return make


def floats(*values):
    return np.array(values, np.float32)


OK = ids(1, 2, 3)
ONES = np.ones(3, np.float32)
HOSTILE = {
    "None": lambda gamma: None,
    "a tuple": lambda gamma: (OK,),
    "a bomb": lambda gamma: Bomb(),
    "the class": lambda gamma: Draft,
    "a subclass": lambda gamma: Lying(OK),
    "tokens None": lambda gamma: Draft(None),
    "tokens a string": lambda gamma: Draft("abc"),
    "tokens a bomb": lambda gamma: Draft(Bomb()),
    "tokens a scalar": lambda gamma: Draft(np.array(3, np.int32)),
    "tokens in two dimensions": lambda gamma: Draft(np.ones((2, 2), np.int32)),
    "tokens int64": lambda gamma: Draft(np.array([1, 2])),
    "tokens big-endian": lambda gamma: Draft(np.array([1, 2], ">i4")),
    "tokens objects": lambda gamma: Draft(np.array([1, None], object)),
    "tokens masked": lambda gamma: Draft(np.ma.masked_array(OK, [1, 1, 1])),
    "tokens masked in part": lambda gamma: Draft(np.ma.masked_array(OK, [1, 0, 0])),
    "tokens a matrix": lambda gamma: Draft(OK.view(np.matrix)),
    "tokens a subclass": lambda gamma: Draft(OK.view(type("Own", (np.ndarray,), {}))),
    "source int32": lambda gamma: Draft(OK, source=ids(0, 0, 0)),
    "source a number": lambda gamma: Draft(OK, source=7),
    "source masked": lambda gamma: Draft(OK, source=np.ma.masked_array(np.zeros(3, np.int8), 1)),
    "source out of range": lambda gamma: Draft(OK, source=np.array([0, 1, 0], np.int8)),
    "source negative": lambda gamma: Draft(OK, source=np.array([0, -1, 0], np.int8)),
    "confidence NaN": lambda gamma: Draft(OK, confidence=floats(1, np.nan, 1)),
    "confidence infinite": lambda gamma: Draft(OK, confidence=floats(1, np.inf, 1)),
    "confidence negative": lambda gamma: Draft(OK, confidence=floats(1, -5, 1)),
    "confidence float64": lambda gamma: Draft(OK, confidence=np.ones(3)),
    "confidence a string": lambda gamma: Draft(OK, confidence="x"),
    "confidence masked": lambda gamma: Draft(OK, confidence=np.ma.masked_array(ONES, [0, 1, 0])),
    "parents a list": lambda gamma: Draft(OK, [-1, 0, 1]),
    "parents a bomb": lambda gamma: Draft(OK, Bomb()),
    "proposal a string": lambda gamma: Draft(OK, proposal="x"),
    "proposal a tuple": lambda gamma: Draft(OK, proposal=(1, 2, 3)),
    "proposal True": lambda gamma: Draft(OK, proposal=True),
    "proposal a bomb": lambda gamma: Draft(OK, proposal=Bomb()),
    "proposal of None": lambda gamma: Draft(OK, proposal=Proposal(None, None, None)),
    "proposal of bombs": lambda gamma: Draft(OK, proposal=Proposal(Bomb(), Bomb(), Bomb())),
    "proposal masked": lambda gamma: Draft(
        OK, proposal=Proposal(ids(0, 1, 2, 3), OK, np.ma.masked_array(ONES, [1, 0, 0]))
    ),
    "proposal without starts": lambda gamma: Draft(OK, proposal=Proposal(ids(), OK, ONES)),
    "proposal that overflows": lambda gamma: Draft(
        OK, proposal=Proposal(ids(0, 2**31 - 1, -2, 1), ids(1), floats(1))
    ),
    "KeyError": raising(KeyError("x")),
    "StopIteration": raising(StopIteration()),
    "MemoryError": raising(MemoryError()),
    "RecursionError": raising(RecursionError()),
}


@pytest.mark.parametrize("tree", [False, True])
@pytest.mark.parametrize("case", HOSTILE)
@pytest.mark.parametrize("inside", [None, TieredDrafter, CalibratedDrafter])
def test_whatever_propose_returns_costs_the_draft_at_most(case, tree, inside):
    drafter = Counting(HOSTILE[case])
    if inside is not None:
        drafter = inside([drafter] if inside is TieredDrafter else drafter)
    drafting, stats = drafting_of(drafter, tree=tree, always=tree)
    replaced = inside is CalibratedDrafter and case.startswith("confidence")
    for _ in range(2):
        assert len(step(drafting, stats)) == (3 if replaced else 0)
    drafting.close()
    assert replaced or stats.drafter_faults >= 2


def with_(**attributes):
    """A drafter of a class of its own with these attributes."""
    kind = type("Own", (Counting,), {})
    for name, value in attributes.items():
        setattr(kind, name, value)
    return kind()


def broken(error=ZeroDivisionError):
    def get(self):
        raise error

    return property(get)


class Unsure:
    def __bool__(self):
        raise RuntimeError("bool")


BROKEN = {
    "tiers ()": with_(tiers=()),
    "tiers None": with_(tiers=None),
    "tiers a number": with_(tiers=5),
    "tiers a string": with_(tiers="abc"),
    "tiers of lists": with_(tiers=([1], [2])),
    "tiers that raise": with_(tiers=broken(KeyError)),
    "tiers a bomb": with_(tiers=Bomb()),
    "129 tiers": with_(tiers=("t",) * 129),
    "estimates that raise": with_(estimates=broken()),
    "estimates that are neither": with_(estimates=Unsure()),
    "branches that raise": with_(branches=broken()),
    "branches that are neither": with_(branches=Unsure()),
    "start None": with_(start=lambda self, tokens: None),
    "start a number": with_(start=lambda self, tokens: 5),
    "start the class": with_(start=lambda self, tokens: CountingSession),
    "start something like it": with_(start=lambda self, tokens: Bomb()),
    "no drafter": object(),
    "None": None,
}


@pytest.mark.parametrize("case", BROKEN)
def test_a_drafter_that_is_none_costs_the_draft_at_most(case):
    cost = np.ones(20, np.float32)
    controller = make_controller("auto", 8, lambda: cost)
    drafting, stats = drafting_of(BROKEN[case], controller=controller, temperature=0.7, tree=True)
    if case.startswith("branches"):  # looked at where there is a cost
        BROKEN[case].estimates = True
    for _ in range(2):
        assert len(step(drafting, stats)) == 0
    drafting.close()
    assert stats.drafter_faults >= 2
    assert stats.tiers == {}


def test_in_a_generation_too(tiny, caplog):
    prompt = torch.tensor([[5, 6, 7, 8, 5, 6, 7]])
    plain = tiny.generate(prompt, max_new_tokens=12, do_sample=False)
    drafters = [Counting(HOSTILE[case]) for case in ("proposal a string", "a subclass")]
    for drafter in (*drafters, BROKEN["tiers ()"], BROKEN["tiers that raise"]):
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


def test_what_should_end_the_generation_ends_it():
    for error in (KeyboardInterrupt, SystemExit):
        drafting, stats = drafting_of(Counting(raising(error)))
        with pytest.raises(error):
            drafting.propose(8)
        assert stats.drafter_faults == 0


def test_names_of_tiers_are_those_of_the_session_s_start():
    class Changing(Counting):
        tiers = ("a", "b")

    drafter = Changing(lambda gamma: Draft(OK, source=np.array([0, 1, 1], np.int8)))
    drafting, stats = drafting_of(drafter)
    assert len(step(drafting, stats)) == 3
    drafter.tiers = ()
    assert len(step(drafting, stats)) == 3
    assert {name: tier.drafted for name, tier in stats.tiers.items()} == {"a": 2, "b": 4}


# What a session does to what it was given, or has returned


def test_what_a_session_returned_it_may_write_to():
    buffer, source = np.zeros(8, np.int32), np.zeros(3, np.int8)

    class Writing(Counting):
        def start(self, tokens):
            session = super().start(tokens)

            def observe(draft, accepted, tested=None):
                draft.tokens[:] = -7
                draft.source[:] = 99
                accepted.clear()

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
    drafting.learn(draft, verdict)
    assert draft.tokens.tolist() == [1, 2, 3]
    assert draft.source.tolist() == [0, 0, 0]
    assert verdict.accepted == [0]
    assert stats.drafter_faults == 1  # its own: there is nothing to clear
    stats.count_step(draft, verdict, drafting.tiers)


def test_a_session_observes_its_own_draft_as_far_as_it_was_verified():
    mine = draft_of([1, 2, 3, 4])
    scripted = ScriptedDrafter(lambda at, gamma: mine)
    drafting, _ = drafting_of(scripted)
    for length in (4, 2):
        draft = drafting.propose(8).first(length)
        drafting.learn(draft, Verdict([0], 2, [1, 6]))
    first, second = (draft for draft, _, _ in scripted.observed)
    assert first is mine
    assert second.tokens.tolist() == [1, 2]


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


def test_a_reference_with_ids_of_another_vocabulary_is_read_as_far_as_it_can_be(tiny):
    prompt = torch.tensor([[5, 6, 7]])
    plain = tiny.generate(prompt, max_new_tokens=20, do_sample=False)
    reference = [5000, *plain[0].tolist(), 97]
    for spec in ("auto", "copy(min_match=1)", "ngram(order=3)"):
        speculator = Speculator(spec, 4)
        ours = tiny.generate(
            prompt,
            max_new_tokens=20,
            do_sample=False,
            custom_generate=speculator,
            reference_ids=reference,
        )
        assert torch.equal(plain, ours)
        assert speculator.stats.drafter_faults == 0
        assert speculator.stats.accepted > 5


# Drafters that keep failing


@pytest.mark.parametrize("method", ["start", "propose", "observe", "extend", "begin_sampling"])
def test_a_drafter_that_keeps_failing_reads_the_text_a_few_times_only(method, caplog):
    caplog.set_level(logging.WARNING, "ngramspec")
    drafter = Counting(failing=[method])
    text = np.zeros(1000, np.int32)
    drafting, stats = drafting_of(drafter, tokens=text, temperature=1.0)
    for _ in range(50):
        step(drafting, stats)
    assert drafter.calls["start"] == FAULTS
    assert drafter.read < (FAULTS + 1) * len(text)
    assert stats.drafter_faults == FAULTS
    assert stats.drafters_stopped == 1
    assert drafter.calls["close"] == (0 if method == "start" else FAULTS)
    first, last = (record.getMessage() for record in caplog.records)
    assert first == f"Counting failed, the step goes on undrafted: OSError('{method}')"
    assert last == "Counting failed 4 times and is not called any more in this generation"


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
            drafting.learn(EMPTY_DRAFT, Verdict([], 0, [1]))
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
    drafter = Counting(failing=["propose"])
    model = tiny_llama()
    speculator = Speculator(drafter, 4)
    for runs in (1, 2):
        model.generate(
            torch.ones(3, 6).long(), max_new_tokens=20, do_sample=False, custom_generate=speculator
        )
        assert drafter.calls["start"] == 3 * FAULTS * runs
        assert speculator.stats.drafters_stopped == 3 * runs
        assert len(caplog.records) == 2 * runs


# Tiers


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
    drafting, stats = drafting_of(TieredDrafter([above, below]))
    for _ in range(FAULTS):
        assert step(drafting, stats).tokens.tolist() == [1, 2]
    assert len(step(drafting, stats)) == 0
    assert (stats.drafter_faults, stats.accepted) == (FAULTS, FAULTS)
    assert above.closed == below.closed == FAULTS


def test_tiers_end_with_each_other():
    good, bad = ScriptedDrafter(lambda at, gamma: EMPTY_DRAFT), Counting(failing=["close"])
    session = TieredDrafter([bad, good]).start(TEXT)
    with pytest.raises(OSError, match="close"):
        session.close()
    assert good.closed == 1
    with pytest.raises(OSError, match="start"):
        TieredDrafter([good, Counting(failing=["start"])]).start(TEXT)
    assert good.closed == 2


def test_tiers_without_names_are_refused_where_they_are_put_together():
    for kind in (lambda inner: TieredDrafter([Counting(), inner]), CalibratedDrafter):
        with pytest.raises(ValueError, match=r"1\.\.128 tiers, got 0"):
            kind(with_(tiers=()))
