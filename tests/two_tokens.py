"""Two tokens of many generations with sampled drafts, against the target's distribution."""

from __future__ import annotations

from functools import partial

import numpy as np
import torch
from scipy.stats import chisquare

from ngramspec import DecodeStats
from ngramspec.costs.policies import GammaController
from ngramspec.decoding.row import Row, report_fault
from ngramspec.draft import EMPTY_DRAFT
from ngramspec.verification.rule import Rule

VOCAB = 6
P = torch.tensor([0.25, 0.2, 0.1, 0.25, 0.1, 0.1])  # at the first position
P_NEXT = torch.softmax(torch.randn((VOCAB, VOCAB), generator=torch.Generator().manual_seed(1)), -1)


def two_tokens(drafter, tokens, gamma=4, samples=2000, controller=None, models=None):
    """What two positions commit in many generations of their own: counts, drafts, statistics.

    P is the target's distribution at the first, P_NEXT[first] at the second. ``models`` makes the
    model of the drafter's head.
    """
    stats, drafts = DecodeStats(), []

    def begin(row, _, session):
        if models is not None:
            session.begin_models(lambda _: models())
        session.begin_sampling(1.0 if models is None else 0.9, (7, row))

    for row in range(samples):
        drafting = Row(
            partial(report_fault, stats),
            controller or GammaController(gamma),
            begin=partial(begin, row),
        )
        drafting.begin(VOCAB, tokens)
        drafting.connect(lambda: drafter)
        drafts.append(drafting.propose(gamma))
        drafting.close()
    rule = Rule(True, generator=torch.Generator().manual_seed(0))
    first = rule.choose(P.log().expand(samples, -1), [(draft, 0) for draft in drafts])
    agrees = [
        draft.tokens[:1].tolist() == [token]
        for draft, token in zip(drafts, first.tolist(), strict=True)
    ]
    spots = [
        (draft, 1) if agreed else (EMPTY_DRAFT, 0)
        for draft, agreed in zip(drafts, agrees, strict=True)
    ]
    second = rule.choose(P_NEXT[first].log(), spots)
    counts = np.bincount((VOCAB * first + second).numpy(), minlength=VOCAB**2)
    return counts, drafts, stats


def fits(counts):
    """The p-value of the counts under the target's distribution of two tokens."""
    expected = (P[:, None].double() * P_NEXT.double()).flatten().numpy()
    return chisquare(counts, counts.sum() * expected / expected.sum()).pvalue
