"""How much of a batch's drafts is verified: against every other choice, and by hand."""

from __future__ import annotations

import numpy as np
import pytest

from ngramspec._native import may_pay
from ngramspec.costs.policies import common_length, likeliest, likeliest_path, reach_of
from ngramspec.costs.row_lengths import urgencies, worthwhile_rows
from ngramspec.decoding.row import Row
from ngramspec.draft import EMPTY_DRAFT, Draft


def chain(*confidence):
    n = len(confidence)
    return Draft(np.arange(n, dtype=np.int32), None, np.array(confidence, np.float32))


def tree(parents, confidence):
    tokens = np.arange(len(parents), dtype=np.int32)
    return Draft(tokens, np.array(parents, np.int32), np.array(confidence, np.float32))


def test_the_likeliest_tokens_of_all_rows_are_kept():
    """By hand: reach .9 .81 | .5 .25 | .95; a step of two rows costs .45 more by the token."""
    drafts = [chain(0.9, 0.9), chain(0.5, 0.5), chain(0.95)]
    curve = (1 + 0.15 * np.arange(6)).astype(np.float32)
    assert [len(each) for each in worthwhile_rows(drafts, curve)] == [2, 0, 1]
    assert [len(each) for each in worthwhile_rows(drafts, np.ones(6, np.float32))] == [2, 2, 1]
    steep = (1 + np.arange(6)).astype(np.float32)
    assert [len(each) for each in worthwhile_rows(drafts, steep)] == [0, 0, 0]
    assert worthwhile_rows([EMPTY_DRAFT], steep) == [EMPTY_DRAFT]


def test_tokens_that_may_be_lost_are_worth_less():
    """By hand: reach 1, 1, 1 of which .5, .25, .125 are wanted; each costs .3 of a step."""
    curve = (1 + 0.3 * np.arange(4)).astype(np.float32)
    sure = [chain(1.0, 1.0, 1.0)]
    assert [len(each) for each in worthwhile_rows(sure, curve)] == [3]
    assert [len(each) for each in worthwhile_rows(sure, curve, 0.5)] == [1]
    assert sure[0].confidence.tolist() == [1.0, 1.0, 1.0]


def test_tokens_of_rows_that_lag_behind_are_worth_more():
    """By hand: a step of two rows costs .4 more by the token; .3 is worth it if it counts twice."""
    drafts = [chain(0.3), chain(0.3)]
    curve = (1 + 0.2 * np.arange(3)).astype(np.float32)
    assert [len(each) for each in worthwhile_rows(drafts, curve)] == [0, 0]
    weights = 2 * urgencies([1, 1], [10, 20], [10, 10], 1.0)
    assert weights == pytest.approx([2 * 28**2 / (18**2 + 28**2), 2 * 18**2 / (18**2 + 28**2)])
    assert [len(each) for each in worthwhile_rows(drafts, curve, 1.0, weights.tolist())] == [1, 0]
    assert urgencies([1, 1], [10, 20], [10, 10], -1.0) == pytest.approx([0.5, 0.5])


def test_a_token_must_be_worth_what_its_cost_gives_elsewhere():
    """By hand: a token costs .2 of a step. Where steps give 1 token each .25 is worth it, where
    they give 2 it is not; and among sure tokens, .45 is, though it lowers this step's ratio."""
    curve = (1 + 0.2 * np.arange(6)).astype(np.float32)
    rare, late = [chain(0.25)], [chain(1.0, 1.0, 1.0, 0.45)]
    lengths = [[len(each) for each in worthwhile_rows(rare, curve, rate=r)] for r in (1.0, 2.0)]
    assert lengths == [[1], [0]]
    assert [len(each) for each in worthwhile_rows(late, curve, rate=2.0)] == [4]
    assert [len(each) for each in worthwhile_rows(late, curve)] == [3]
    assert may_pay(curve, rows=1, k=3, rate=4.0)
    assert not may_pay(curve, rows=1, k=3, rate=6.0)


def lengths(drafts, weights, cost, surcharge=1.0):
    length, path = common_length(drafts, weights, cost, surcharge)
    return [len((likeliest(each) if path else each).first(length)) for each in drafts]


def test_the_common_length_is_the_best_of_all():
    """Against every length, on random drafts, weights and curves."""
    rng = np.random.default_rng(4)
    for _ in range(200):
        drafts = [chain(*rng.random(rng.integers(0, 6))) for _ in range(4)]
        weights = rng.random(4)
        weights /= weights.sum()
        cost = np.concatenate(([0], 1 + np.cumsum(rng.random(8) * 0.2))).astype(np.float32)

        def value(n, drafts=drafts, weights=weights, cost=cost):
            gains = [np.cumprod(each.confidence[:n].astype(float)).sum() for each in drafts]
            return (1 + weights @ gains) / cost[n + 1]

        longest = max(len(each) for each in drafts)
        best = max(lengths(drafts, weights, cost))
        assert value(best) == pytest.approx(max(value(n) for n in range(longest + 1)))


def test_rows_without_a_draft_count_as_such():
    cost = np.array([0, 1, 1.2, 1.4], np.float32)
    sure = chain(0.9, 0.9)
    assert lengths([sure], np.ones(1), cost) == [2]
    assert lengths([sure, *[EMPTY_DRAFT] * 4], np.full(5, 0.2), cost) == [0] * 5
    assert lengths([EMPTY_DRAFT], np.ones(1), cost) == [0]


def test_branches_fill_the_width_of_another_row_s_chain():
    """By hand: reach .9 .81 | .5 .4, and .9 .81 | .5 of the paths; a position more costs .2."""
    branched = tree((-1, -1), (0.5, 0.4))
    cost = np.array([0, 1, 1.2, 1.4], np.float32)
    halves = np.full(2, 0.5)
    # 1 + .7 + .605 = 2.305 tokens with branches for 1.4, without them 2.105; one node 1.7 for 1.2
    for surcharge, expected in ((1.0, [2, 2]), (1.09, [2, 2]), (1.10, [2, 1])):
        assert lengths([chain(0.9, 0.9), branched], halves, cost, surcharge) == expected
    assert lengths([branched], np.ones(1), cost, 1.01) == [2]
    assert common_length([branched], np.ones(1), cost, 1.09) == (1, True)
    row = Row(None)
    row.take(branched)
    row.cut(1, path=True)
    assert row.draft.tokens.tolist() == [0]
    assert row.draft.parents is None


def test_the_reach_of_a_tree_s_nodes_by_hand():
    parents, confidence = np.array([-1, 0, -1, 2], np.int32), np.array([0.5, 0.5, 0.25, 1.0])
    assert reach_of(parents, confidence).tolist() == [0.5, 0.25, 0.25, 0.25]
    assert reach_of(None, confidence).tolist() == [0.5, 0.25, 0.0625, 0.0625]
    assert likeliest_path(parents, confidence) == [0, 1]
    assert likeliest_path(parents[:0], confidence[:0]) == []


def test_the_row_with_the_most_steps_left_is_the_most_urgent():
    """By hand: rates (12+8)/(12+8) = 1 and (32+8)/20 = 2; 60 and 30 steps left."""
    weights = urgencies([60, 60], [12, 32], 12)
    assert weights == pytest.approx([32 / 33, 1 / 33])
    assert urgencies([5, 5, 5], [9, 9, 9], 4) == pytest.approx([1 / 3] * 3)
    assert urgencies([0, 0], [9, 9], 4) == pytest.approx([0.5, 0.5])
