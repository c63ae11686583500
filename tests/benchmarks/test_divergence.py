"""Where texts part: units in the last place by hand, and ties."""

from __future__ import annotations

import math
from types import SimpleNamespace

import numpy as np
import torch

from benchmarks.divergence import Comparison, Divergence, compare, departure, histogram

BFLOAT16 = torch.bfloat16


def test_a_departure_by_hand():
    """Best 20 (token 3), second 19.75 (token 1), which is two units of 1/8; token 0 is 16 away."""
    scores = torch.tensor([18.0, 19.75, 0.0, 20.0])
    second = departure(5, 3, 1, scores, BFLOAT16)
    assert second == Divergence(5, 3, 1, 0.25, 2.0, 0.25, 2.0)
    assert second.is_tie(BFLOAT16)
    assert not second.is_tie(torch.float32)
    third = departure(5, 3, 0, scores, BFLOAT16)  # the two best are near, but it chose another
    assert (third.gap_ulps, third.chosen_gap, third.chosen_ulps) == (2.0, 2.0, 16.0)
    assert not third.is_tie(BFLOAT16)
    for gap, tie in [(1.0, True), (1.125, False)]:  # eight units are a tie
        found = departure(1, 0, 1, torch.tensor([20.0, 20.0 - gap]), BFLOAT16)
        assert (found.chosen_ulps, found.is_tie(BFLOAT16)) == (8 * gap, tie)


def test_the_histogram_counts_every_departure_once():
    gaps = [0.0, 0.5, 1.0, 1.5, 8.0, 8.5, math.inf]
    counts = histogram([Divergence(1, 0, 1, 0.0, gap, 0.0, gap) for gap in gaps])
    assert counts == dict.fromkeys("34567", 0) | {"0": 1, "1": 2, "2": 1, "8": 1, ">8": 2}


class Repeater:
    """Repeats each row's last token; in a batch of two, the second row's token plus one."""

    device, dtype = "cpu", torch.float32

    def __init__(self):
        self.generation_config = SimpleNamespace(pad_token_id=0, eos_token_id=7)
        self.batches = []

    def generate(self, input_ids, max_new_tokens, return_dict_in_generate=False, **_):
        self.batches.append(input_ids.tolist())
        last = input_ids[:, -1] + torch.arange(len(input_ids))
        text = torch.cat((input_ids, last[:, None].expand(-1, max_new_tokens)), dim=1)
        if not return_dict_in_generate:
            return text
        scores = torch.zeros(len(input_ids), 9).scatter_(1, last[:, None], 20.0)
        return SimpleNamespace(sequences=text, scores=[scores] * max_new_tokens)


def test_the_control_compares_batches_with_each_prompt_alone():
    model = Repeater()
    prompts = [("a", np.array([1, 2], np.int32)), ("b", np.array([5], np.int32))]
    found = list(compare(model, None, prompts, tokens=3, rows=2))
    assert model.batches == [[[1, 2], [0, 5]], [[1, 2]], [[5]]]  # padded on the left
    assert found[0] == Comparison("a", 3, None)
    gap = (20.0, 20.0 * 2**19)  # in units in the last place of 20
    assert found[1] == Comparison("b", 0, Divergence(1, 5, 6, *gap, *gap))
