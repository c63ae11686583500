"""Predicts the gain of other settings and other machines on the same texts.

Settings are replayed on the recorded outputs without the model, and compared by tokens per cost at
the measured costs. A gain is the predicted ratio of speeds after the prefill, without overhead. It
holds for similar texts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from ngramspec import build_drafter
from ngramspec.draft import Float32
from ngramspec.drafters.base import Drafter
from ngramspec.measure.explain import Run
from ngramspec.measure.explain_predict import acceptance_of, batches, by_depth, decoding_steps
from ngramspec.measure.replay import Acceptance, Plan, replay
from ngramspec.measure.traces import Trace
from ngramspec.theory.walltime import oracle_improvement_at

GAMMAS = (2, 4, 8, 16, 32)
MAX_REPLAYED_NODES = 64  # of a draft in replays; not tuned


@dataclass(frozen=True, slots=True)
class Advice:
    """A possible change.

    Attributes:
        gain: predicted speed with the change / without it.
        basis: "replay", or "closed form" for changes that no setting makes.
    """

    name: str
    gain: float
    basis: str


def advise(run: Run) -> list[Advice]:
    """All evaluated changes, sorted by decreasing gain. A gain below 1 is a loss."""
    found = [*_settings(run), *_limits(run)]
    in_batches = batches(run)
    for batch in in_batches[:-1]:  # their speedup relative to that of the largest measured batch
        name = f"fewer rows: {batch.rows} in place of {in_batches[-1].rows}"
        found.append(Advice(name, batch.speed / in_batches[-1].speed, "closed form"))
    return sorted(found, key=lambda each: -each.gain)


def reliability(run: Run) -> Acceptance:
    """Detailed acceptance, including confidences, of the drafter replayed on the texts."""
    acceptance = Acceptance()
    replay(_drafter(run), _plan(run), run.traces, fresh=True, acceptance=acceptance)
    return acceptance


def _settings(run: Run) -> Iterator[Advice]:
    drafter, plan, traces = _drafter(run), _plan(run), run.traces
    now = _speed(drafter, plan, traces)
    if not now:
        return
    found: dict[str, float] = {}
    if run.settings["drafter"] != build_drafter("auto").spec:
        found['drafter="auto"'] = _speed(partial(build_drafter, "auto"), plan, traces)
    for gamma in (*GAMMAS, "heuristic", "threshold", "auto"):
        if gamma != run.settings["gamma"]:
            other = replace(plan, gamma=gamma, tree=False)
            found[f"gamma={gamma!r}"] = _speed(drafter, other, traces)
    name = "tree=None (chains)" if plan.tree else "trees"
    found[name] = _speed(drafter, replace(plan, gamma="auto", tree=not plan.tree), traces)
    if len(traces) > 1:
        found["a store of the other prompts' texts"] = _speed(drafter, plan, with_store(traces))
    for name, speed in found.items():
        yield Advice(name, speed / now, "replay")


def with_store(traces: list[Trace]) -> list[Trace]:
    """The traces, each with all earlier prompts and outputs before its prompt."""
    found, before = [], np.empty(0, np.int32)
    for trace in traces:
        found.append(replace(trace, prompt=np.concatenate((before, trace.prompt))))
        before = np.concatenate((before, trace.prompt, trace.output))
    return found


def _limits(run: Run) -> Iterator[Advice]:
    """Bounds that no setting reaches, and the gain of wider forwards."""
    steps, cost = decoding_steps(run.steps), run.cost()
    if not steps:
        return
    spent = np.array([cost[step["width"]] for step in steps], np.float64)
    drafting = run.stats.draft_seconds / len(steps) / run.seconds[1]
    now = float(spent.mean()) + drafting
    cheapest = np.minimum.accumulate(cost[::-1])[::-1]  # of a width and all larger ones
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


def _drafter(run: Run) -> Callable[[], Drafter]:
    return partial(build_drafter, run.settings["drafter"], policy=run.settings["policy"])


def _plan(run: Run) -> Plan:
    gamma, tree = run.settings["gamma"], run.settings["tree"]
    most = tree if isinstance(tree, int) else min(run.settings["gamma_max"], MAX_REPLAYED_NODES)
    trees = isinstance(tree, int) or (tree == "auto" and gamma == "auto")
    cost: Float32 = run.cost()[: most + MAX_REPLAYED_NODES + 2]
    return Plan(cost=cost, gamma=gamma, gamma_max=most, tree=trees)


def _speed(drafter: Callable[[], Drafter], plan: Plan, traces: list[Trace]) -> float:
    """Tokens per cost over all traces, each with a new drafter."""
    found = replay(drafter, plan, traces, fresh=True).values()
    spent = sum(tally.cost for tally in found)
    return sum(tally.emitted for tally in found) / spent if spent else 0.0
