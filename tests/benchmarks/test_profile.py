"""Where a step's time goes, on a clock that only the test moves."""

from __future__ import annotations

import pytest
from conftest import tiny_llama
from doubles import ScriptedDrafter, draft_of
from forced_text import VOCAB, prompt

from benchmarks import profile
from benchmarks.profile import FORWARD, PYTHON, SECTIONS, profile_plain, profile_steps
from ngramspec import Speculator
from ngramspec.decoding.observer import DRAFTING, STREAMING

COPY = prompt()
OWN = prompt(text=None)  # the model's own text


class Clock:
    """A clock that moves by ``tick`` seconds whenever it is read, and when it is told to."""

    def __init__(self, tick=0.0):
        self.now = 0.0
        self.tick = tick

    def __call__(self):
        self.now += self.tick
        return self.now

    def wait(self, seconds):
        self.now += seconds


@pytest.fixture
def model():
    return tiny_llama(vocab=VOCAB)


def taking(model, clock, seconds):
    """A model whose forwards take so long."""
    inner = model.model.forward

    def forward(*args, **kwargs):
        clock.wait(seconds)
        return inner(*args, **kwargs)

    model.model.forward = forward
    return model


def test_a_profile_has_every_section_and_leaves_the_model_as_it_was(model):
    row = profile_steps(model, COPY, 30, repeats=1, clock=Clock(tick=1.0))
    assert set(row["seconds"]) == set(SECTIONS)
    assert sum(row["share"].values()) == pytest.approx(1)
    assert sum(row["seconds"].values()) == pytest.approx(row["step_seconds"])
    assert all(share > 0 for share in row["share"].values())
    assert row["tokens_per_call"] > 2
    assert not model._forward_hooks
    assert not model._forward_pre_hooks


def test_each_section_has_the_time_that_was_spent_in_it(model, monkeypatch):
    clock = Clock()

    def slow(at, gamma):
        clock.wait(5)
        return draft_of([])

    monkeypatch.setattr(profile, "Speculator", lambda: Speculator(ScriptedDrafter(slow), 4))
    monkeypatch.setattr(profile._Sink, "put", lambda sink, value: clock.wait(3))
    row = profile_steps(taking(model, clock, 7), OWN, 11, repeats=1, clock=clock)
    assert row["steps"] == 10
    spent = {DRAFTING: 5 * 9 / 10, FORWARD: 7, STREAMING: 3}  # nothing is drafted for the last one
    assert row["seconds"] == pytest.approx({name: spent.get(name, 0) for name in SECTIONS})
    assert row["share"][FORWARD] == pytest.approx(7 / 14.5)


def test_plain_decoding_is_profiled_too(model):
    clock = Clock(tick=1.0)
    row = profile_plain(taking(model, clock, 7), COPY, 30, repeats=1, clock=clock)
    assert row["steps"] == 29
    assert row["seconds"] == pytest.approx({FORWARD: 8, PYTHON: 1})
    assert row["share"][FORWARD] == pytest.approx(8 / 9)
    assert profile_plain(model, COPY, 30, repeats=1, lookup=10)["steps"] < 20
