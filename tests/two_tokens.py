"""Two tokens of many generations with sampled drafts, against the target's distribution."""

from __future__ import annotations

from functools import partial

import numpy as np
import torch
from scipy.stats import chisquare

from ngramspec import DecodeStats
from ngramspec.costs.policies import FixedGamma
from ngramspec.decoding.row import Row, report_fault
from ngramspec.draft import EMPTY_DRAFT
from ngramspec.verification.rule import Rule
from ngramspec.verification.sampler import DraftCursor, drafted_at

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
            controller or FixedGamma(gamma),
            begin=partial(begin, row),
        )
        drafting.connect(lambda: drafter, VOCAB, tokens)
        drafts.append(drafting.propose(gamma))
        drafting.close()
    rule = Rule(True, generator=torch.Generator().manual_seed(0))
    walks, cpu = [DraftCursor(draft) for draft in drafts], torch.device("cpu")
    scores = P.log().expand(samples, -1)
    first = rule.choose(scores, *drafted_at([(walk, 0) for walk in walks], VOCAB, cpu))
    nothing = DraftCursor(EMPTY_DRAFT)
    first_drafted = [[walk.tokens[node] for node in walk.nodes(0)] for walk in walks]
    agrees = [own == [token] for own, token in zip(first_drafted, first.tolist(), strict=True)]
    walks = [walk if agreed else nothing for walk, agreed in zip(walks, agrees, strict=True)]
    spots = [(walk, 1 if walk.tokens else 0) for walk in walks]
    second = rule.choose(P_NEXT[first].log(), *drafted_at(spots, VOCAB, cpu))
    counts = np.bincount((VOCAB * first + second).numpy(), minlength=VOCAB**2)
    return counts, drafts, stats


def fits(counts):
    """The p-value of the counts under the target's distribution of two tokens."""
    expected = (P[:, None].double() * P_NEXT.double()).flatten().numpy()
    return chisquare(counts, counts.sum() * expected / expected.sum()).pvalue
