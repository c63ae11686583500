"""Alpha by exact sums: against the definition, and against decoding itself."""

from __future__ import annotations

import numpy as np
import pytest
from conftest import tiny_llama

from benchmarks import alpha
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


def test_the_exact_sum_is_what_decoding_observes(model):
    prompts = [("a", IDS[n:] + IDS[:n]) for n in range(12)]
    train = [ids for _, ids in prompts]
    plan = alpha.Plan(prompts, train, new=60, gamma=1, leniences=(1.0, 0.3))
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
