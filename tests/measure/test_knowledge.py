"""Replay with knowledge: every drafter gets the text that belongs to a trace."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from conftest import tiny_llama
from doubles import ids

from ngramspec.drafters import RecycleDrafter, build_drafter
from ngramspec.drafters.known import NullDrafter
from ngramspec.measure.forwards import top_tokens
from ngramspec.measure.replay import (
    Earlier,
    Knowledge,
    Player,
    ReplayPlan,
    compare,
    cost_curve,
    replayed,
)
from ngramspec.measure.traces import RecordedTopTokens, Trace, read_traces
from ngramspec.stores import Corpus

pytest.importorskip("pydivsufsort")
COST = np.ones(66, np.float32)


def compared(traces, knowledge=None):
    return compare(lambda: build_drafter("auto"), ReplayPlan(COST), traces, knowledge=knowledge)


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
    alone, known = compared(traces), compared(traces, knowledge)
    assert alone["mean"]["tokens_per_call"] < 1.5
    assert known["mean"]["tokens_per_call"] > 8
    assert known["sources"]["store"]["accepted"] > 100
    wrong = [Trace(each.group, each.id, each.prompt, each.output, "b") for each in traces[:1]]
    assert compared(wrong, knowledge)["mean"]["tokens_per_call"] < 1.5


def test_one_corpus_for_all_and_drafters_that_take_none(tmp_path, traces):
    documents = [np.concatenate((each.prompt, each.output)) for each in traces]
    Corpus.build(documents, tmp_path / "all.ngc")
    knowledge = Knowledge(tmp_path / "all.ngc")
    drafter, null = build_drafter("auto"), NullDrafter()
    assert knowledge.given_to(drafter, traces[0]) is knowledge.given_to(drafter, traces[1])
    assert knowledge.given_to(null, traces[0]) is null


def test_requests_know_what_earlier_ones_said(traces):
    twice = [*traces, *[Trace("again", e.id, e.prompt[-1:], e.output, e.repo) for e in traces]]
    found = compared(twice, Earlier("outputs"))
    assert found["groups"]["a"]["tokens_per_call"] < 1.5
    assert found["groups"]["again"]["tokens_per_call"] > 8
    assert compared(twice)["groups"]["again"]["tokens_per_call"] < 1.5


def test_prompts_are_known_if_they_are_shared(traces):
    said = [Trace("a", e.id, e.output, e.prompt[:2], e.repo) for e in traces]
    later = [Trace("b", e.id, e.prompt[-1:], e.output, e.repo) for e in traces]
    for write, least, most in (("outputs", 0.9, 1.5), ("all", 8, 99)):
        found = compared([*said, *later], Earlier(write))
        assert least < found["groups"]["b"]["tokens_per_call"] < most


def test_arctic_keeps_the_responses(traces):
    pytest.importorskip("arctic_inference")
    from benchmarks.peers import ArcticDrafter

    twice = [*traces, *[Trace("again", e.id, e.prompt, e.output, e.repo) for e in traces]]
    plan = ReplayPlan(COST, 64, 64)
    found = compare(lambda: ArcticDrafter(4.0), plan, twice, knowledge=Earlier("outputs"))
    assert found["groups"]["again"]["tokens_per_call"] > 8


def test_candidates_are_those_before_each_token_of_the_output():
    model = tiny_llama()
    text = torch.tensor([[5, 6, 7, 8, 5, 6, 7, 9]])
    expected = torch.log_softmax(model(text).logits[0, 4:7].float(), -1).topk(4)
    found = top_tokens(model, text[0, :5].tolist(), text[0, 5:].tolist(), 4)
    assert found.ids.tolist() == expected.indices.tolist()
    np.testing.assert_allclose(found.log_probs, expected.values.detach(), atol=1e-4)


def test_replay_gives_the_evidence_of_accepted_positions():
    found = RecordedTopTokens(ids(*range(10)).reshape(5, 2), np.zeros((5, 2), np.float32))
    evidence = replayed(found, [20, 21, 22, 23, 24], before=21, at=2, emitted=2)
    assert evidence.tokens.tolist() == [21, 22]
    assert evidence.parents.tolist() == [-1, 0]
    assert evidence.accepted == (0, 1)
    assert evidence.ids.tolist() == [[4, 5], [6, 7]]


def test_a_replayed_table_drafts_what_the_target_said_before():
    said = [7, 8, 9, 7, 8, 9, 7, 8, 9]
    top = np.array([[each, 50] for each in said], np.int32)
    trace = Trace(
        "g", "0", ids(1, 2), ids(*said), "", RecordedTopTokens(top, np.zeros((9, 2), np.float32))
    )
    plan = ReplayPlan(cost=cost_curve("gpu", 8), gamma=3, gamma_max=8)
    tally = Player(RecycleDrafter(top_k=2), plan).play([trace]).groups["g"]
    # 8, 9 and 7 come alone and fill the table; then 8 9 7 with 8; the last one alone
    assert (tally.target_calls, tally.accepted) == (5, 3)
    without = Trace("g", "0", ids(1, 2), ids(*said))
    assert Player(RecycleDrafter(top_k=2), plan).play([without]).groups["g"].accepted == 0


@pytest.mark.parametrize(
    "change",
    [
        {"top_ids": [[1, 2]]},
        *({"top_ids": [[1, 2], each]} for each in ([3], [3, -2], [3, 2**31], ["a", 4])),
        {"top_log_probs": None},
        {"top_log_probs": [[0.0], [0.0]]},
    ],
)
def test_wrong_candidates_are_named_by_their_line(change, tmp_path):
    sound = {"top_ids": [[1, 2], [3, 4]], "top_log_probs": [[0.0, -1.0], [0, -1]]}
    fields = {"group": "g", "id": "0", "prompt": [1], "output": [2, 3]} | sound
    path = tmp_path / "traces.jsonl"
    path.write_text(json.dumps(fields))
    assert read_traces(path)[0].top_tokens.ids.tolist() == [[1, 2], [3, 4]]
    path.write_text(json.dumps(fields | change))
    with pytest.raises(ValueError, match="line 1: top_ids and top_log_probs must be"):
        read_traces(path)
