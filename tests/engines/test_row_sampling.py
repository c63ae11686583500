"""Sampling with an engine's rows: the text has the target's distribution.

Verification is the engine's own. Here it is what vLLM's rejection sampler does to drafts without
a distribution (Leviathan et al. 2023, Algorithm 1, for a q that is sure), on recorded logits: a
token is accepted with the target's probability, else another one is sampled in its place.
"""

from __future__ import annotations

import itertools
from collections import Counter

import numpy as np
import pytest
from scipy import stats

from ngramspec.costs.engine import GivenEngineCosts
from ngramspec.engines.rows import Rows, RowState

VOCAB, LENGTH, ROWS = 4, 3, 6000
PROMPT = [0, 1, 2, 3, 0, 1, 2, 0, 1]
LOGITS = np.random.default_rng(5).normal(0.0, 1.2, (VOCAB, VOCAB))  # by the token before
PROBABILITIES = np.exp(LOGITS) / np.exp(LOGITS).sum(-1, keepdims=True)


def verified(draft, last, rng):
    """The tokens that a step commits: accepted ones, and a recovered or a bonus token."""
    emitted = []
    for token in draft:
        probability = PROBABILITIES[last].copy()
        if rng.random() < probability[token]:
            emitted.append(last := token)
            continue
        probability[token] = 0.0
        emitted.append(int(rng.choice(VOCAB, p=probability / probability.sum())))
        return emitted
    return [*emitted, int(rng.choice(VOCAB, p=PROBABILITIES[last]))]


@pytest.mark.parametrize(
    "costs", [None, GivenEngineCosts({ROWS: {ROWS: 1.3}})], ids=["all", "by cost"]
)
def test_sampled_text_has_the_target_s_distribution(costs):
    rng = np.random.default_rng(0)
    rows = Rows("auto", 3, VOCAB, 64, costs, max_sessions=2 * ROWS)
    tokens = np.zeros((ROWS, 64), np.int32)
    tokens[:, : len(PROMPT)] = PROMPT
    lengths = [len(PROMPT)] * ROWS
    new = [PROMPT[-1:]] * ROWS
    while min(lengths) < len(PROMPT) + LENGTH:
        told = [RowState(at, tokens[at], lengths[at], new[at]) for at in range(ROWS)]
        drafts = rows.step(told)
        for at, draft in enumerate(drafts):
            new[at] = verified(draft.tokens.tolist(), int(tokens[at, lengths[at] - 1]), rng)
            tokens[at, lengths[at] : lengths[at] + len(new[at])] = new[at]
            lengths[at] += len(new[at])
    assert rows.stats.faults == 0
    assert rows.stats.accepted > 100
    assert rows.stats.drafted > rows.stats.accepted
    said = tokens[:, len(PROMPT) - 1 : len(PROMPT) + LENGTH]
    counted = Counter(map(tuple, said[:, 1:].tolist()))
    texts = itertools.product([PROMPT[-1]], *[range(VOCAB)] * LENGTH)
    exact = {text[1:]: PROBABILITIES[text[:-1], text[1:]].prod() * ROWS for text in texts}
    often = [text for text, expected in exact.items() if expected >= 5]
    seen = [counted[text] for text in often]
    expected = [exact[text] for text in often]
    pvalue = stats.chisquare([*seen, ROWS - sum(seen)], [*expected, ROWS - sum(expected)]).pvalue
    assert pvalue > 1e-3
