"""Recording the target's most probable tokens, and replaying them as evidence."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from conftest import tiny_llama
from doubles import ids

import ngramspec
from ngramspec import Speculator, build_drafter
from ngramspec.drafters import RecycleDrafter
from ngramspec.measure.replay import Plan, Player, cost_curve, replayed
from ngramspec.measure.traces import (
    Prompt,
    RecordingDrafter,
    TopTokens,
    Trace,
    read_traces,
    record,
    write_traces,
)

PROMPT = [5, 6, 7, 8, 5, 6, 7, 9, 5, 6]


@pytest.mark.parametrize("eos", [None, 3])
@pytest.mark.parametrize("settings", [{"gamma": 6}, {}])  # a prefill without a draft, and with one
def test_a_recording_holds_the_candidates_of_every_committed_position(settings, eos, tmp_path):
    model = tiny_llama(eos_token_id=eos)
    drafter = RecordingDrafter(build_drafter("auto"), 4)

    def generate(prompt):
        out = ngramspec.generate(
            model,
            input_ids=torch.tensor([prompt]),
            max_new_tokens=50,
            do_sample=False,
            speculator=Speculator(drafter, **settings),
        )
        return out[0, len(prompt) :].tolist()

    prompts = [Prompt("g", str(at), "") for at in range(2)]
    traces = list(record(prompts, lambda text: list(PROMPT), generate, drafter.take))
    path = tmp_path / "traces.jsonl"
    write_traces(path, traces)
    for trace in read_traces(path):
        text = torch.tensor([[*PROMPT, *trace.output.tolist()]])
        expected = torch.log_softmax(model(text).logits[0, len(PROMPT) - 1 : -1].float(), -1).topk(
            4
        )
        known = trace.top_tokens.ids[:, 0] >= 0
        assert known[1:].all()
        assert trace.top_tokens.ids[known].tolist() == expected.indices[known].tolist()
        np.testing.assert_allclose(
            trace.top_tokens.log_probs[known], expected.values[known].detach(), atol=6e-4
        )
        assert trace.top_tokens.ids[1:, 0].tolist() == trace.output[1:].tolist()  # greedy
    assert drafter.take(5) is None


def test_replay_gives_the_evidence_of_accepted_positions():
    found = TopTokens(ids(*range(10)).reshape(5, 2), np.zeros((5, 2), np.float32))
    evidence = replayed(found, [20, 21, 22, 23, 24], before=21, at=2, emitted=2)
    assert evidence.tokens.tolist() == [21, 22]
    assert evidence.parents.tolist() == [-1, 0]
    assert evidence.accepted == (0, 1)
    assert evidence.ids.tolist() == [[4, 5], [6, 7]]


def test_a_replayed_table_drafts_what_the_target_said_before():
    said = [7, 8, 9, 7, 8, 9, 7, 8, 9]
    top = np.array([[each, 50] for each in said], np.int32)
    trace = Trace("g", "0", ids(1, 2), ids(*said), "", TopTokens(top, np.zeros((9, 2), np.float32)))
    plan = Plan(cost=cost_curve("gpu", 8), gamma=3, gamma_max=8)
    tally = Player(RecycleDrafter(top_k=2), plan).play([trace]).groups["g"]
    # 8, 9 and 7 come alone and fill the table; then 8 9 7 with 8; the last one alone
    assert (tally.target_calls, tally.accepted) == (5, 3)
    without = Trace("g", "0", ids(1, 2), ids(*said))
    assert Player(RecycleDrafter(top_k=2), plan).play([without]).groups["g"].accepted == 0


@pytest.mark.parametrize(
    "change",
    [
        {"top_ids": [[1, 2]]},
        {"top_ids": [[1, 2], [3]]},
        {"top_ids": [[1, 2], [3, -2]]},
        {"top_ids": [[1, 2], [3, 2**31]]},
        {"top_ids": [[1, 2], ["a", 4]]},
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
