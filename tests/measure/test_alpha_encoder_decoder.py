"""Section 4.1 of Leviathan et al. 2023 in small: alpha of an encoder-decoder, the tiny speller."""

from __future__ import annotations

import pytest
import speller

from ngramspec.measure.alpha_run import Plan, measure
from ngramspec.theory.walltime import expected_tokens

COPY, BIGRAM = "copy(min_match=1)", "trained-bigram"
GAMMA = 4


def rows(temperature, count=12):
    texts = [given for given, _ in speller.sentences(7, 2 * count)]
    prompts = [("sentences", ids) for ids in texts[:count]]
    plan = Plan(prompts, texts[count:], new=24, gamma=GAMMA)
    names = [COPY, "trained-unigram", BIGRAM]
    return {row.drafter: row for row in measure(speller.load(), plan, temperature, names)}


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_copying_the_input_beats_counts_of_the_output(temperature):
    found = rows(temperature)
    alphas = {name: row.alpha.alpha[0] * row.alpha.drafted for name, row in found.items()}
    assert alphas[COPY] > 5 * max(alphas[BIGRAM], alphas["trained-unigram"])
    copied = found[COPY]
    assert copied.observed[0].tokens_per_call > 1.5
    assert copied.observed[0].tokens_per_call > found[BIGRAM].observed[0].tokens_per_call
    most = expected_tokens(max(each for each, _, _ in copied.alpha.by_depth), GAMMA)
    assert copied.observed[0].tokens_per_call < most
