"""Recording the target's most probable tokens, and replaying them as evidence."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from conftest import tiny_llama
from doubles import ids

from ngramspec.drafters import RecycleDrafter
from ngramspec.measure.forwards import top_tokens
from ngramspec.measure.replay import Plan, Player, cost_curve, replayed
from ngramspec.measure.traces import TopTokens, Trace, read_traces


def test_candidates_are_those_before_each_token_of_the_output():
    model = tiny_llama()
    text = torch.tensor([[5, 6, 7, 8, 5, 6, 7, 9]])
    expected = torch.log_softmax(model(text).logits[0, 4:7].float(), -1).topk(4)
    found = top_tokens(model, text[0, :5].tolist(), text[0, 5:].tolist(), 4)
    assert found.ids.tolist() == expected.indices.tolist()
    np.testing.assert_allclose(found.log_probs, expected.values.detach(), atol=1e-4)


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
