"""Drafters that break every rule, and one step of a Row as the loop does it."""

from __future__ import annotations

from functools import partial

import numpy as np
from doubles import draft_of, floats, ids

from ngramspec import DecodeStats, Draft, Drafter, DraftSession, Proposal, Verdict
from ngramspec.costs.policies import GammaController
from ngramspec.decoding.row import Row, report_fault

VOCAB = 97
TEXT = np.arange(5, dtype=np.int32)


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

    def observe(self, draft, accepted, verified=None):
        self.owner.called("observe")

    def extend(self, tokens):
        self.owner.called("extend")

    def begin_sampling(self, temperature, seed):
        self.owner.called("begin_sampling")

    def close(self):
        self.owner.called("close")


def drafting_of(drafter, *, tokens=TEXT, controller=None, **more):
    """A Row of a drafter, or of what a function returns, and its statistics."""
    current = drafter if callable(drafter) else lambda: drafter
    stats = DecodeStats()
    row = Row(partial(report_fault, stats), controller or GammaController(8), **more)
    row.begin(VOCAB, tokens)
    row.connect(current)
    return row, stats


def learn(row, verdict):
    """The verdict of a row's draft, as the loop reports it."""
    for token in verdict.emitted:
        row.advance(token)
    row.judge()
    assert (row.verdict.verified, [*row.verdict.accepted]) == (verdict.verified, verdict.accepted)
    row.learn()


def step(row, stats):
    """A step as the loop does it, in which the first token is accepted."""
    row.reset()
    draft = row.propose(8)
    accepted = [0] if len(draft) else []
    emitted = [int(draft.tokens[0]) if len(draft) else 5, 6]
    learn(row, Verdict(accepted, min(len(draft), 2), emitted))
    stats.count_step(draft, row.verdict, row.source_names)  # and this may not raise for it
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


OK = ids(1, 2, 3)
ONES = np.ones(3, np.float32)
HOSTILE = {
    "None": lambda gamma: None,
    "a tuple": lambda gamma: (OK,),
    "a bomb": lambda gamma: Bomb(),
    "the class": lambda gamma: Draft,
    "a subclass": lambda gamma: Lying(OK),
    "tokens None": lambda gamma: Draft(None),
    "tokens a bomb": lambda gamma: Draft(Bomb()),
    "tokens in two dimensions": lambda gamma: Draft(np.ones((2, 2), np.int32)),
    "tokens int64": lambda gamma: Draft(np.array([1, 2])),
    "tokens big-endian": lambda gamma: Draft(np.array([1, 2], ">i4")),
    "tokens masked": lambda gamma: Draft(np.ma.masked_array(OK, [1, 1, 1])),
    "source int32": lambda gamma: Draft(OK, source=ids(0, 0, 0)),
    "source a number": lambda gamma: Draft(OK, source=7),
    "source out of range": lambda gamma: Draft(OK, source=np.array([0, 1, 0], np.int8)),
    "source negative": lambda gamma: Draft(OK, source=np.array([0, -1, 0], np.int8)),
    "confidence NaN": lambda gamma: Draft(OK, confidence=floats(1, np.nan, 1)),
    "confidence negative": lambda gamma: Draft(OK, confidence=floats(1, -5, 1)),
    "confidence float64": lambda gamma: Draft(OK, confidence=np.ones(3)),
    "parents a list": lambda gamma: Draft(OK, [-1, 0, 1]),
    "parents a bomb": lambda gamma: Draft(OK, Bomb()),
    "proposal a string": lambda gamma: Draft(OK, proposal="x"),
    "proposal a bomb": lambda gamma: Draft(OK, proposal=Bomb()),
    "proposal of bombs": lambda gamma: Draft(OK, proposal=Proposal(Bomb(), Bomb(), Bomb())),
    "proposal masked": lambda gamma: Draft(
        OK, proposal=Proposal(ids(0, 1, 2, 3), OK, np.ma.masked_array(ONES, [1, 0, 0]))
    ),
    "proposal without starts": lambda gamma: Draft(OK, proposal=Proposal(ids(), OK, ONES)),
    "proposal that overflows": lambda gamma: Draft(
        OK, proposal=Proposal(ids(0, 2**31 - 1, -2, 1), ids(1), floats(1))
    ),
    "StopIteration": raising(StopIteration()),
    "MemoryError": raising(MemoryError()),
}


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
    "source_names ()": with_(source_names=()),
    "source_names None": with_(source_names=None),
    "source_names a string": with_(source_names="abc"),
    "source_names of lists": with_(source_names=([1], [2])),
    "source_names that raise": with_(source_names=broken(KeyError)),
    "129 source_names": with_(source_names=("t",) * 129),
    "estimates that raise": with_(estimates=broken()),
    "estimates that are neither": with_(estimates=Unsure()),
    "branches that raise": with_(branches=broken()),
    "branches that are neither": with_(branches=Unsure()),
    "start a number": with_(start=lambda self, tokens: 5),
    "start something like it": with_(start=lambda self, tokens: Bomb()),
    "no drafter": object(),
    "None": None,
}
