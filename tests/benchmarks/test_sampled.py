"""The bounds of drafts for sampled texts, on texts whose bounds are known."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.sampled import Sampled, TargetRows, copied, knowing, worthwhile
from ngramspec.measure.traces import RecordedTopTokens, Trace

FLAT = np.ones(70, np.float32)
STEEP = np.arange(70, dtype=np.float32)


def text(output, prompt=(9,), ids=None, probabilities=(1.0,)):
    """A text whose tokens are the most probable ones, or those of ``ids`` are."""
    output = np.array(output, np.int32)
    ids = output[:, None] if ids is None else np.array(ids, np.int32)
    shares = np.log(np.broadcast_to(np.array(probabilities, np.float32), ids.shape))
    prompt = np.array(prompt, np.int32)
    trace = Trace("group", "0", prompt, output, top_tokens=RecordedTopTokens(ids, shares))
    return Sampled(trace, ids.tolist(), np.exp(shares).tolist())


def test_a_draft_is_as_long_as_pays():
    assert worthwhile([0.5] * 60, FLAT) == 60
    assert worthwhile([0.9] * 60, STEEP) == 0
    assert worthwhile([1.0, 1.0, 0.0], np.array([0, 1, 1, 2, 2, 2], np.float32)) == 1


@pytest.mark.parametrize(("width", "calls"), [(1, 6), (2, 1)])
def test_an_oracle_knows_the_distribution_but_not_the_sample(width, calls):
    """Each token is the second most probable one."""
    given = text([1] * 7, ids=[[2, 1]] * 7, probabilities=(0.6, 0.4))
    assert knowing(given, FLAT, width) == (6, calls, float(calls))
    assert knowing(given, STEEP, width) == (6, 6, 6.0)


def test_copies_come_from_the_text_so_far():
    """Four new tokens take a step each, and the repeated rest two: a draft and its last token."""
    tokens, calls, _ = copied(text([1, 2, 3, 4, 1, 2, 3, 4, 1, 2], prompt=(9, 1)).trace, FLAT)
    assert (tokens, calls) == (9, 4 + 1)


def test_rows_of_longer_contexts_come_first():
    """The last token after 1 was 3, but the one after 2 and 1 was 5."""
    output = [2, 1, 5, 4, 1, 3, 2, 1, 5, 4]
    played = {n: TargetRows(n, 1.0).play(text(output).trace, FLAT, kept=False) for n in (1, 2)}
    assert played[2][1] < played[1][1]


def test_rows_of_earlier_texts_are_kept_if_asked_for():
    rows = TargetRows(2, 1.0)
    first, second = (rows.play(text(range(1, 8)).trace, FLAT, kept=True)[1] for _ in range(2))
    assert second < first == 6
    assert rows.play(text(range(1, 8)).trace, FLAT, kept=False)[1] == 6
