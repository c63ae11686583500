"""Drafters of other projects in replay, and the time of drafters' operations."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.drafters import TwinDrafter, read
from benchmarks.peers import LookupDrafter
from benchmarks.texts import natural
from ngramspec.drafters import ValueDrafter
from ngramspec.measure.replay import Plan, Player, cost_curve
from ngramspec.measure.traces import Trace, write_traces


def ids(*tokens):
    return np.array(tokens, np.int32)


def repetitive(seed, n=200):
    rng = np.random.default_rng(seed)
    base = rng.integers(0, 50, n)
    noisy = np.where(rng.random(n) < 0.1, rng.integers(0, 50, n), base)
    return Trace("g", str(seed), base.astype(np.int32), noisy.astype(np.int32))


@pytest.fixture
def traces(tmp_path):
    path = tmp_path / "traces.jsonl"
    write_traces(path, [repetitive(seed) for seed in range(2)])
    return path


def test_the_twin_replays_exactly_as_the_native_engine():
    left, right = (
        Player(drafter, Plan(cost_curve("cpu", 64))).play(map(repetitive, range(3))).groups["g"]
        for drafter in (ValueDrafter(), TwinDrafter())
    )
    for name in ("target_calls", "emitted", "drafted", "verified", "accepted"):
        assert getattr(left, name) == getattr(right, name)
    assert left.emitted > 2 * left.target_calls


def test_transformers_lookup_copies_the_leftmost_match():
    session = LookupDrafter(3, 2).start(ids(1, 2, 3, 4, 9, 1, 2, 5, 6, 9, 1, 2))
    assert session.propose(10).tokens.tolist() == [3, 4, 9]
    assert session.propose(1).tokens.tolist() == [3]
    session.extend(ids(7))
    assert len(session.propose(10)) == 0


@pytest.mark.parametrize("trees", [False, True])
def test_arctic_drafts_from_the_request_itself(trees):
    pytest.importorskip("arctic_inference.suffix_decoding")
    from benchmarks.peers import ArcticDrafter

    session = ArcticDrafter(4.0, trees).start(ids(1, 2, 3, 4, 5, 6, 9, 1, 2, 3))
    assert session.propose(3).tokens.tolist() == [4, 5, 6]
    session.close()


def test_a_reading_takes_steps_behind_the_context():
    reading = read("auto", ValueDrafter(), "natural", natural(4000), 2000, 5)
    assert reading.tokens == 2000
    assert 0 < reading.propose_us <= reading.step_us <= reading.p99_us <= reading.worst_us
    assert 0 < reading.drafted <= 5
    assert 20 < reading.bytes_per_token < 1000
