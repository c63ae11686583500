"""What benchmarks compute: alpha by exact sums, and where texts part."""

from __future__ import annotations

import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from conftest import tiny_llama

from benchmarks import alpha
from benchmarks.divergence import Comparison, Divergence, compare, departure, histogram
from ngramspec.theory.acceptance import acceptance

VOCAB = 23
IDS = list(range(1, 20))


@pytest.fixture(scope="module")
def model():
    return tiny_llama(vocab=VOCAB)


@pytest.fixture(scope="module")
def generated(model):
    return alpha.target_text(model, IDS, new=60, temperature=1.0, seed=3)


@pytest.mark.parametrize("order", [1, 2])
def test_the_sums_are_those_of_the_definition(generated, order):
    counts = alpha.CountModel([generated.output.tolist()], order)
    played = alpha.play(alpha.CountDrafter(counts, "x"), generated, 1, leniences=(1.0, 0.3))
    at = range(1, len(generated.output))
    assert played.positions == len(played.chances) == len(at)
    for t, chances in zip(at, played.chances, strict=True):
        ids, probs = counts.following(int(generated.output[t - 1]))
        q = np.zeros(VOCAB)
        q[ids] = probs
        p = generated.probs[t].astype(float)
        p /= p.sum()
        for lenience, chance in zip((1.0, 0.3), chances, strict=True):
            assert chance == pytest.approx(float(acceptance(p, q, lenience)), abs=1e-5)


def test_the_texts_distribution_has_the_processors_in_it(model):
    generated = alpha.target_text(model, IDS, new=20, temperature=0.7, sampling={"top_k": 5})
    assert (np.count_nonzero(generated.probs, axis=1) == 5).all()
    assert np.allclose(generated.probs.sum(axis=1), 1, atol=1e-5)
    assert (generated.probs[np.arange(len(generated.output)), generated.output] > 0).all()


@pytest.mark.slow
def test_the_exact_sum_is_what_decoding_observes(model):
    prompts = [("a", IDS[n:] + IDS[:n]) for n in range(8)]
    plan = alpha.Plan(prompts, [ids for _, ids in prompts], new=60, gamma=1, leniences=(1.0, 0.3))
    (row,) = alpha.measure(model, plan, 1.0, ["trained-bigram"])
    assert row.group == alpha.ALL
    for k, seen in enumerate(row.observed):
        spread = np.sqrt(0.25 / seen.verified) + row.alpha.error[k]
        assert abs(seen.alpha - row.alpha.alpha[k]) < 5 * spread
    assert row.observed[1].alpha > row.observed[0].alpha


def test_a_standard_error_is_that_of_whole_texts():
    texts = [np.full(10, value) for value in (0.0, 1.0, 0.0, 1.0)]
    mean, error = alpha.mean_and_error(texts)
    assert mean == 0.5
    assert error == pytest.approx(0.25, abs=0.02)  # sqrt(0.25 / 4 texts), not of 40 positions
    assert alpha.mean_and_error([np.ones(0)]) == (0.0, 0.0)
    assert alpha.summarize([alpha.Played()]).alpha == (0.0,)


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
