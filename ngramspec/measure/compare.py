"""The replay of one drafter, with everything that is reported about it."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import partial
from typing import Any

import numpy as np

from ngramspec.drafters.base import Drafter
from ngramspec.measure.knowledge import Known
from ngramspec.measure.replay import Acceptance, Plan, Share, geometric_mean, replay
from ngramspec.measure.traces import Trace, halves

RATIOS = ("tokens_per_call", "tokens_per_cost")
COUNTED = (*RATIOS, "alpha", "accepted_fraction", "drafted_per_step")


def compare(
    make: Callable[[], Drafter],
    plan: Plan,
    traces: Sequence[Trace],
    *,
    fresh: bool = False,
    shuffle: int | None = None,
    knowledge: Known | None = None,
) -> dict[str, Any]:
    """Replay traces through one drafter, and once more to count acceptance in detail.

    ``shuffle`` is the seed of another order, or None. For the others see ``replay``.

    Returns:
        ``groups``: Tally.to_dict by group; ``mean``: geometric means over groups, and the times of
        all steps; ``halves``: the means of two halves of the traces, each with its own drafter;
        ``sources``, ``matches``, ``positions``, ``confidence``: Shares, as in Acceptance.
    """
    traces = list(traces)
    if shuffle is not None:
        random.Random(shuffle).shuffle(traces)
    play = partial(replay, make, plan, fresh=fresh, knowledge=knowledge)
    groups = play(traces)
    steps = np.concatenate([tally.nanoseconds for tally in groups.values()]) / 1000
    parts = [play(part) for part in halves(traces)]
    acceptance = Acceptance()
    play(traces, acceptance=acceptance)
    return {
        "groups": {name: tally.to_dict() for name, tally in sorted(groups.items())},
        "mean": {
            **{name: geometric_mean(groups.values(), name) for name in COUNTED},
            "step_us_median": float(np.median(steps)),
            "step_us_p99": float(np.percentile(steps, 99)),
            "step_us_worst": float(steps.max()),
        },
        "halves": [
            {name: geometric_mean(part.values(), name) for name in RATIOS} for part in parts
        ],
        **{
            name: _shares(getattr(acceptance, name))
            for name in ("sources", "matches", "positions", "confidence")
        },
    }


def _shares(shares: dict[Any, Share]) -> dict[str, dict[str, float]]:
    ordered = sorted(shares.items(), key=lambda each: each[0])
    return {str(key): asdict(share) for key, share in ordered}
