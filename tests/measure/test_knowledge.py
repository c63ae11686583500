"""Replay with knowledge: every drafter gets the text that belongs to a trace."""

from __future__ import annotations

import numpy as np
import pytest

from ngramspec.drafters import build_drafter
from ngramspec.drafters.known import NullDrafter
from ngramspec.measure.replay import Earlier, Knowledge, Plan, compare
from ngramspec.measure.traces import Trace
from ngramspec.stores import Corpus

pytest.importorskip("pydivsufsort")
COST = np.ones(66, np.float32)


@pytest.fixture
def traces():
    rng = np.random.default_rng(0)
    texts = {name: rng.integers(1, 5000, 120).astype(np.int32) for name in ("a", "b")}
    return [Trace(name, name, text[:20], text[20:], name) for name, text in texts.items()]


def test_each_trace_gets_its_repository(tmp_path, traces):
    for trace in traces:
        text = np.concatenate((trace.prompt, trace.output, [0], [7, 8, 0])).astype(np.int32)
        np.save(tmp_path / f"{trace.repo}.npy", text)
    knowledge = Knowledge(tmp_path)
    alone = compare(lambda: build_drafter("auto"), Plan(COST), traces)
    known = compare(lambda: build_drafter("auto"), Plan(COST), traces, knowledge=knowledge)
    assert alone["mean"]["tokens_per_call"] < 1.5
    assert known["mean"]["tokens_per_call"] > 8
    assert known["sources"]["store"]["accepted"] > 100
    wrong = [Trace(each.group, each.id, each.prompt, each.output, "b") for each in traces[:1]]
    other = compare(lambda: build_drafter("auto"), Plan(COST), wrong, knowledge=knowledge)
    assert other["mean"]["tokens_per_call"] < 1.5


def test_one_corpus_for_all_and_drafters_that_take_none(tmp_path, traces):
    documents = [np.concatenate((each.prompt, each.output)) for each in traces]
    Corpus.build(documents, tmp_path / "all.ngc")
    knowledge = Knowledge(tmp_path / "all.ngc")
    drafter, null = build_drafter("auto"), NullDrafter()
    assert knowledge.given_to(drafter, traces[0]) is knowledge.given_to(drafter, traces[1])
    assert knowledge.given_to(null, traces[0]) is null


def test_requests_know_what_earlier_ones_said(traces):
    twice = [*traces, *[Trace("again", e.id, e.prompt[-1:], e.output, e.repo) for e in traces]]
    found = compare(lambda: build_drafter("auto"), Plan(COST), twice, knowledge=Earlier("outputs"))
    assert found["groups"]["a"]["tokens_per_call"] < 1.5
    assert found["groups"]["again"]["tokens_per_call"] > 8
    alone = compare(lambda: build_drafter("auto"), Plan(COST), twice)
    assert alone["groups"]["again"]["tokens_per_call"] < 1.5


def test_prompts_are_known_if_they_are_shared(traces):
    said = [Trace("a", e.id, e.output, e.prompt[:2], e.repo) for e in traces]
    later = [Trace("b", e.id, e.prompt[-1:], e.output, e.repo) for e in traces]
    for write, least, most in (("outputs", 0.9, 1.5), ("all", 8, 99)):
        found = compare(
            lambda: build_drafter("auto"), Plan(COST), [*said, *later], knowledge=Earlier(write)
        )
        assert least < found["groups"]["b"]["tokens_per_call"] < most


def test_arctic_keeps_the_responses(traces):
    pytest.importorskip("arctic_inference")
    from benchmarks.peers import ArcticDrafter

    twice = [*traces, *[Trace("again", e.id, e.prompt, e.output, e.repo) for e in traces]]
    plan = Plan(COST, 64, 64)
    found = compare(lambda: ArcticDrafter(4.0), plan, twice, knowledge=Earlier("outputs"))
    assert found["groups"]["again"]["tokens_per_call"] > 8
