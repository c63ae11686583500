"""What would help most: other settings on the same texts, and other machines, by prediction.

Settings are replayed without the model on what it said, and judged by tokens per cost with the
costs that were measured. So a gain is the predicted ratio of speeds after the prefill, overhead
left out, and it holds for texts like these.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np

from ngramspec import build_drafter
from ngramspec.draft import Float32
from ngramspec.drafters.base import Drafter
from ngramspec.measure.explain import Run
from ngramspec.measure.explain_predict import (
    acceptance_of,
    batches,
    by_depth,
    decoding_steps,
)
from ngramspec.measure.replay import Acceptance, Plan, Player
from ngramspec.measure.traces import Trace
from ngramspec.theory.walltime import oracle_improvement_at

GAMMAS = (2, 4, 8, 16, 32)
NODES = 64  # most tokens of a draft that is tried


@dataclass(frozen=True, slots=True)
class Advice:
    """A change.

    Attributes:
        name: what to change.
        gain: predicted speed / the predicted speed as it is.
        basis: "replay", or "closed form" for what no setting brings about.
    """

    name: str
    gain: float
    basis: str


def advise(run: Run) -> list[Advice]:
    """Every change that was tried, the best first; some are losses, with a gain below 1."""
    found = [*_settings(run), *_limits(run), *_fewer_rows(run)]
    return sorted(found, key=lambda each: -each.gain)


def reliability(run: Run) -> Acceptance:
    """Acceptance in detail, confidences included, of the drafter replayed on the texts."""
    acceptance = Acceptance()
    for trace in run.traces:
        Player(_drafter(run)(), _plan(run), acceptance).play([trace])
    return acceptance


def _settings(run: Run) -> Iterator[Advice]:
    drafter, plan = _drafter(run), _plan(run)
    now = _speed(drafter, plan, run.traces)
    if not now:
        return
    if run.settings["drafter"] != build_drafter("auto").spec:

        def auto() -> Drafter:
            return build_drafter("auto")

        yield Advice('drafter="auto"', _speed(auto, plan, run.traces) / now, "replay")
    for gamma in (*GAMMAS, "heuristic", "threshold", "auto"):
        if gamma != run.settings["gamma"]:
            other = replace(plan, gamma=gamma, tree=False)
            yield Advice(f"gamma={gamma!r}", _speed(drafter, other, run.traces) / now, "replay")
    toggled = _speed(drafter, replace(plan, gamma="auto", tree=not plan.tree), run.traces)
    name = "tree=None (chains)" if plan.tree else "trees"
    yield Advice(name, toggled / now, "replay")
    if len(run.traces) > 1:
        stored = _speed(drafter, plan, with_store(run.traces))
        yield Advice("a store of the other prompts' texts", stored / now, "replay")


def with_store(traces: list[Trace]) -> list[Trace]:
    """Each text with all those before it, and their prompts, read ahead of its own prompt."""
    found, before = [], np.empty(0, np.int32)
    for trace in traces:
        found.append(replace(trace, prompt=np.concatenate((before, trace.prompt))))
        before = np.concatenate((before, trace.prompt, trace.output))
    return found


def _limits(run: Run) -> Iterator[Advice]:
    """What no setting brings about, and what a wider forward would."""
    steps, cost = decoding_steps(run.steps), run.cost()
    if not steps:
        return
    spent = np.array([cost[step["width"]] for step in steps], np.float64)
    drafting = run.stats.draft_seconds / len(steps) / run.seconds[1]
    now = float(spent.mean()) + drafting
    cheapest = np.minimum.accumulate(cost[::-1])[::-1]  # of a width and all above it
    padded = float(np.mean([cheapest[step["width"]] for step in steps]))
    yield Advice("wider forwards where they are cheaper", now / (padded + drafting), "closed form")
    yield Advice("forwards of equal cost at any width", now / (1 + drafting), "closed form")
    yield Advice("drafting that takes no time", now / float(spent.mean()), "closed form")
    acceptance = acceptance_of(by_depth(run.steps))
    if len(acceptance):
        oracle = oracle_improvement_at(acceptance, cost)
        yield Advice(
            "an oracle for the length of each draft",
            oracle * now / run.stats.tokens_per_call,
            "closed form",
        )


def _fewer_rows(run: Run) -> Iterator[Advice]:
    """Batches of fewer rows: of the speed to plain in the largest that was measured."""
    found = batches(run)
    for batch in found[:-1]:
        name = f"fewer rows: {batch.rows} in place of {found[-1].rows}"
        yield Advice(name, batch.speed / found[-1].speed, "closed form")


def _drafter(run: Run) -> Callable[[], Drafter]:
    spec, policy = run.settings["drafter"], run.settings["policy"]
    return lambda: build_drafter(spec, policy=policy)


def _plan(run: Run) -> Plan:
    gamma, tree = run.settings["gamma"], run.settings["tree"]
    most = tree if isinstance(tree, int) else min(run.settings["gamma_max"], NODES)
    trees = isinstance(tree, int) or (tree == "auto" and gamma == "auto")
    cost: Float32 = run.cost()[: most + NODES + 2]
    return Plan(cost=cost, gamma=gamma, gamma_max=most, tree=trees)


def _speed(drafter: Callable[[], Drafter], plan: Plan, traces: list[Trace]) -> float:
    """Tokens per cost over all traces, each with a new drafter."""
    found = [
        tally for trace in traces for tally in Player(drafter(), plan).play([trace]).groups.values()
    ]
    spent = sum(tally.cost for tally in found)
    return sum(tally.emitted for tally in found) / spent if spent else 0.0
