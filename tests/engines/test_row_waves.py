"""Requests that begin together, or follow others, where steps cost what vLLM's do on one core."""

from __future__ import annotations

import itertools
from collections import Counter

import numpy as np
import pytest
from engine_rows import Guess
from scipy import stats

from ngramspec.costs.engine import GivenEngineCosts, LearnedEngineCosts
from ngramspec.engines.rows import Rows, RowState

K = 24
TOKENS = 48  # of an answer


class Server:
    """Waves of requests, all at once; its clock goes by what its steps cost."""

    def __init__(self, noise=0.06, seed=0):
        self.now = 0.0
        self.noise = noise
        self.random = np.random.default_rng(seed)
        costs = LearnedEngineCosts(K, "cpu", "float32")
        self.drafter = Rows(Guess(), K, 100, 1000, costs, clock=lambda: self.now)
        self.requests = 0

    def wave(self, confidences, at_once=None):
        """Seconds without noise of requests whose tokens are so likely, and of plain steps.

        They begin together; or ``at_once`` do, and each of the others when one has ended.
        """
        texts = [np.full(1000, round(100 * each), np.int32) for each in confidences]
        waiting = [(self.requests + at, text, 10, 0) for at, text in enumerate(texts)]
        self.requests += len(waiting)
        at_once = at_once or len(waiting)
        rows, drafts, seconds = [], [], 0.0
        while rows or waiting:
            more = at_once - len(rows)
            rows, waiting = rows + waiting[:more], waiting[more:]
            drafts = drafts + [[]] * (len(rows) - len(drafts))
            cost = 0.066 + 0.004 * len(rows) + 0.00245 * sum(map(len, drafts))
            self.now += cost * np.exp(self.noise * self.random.standard_normal())
            seconds += cost
            told = []
            for at, ((key, text, length, said), draft) in enumerate(zip(rows, drafts, strict=True)):
                right = self.random.random(len(draft)) < text[0] / 100
                new = int(np.cumprod(right).sum()) + 1
                rows[at] = key, text, length + new, said + new
                told.append(RowState(key, text, length + new, [int(text[0])] * new))
            found = self.drafter.step(told)
            left = [at for at, row in enumerate(rows) if row[3] < TOKENS]
            rows, drafts = [rows[at] for at in left], [found[at].tokens for at in left]
        plain = TOKENS * (0.066 + 0.004 * at_once) * len(confidences) / at_once
        return seconds, plain


def speed(server, waves):
    """Of plain decoding's, over all waves."""
    seconds, plain = np.sum([server.wave(each) for each in waves], axis=0)
    return plain / seconds


@pytest.mark.parametrize("rows", [1, 4, 8, 16])
@pytest.mark.parametrize("confidence", [0.02, 0.2, 0.4])
def test_waves_with_little_to_predict_are_not_slower(rows, confidence):
    assert speed(Server(), [[confidence] * rows] * 8) > 0.98


@pytest.mark.parametrize(("rows", "least"), [(1, 1.9), (4, 1.3), (8, 1.25), (16, 1.25)])
def test_waves_of_copies_are_faster(rows, least):
    assert speed(Server(), [[0.9] * rows] * 4) > least


@pytest.mark.parametrize("rows", [4, 8, 16])
def test_one_request_that_cannot_be_predicted_does_not_make_a_wave_slower(rows):
    """The others' drafts cannot end it sooner, and it must not pay for them."""
    waves = [[0.02] + [0.6] * (rows - 1)] * 8
    assert np.mean([speed(Server(seed=seed), waves) for seed in range(4)]) > 0.98


@pytest.mark.parametrize(("rows", "least"), [(4, 1.3), (8, 1.2), (16, 1.1)])
def test_where_requests_follow_others_no_row_is_waited_for(rows, least):
    """Half of them cannot be predicted: they are not what the others' tokens are judged by."""
    server = Server()
    requests = [0.02, 0.8] * (8 * rows)
    seconds, plain = server.wave(requests, at_once=rows)
    assert plain / seconds > least


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
