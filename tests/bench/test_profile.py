"""Where the time of a step goes."""

from __future__ import annotations

import time

import pytest
from conftest import tiny_llama
from doubles import ScriptedDrafter, draft_of
from forced_text import VOCAB, prompt

from ngramspec import Speculator
from ngramspec.bench.profile import FORWARD, PYTHON, SECTIONS, profile_plain, profile_steps
from ngramspec.decoding import loop as decode
from ngramspec.decoding.draft_runner import DraftRunner
from ngramspec.target.model import Target


@pytest.fixture(scope="module")
def model():
    return tiny_llama(vocab=VOCAB)


def slow(seconds):
    def guess(at, gamma):
        time.sleep(seconds)
        return draft_of([])

    return ScriptedDrafter(guess)


def test_a_profile_says_where_the_time_went(model, monkeypatch):
    before = {owner: dict(vars(owner)) for owner in (DraftRunner, Target, decode.DecodeLoop)}
    row = profile_steps(model, prompt(), 30, repeats=1)
    assert set(row["seconds"]) == set(SECTIONS)
    assert sum(row["share"].values()) == pytest.approx(1)
    assert sum(row["seconds"].values()) == pytest.approx(row["step_seconds"])
    assert all(share > 0 for share in row["share"].values())
    assert row["tokens_per_call"] > 2
    assert row["share"][FORWARD] > 0.3
    assert {owner: dict(vars(owner)) for owner in before} == before
    assert "forward" not in vars(model)
    monkeypatch.setattr("ngramspec.bench.profile.Speculator", lambda: Speculator(slow(0.02)))
    row = profile_steps(model, prompt(), 10, repeats=1)
    assert row["seconds"]["drafting"] > 0.01  # a step now and then drafts nothing
    assert row["share"]["drafting"] > 0.5


def test_plain_decoding_is_profiled_too(model):
    row = profile_plain(model, prompt(), 30, repeats=1)
    assert row["steps"] == 29
    assert 0 < row["share"][FORWARD] < 1
    assert row["share"][FORWARD] + row["share"][PYTHON] == 1
    assert profile_plain(model, prompt(), 30, repeats=1, lookup=10)["steps"] < 20
