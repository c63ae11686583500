"""A sequence of predictions from alpha and costs to the measured speed, each with one more cause.

The first is Theorem 3.8 of Leviathan et al. 2023 from one alpha, gamma and c. Each further one
replaces an assumption by a measurement. Their differences are the parts of the total gap.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ngramspec.draft import Float32
from ngramspec.measure.explain import MIN_NOISE, Run, curve
from ngramspec.theory.walltime import improvement_at


@dataclass(frozen=True, slots=True)
class Rung:
    """One prediction: the speedup over the baseline with one more cause, ``name``.

    Attributes:
        says: the inputs, in words.
        noise: a relative change of the speed from the rung before is noise if it is not larger.
        resolved: whether the measurements determine the speed. If not, ``says`` gives the reason.
    """

    name: str
    speed: float
    says: str
    noise: float = 0.0
    resolved: bool = True


@dataclass(frozen=True, slots=True)
class Share:
    """Verified draft tokens of one depth or draft source."""

    verified: int
    accepted: int

    @property
    def rate(self) -> float:
        """Accepted / verified."""
        return self.accepted / self.verified if self.verified else 0.0


def ladder(run: Run) -> list[Rung]:
    """The predictions, from the paper's to the measured speed.

    The last two rungs are for whole calls, the others for steps after the prefill. A plain step
    takes longer than its forward. If it is measured shorter by more than the noise, the machine did
    other work during one of the measurements, and the rungs that combine them are not resolved.
    """
    stats, steps = run.stats, decoding_steps(run.steps)
    calls, runs = max(stats.target_calls, 1), max(stats.runs, 1)
    cost, one = run.cost(), run.seconds[1]
    gamma = stats.drafted / calls
    drafting = stats.draft_seconds / calls / one  # gamma c: forwards that a step's drafting takes
    tokens = stats.tokens_per_call or 1.0
    wide = float(np.mean([cost[step["width"]] for step in steps])) if steps else 1.0
    decode = wide * one * calls + stats.draft_seconds + stats.other_seconds
    paper = _at_gamma(stats.alpha, gamma) / (1 + drafting)
    whole = sum(run.plain_seconds) / (stats.prefill_seconds + decode)
    plain, noise = run.plain_token_seconds, run.noise or MIN_NOISE
    resolved = plain - one >= -noise * one
    if resolved:
        plain_says = f"below the noise of {1000 * noise * one:.2f} ms"
        if plain - one > noise * one:
            plain_says = f"{1000 * (plain - one):.2f} ms"
        overhead_says = (
            f"{1000 * stats.other_seconds / calls:.2f} ms a step outside of drafting and forwards;"
            f" plain: {plain_says}"
        )
        prefill_says = (
            f"{stats.prefill_seconds / runs:.3f} s a call; plain:"
            f" {sum(run.plain_first_seconds) / runs:.3f} s"
        )
    else:
        overhead_says = (
            f"not resolved: plain calls leave {1000 * plain:.2f} ms a step after the prefill, but a"
            f" forward alone took {1000 * one:.2f} ms; repeat on an idle machine"
        )
        prefill_says = "not resolved, for the same reason"
    acceptance_says = f"{tokens:.2f} tokens a step: by depth, branches, steps without a draft"
    cost_says = f"a forward costs {wide:.2f} on average"
    overhead = max(stats.emitted, 1) * plain / decode
    rest = "the rest: forwards whose times differ from cost(n)"
    return [
        Rung("Theorem 3.8", paper, f"alpha {stats.alpha:.3f}, gamma {gamma:.2f}, flat cost"),
        Rung("acceptance as measured", tokens / (1 + drafting), acceptance_says),
        Rung("cost(n)", tokens / (wide + drafting), cost_says, noise),
        Rung("overhead", overhead, overhead_says, noise, resolved),
        Rung("prefill", whole, prefill_says, noise, resolved),
        Rung("measured", run.measured, rest, noise),
    ]


def rung_rows(rungs: Sequence[Rung]) -> list[tuple[str, str, str, str]]:
    """(name, speed, change from the last resolved rung, inputs) of each rung."""
    rows: list[tuple[str, str, str, str]] = []
    before = None
    for rung in rungs:
        if not rung.resolved:
            rows.append((rung.name, "-", "-", rung.says))
            continue
        change = "" if before is None else f"{rung.speed - before:+.2f}"
        if before is not None and rung.noise and abs(rung.speed - before) <= rung.noise * before:
            change += " (noise)"
        rows.append((rung.name, f"{rung.speed:.2f}", change, rung.says))
        before = rung.speed
    return rows


@dataclass(frozen=True, slots=True)
class Batch:
    """The prediction for a batch whose rows draft as the measured sequence did.

    Attributes:
        cost: mean cost(n) of its forwards, relative to one position per row.
        speed: tokens per cost, the speedup over the baseline.
        plain, speculative: tokens per second of all rows, without prefill and overhead.
    """

    rows: int
    cost: float
    speed: float
    plain: float
    speculative: float


def batches(run: Run) -> list[Batch]:
    """Predictions for one row and all measured numbers of rows, ascending."""
    steps = decoding_steps(run.steps)
    tokens = run.stats.tokens_per_call
    if not steps or not tokens:
        return []
    found = []
    for rows, seconds in sorted({1: run.seconds, **run.row_seconds}.items()):
        costs = curve(seconds)
        cost = float(np.mean([costs[step["width"]] for step in steps]))
        drafting = rows * run.stats.draft_seconds / len(steps)
        step = cost * seconds[1] + drafting
        plain, fast = rows / seconds[1], rows * tokens / step
        found.append(Batch(rows, cost, fast / plain, plain, fast))
    return found


def _at_gamma(alpha: float, gamma: float) -> float:
    """Equation 1 at a fractional mean gamma, interpolated linearly."""
    least = int(gamma)
    values = improvement_at(np.full(least + 1, alpha), np.ones(least + 3))
    return float(np.interp(gamma, [least, least + 1], values[-2:]))


def decoding_steps(steps: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """The steps after the prefill."""
    return [step for step in steps if step["index"]]


def parents_of(step: Mapping[str, Any]) -> list[int]:
    """The parent of each drafted node, -1 for the last committed token."""
    parents: list[int] | None = step["parents"]
    return list(range(-1, len(step["drafted"]) - 1)) if parents is None else parents


def judged(step: Mapping[str, Any]) -> list[tuple[int, int, bool]]:
    """(node, depth, accepted) of the nodes that a step verified; one per depth at most is accepted.

    These are the children of the last committed token and of accepted nodes.
    """
    right = set(step["accepted"])
    above = {-1, *right}
    ended = len(step["emitted"]) <= len(right)  # by a stop criterion
    depths: list[int] = []
    found = []
    for node, parent in enumerate(parents_of(step)):
        depths.append(0 if parent < 0 else depths[parent] + 1)
        unseen = ended and depths[node] >= len(right)
        if node in right or (parent in above and not unseen):
            found.append((node, depths[node], node in right))
    return found


def by_depth(steps: Sequence[Mapping[str, Any]]) -> dict[int, Share]:
    """By depth: steps that verified a token there, and those that accepted one."""
    verified: Counter[int] = Counter()
    accepted: Counter[int] = Counter()
    for step in decoding_steps(steps):
        nodes = judged(step)
        verified.update({depth for _, depth, _ in nodes})
        accepted.update({depth for _, depth, right in nodes if right})
    return {depth: Share(verified[depth], accepted[depth]) for depth in sorted(verified)}


def by_source(run: Run) -> dict[str, Share]:
    """Verified draft tokens by draft source."""
    return {name: Share(each.verified, each.accepted) for name, each in run.stats.sources.items()}


def acceptance_of(shares: Mapping[int, Share]) -> Float32:
    """P(accepted | all before accepted) by depth, up to the first that was never verified."""
    rates: list[float] = []
    while (share := shares.get(len(rates))) is not None:
        rates.append(share.rate)
    return np.array(rates, np.float32)
