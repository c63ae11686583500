"""Draft lengths at long prompts, from recorded outputs and measured seconds of forwards.

No model is run. A forward takes the time that ``ngramspec calibrate --contexts ... --json COSTS``
measured, linear between its contexts and widths and beyond the widest, times a seeded factor. So
policies of the draft length can be compared on any machine, and on one with an unsteady speed:

    python -m benchmarks long_contexts --traces TRACES --costs COSTS --json OUT
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.harness import add_json, write
from ngramspec.costs.curve import ForwardKind
from ngramspec.costs.processors import AMX
from ngramspec.costs.saved import SavedCosts
from ngramspec.costs.tracker import StepCostTracker
from ngramspec.draft import EMPTY_DRAFT, Draft
from ngramspec.draft_length.schedule import FixedGamma, GammaController, make_controller
from ngramspec.drafters import build_drafter
from ngramspec.measure.replay import accepted_path
from ngramspec.measure.tasks import Prompt, fit

LENGTHS = (500, 1000, 2000, 4000)
TASKS = ("summarization", "context_qa", "code_edit")
NEW = 80


@dataclass(frozen=True, slots=True)
class Policy:
    """The draft length: an integer, or by cost; and whether drafts may have branches."""

    name: str
    gamma: int | str = "auto"
    most: int = 64
    tree: bool = False
    surcharged: bool = True


COMPARED = (
    Policy("auto", tree=True),
    Policy("chains"),
    *(Policy(f"gamma {n}", n) for n in (5, 10, 20)),
    *(Policy(f"tree {n}", most=n, tree=True, surcharged=False) for n in (8, 16, 32)),
)


class Seconds:
    """The time of forwards."""

    def __init__(self, saved: SavedCosts) -> None:
        self._contexts = sorted(saved.seconds)
        self._tables = [sorted(saved.seconds[at].items()) for at in self._contexts]

    def of(self, width: int, length: int) -> float:
        """Seconds of a forward of ``width`` positions after ``length``."""
        at = []
        for table in self._tables:
            widths, seconds = (np.array(each) for each in zip(*table, strict=True))
            slope = (seconds[-1] - seconds[-2]) / (widths[-1] - widths[-2])
            more = slope * max(width - widths[-1], 0)
            at.append(float(np.interp(width, widths, seconds) + more))
        return float(np.interp(length, self._contexts, at))


def steady(rng: np.random.Generator) -> Iterator[float]:
    """A quiet machine: 3 % from step to step."""
    while True:
        yield float(np.exp(rng.normal(0, 0.03)))


def swinging(rng: np.random.Generator) -> Iterator[float]:
    """A shared one: twice as slow for some 20 steps at a time, drifting, with stalls."""
    slow, level = 1.0, 0.0
    for each in steady(rng):
        slow = 3.0 - slow if rng.random() < 1 / 20 else slow
        level = float(np.clip(level + rng.normal(0, 0.03), -0.5, 0.5))
        stall = rng.uniform(2, 8) if rng.random() < 1 / 20 else 1.0
        yield each * slow * stall * float(np.exp(level))


CLOCKS = {each.__name__: each for each in (steady, swinging)}


class Model:
    """The model for which costs are learned."""


def play(
    policy: Policy,
    text: np.ndarray,
    prompt: int,
    costs: StepCostTracker,
    machine: Any,
) -> tuple[int, int, float]:
    """One generation of a recorded text: (tokens, forwards, nominal seconds) after the prefill."""
    seconds, speed = machine
    output, at, spent, calls = text[prompt:].tolist(), 1, 0.0, 0
    session = build_drafter("auto").start(text[: prompt + 1])
    surcharge = costs.surcharge if policy.surcharged else None
    controller: GammaController = FixedGamma(policy.most)
    if isinstance(policy.gamma, int):
        controller = FixedGamma(policy.gamma)
    else:
        controller = make_controller("auto", policy.most, costs.cost, surcharge)
    while at < len(output):
        length = prompt + at
        costs.at(length)
        draft = EMPTY_DRAFT
        if isinstance(policy.gamma, int) or not costs.plain():
            draft = _draft(policy, session, controller, len(output) - at - 1)
        width = 1 + len(draft)
        path = accepted_path(draft.tokens.tolist(), draft, output, at)
        nominal = seconds.of(width, length)
        costs.record_time(width, nominal * next(speed), draft.parents is not None)
        costs.record_acceptance(len(draft), len(path))
        session.extend(text[prompt + at : prompt + at + len(path) + 1])
        at, spent, calls = at + len(path) + 1, spent + nominal, calls + 1
    session.close()
    return at - 1, calls, spent


def _draft(policy: Policy, session: Any, controller: GammaController, room: int) -> Draft:
    gamma, cost = controller.plan(True)
    draft: Draft = session.propose(
        gamma if policy.tree else min(gamma, room), cost, tree=policy.tree
    )
    return controller.keep(draft.within(room).as_chain())


def texts(path: Path, task: str, length: int, count: int) -> list[tuple[np.ndarray, int]]:
    """Prompts of a task cut or filled up to a length, each followed by its recorded output."""
    lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    mine = [line for line in lines if line["group"] == task and len(line["output"]) >= NEW // 2]
    prompts = [Prompt(task, str(line["id"]), tuple(line["prompt"])) for line in mine]
    found = []
    for prompt, line in zip(fit(prompts, length)[:count], mine, strict=False):
        found.append((np.array([*prompt.ids, *line["output"][:NEW]], np.int32), length))
    return found


def cell(
    policy: Policy,
    model: Model,
    many: list[tuple[np.ndarray, int]],
    seconds: Seconds,
    clock: Callable[[np.random.Generator], Iterator[float]],
) -> dict[str, float]:
    """Tokens per forward, and speedup over the baseline, over the prompts of a cell."""
    speed = clock(np.random.default_rng(0))
    tokens, calls, spent, plain = 0, 0, 0.0, 0.0
    for text, prompt in many:
        kind = ForwardKind(AMX, "bfloat16", tree=policy.tree)
        costs = StepCostTracker(model, kind, policy.most + 1, NEW)
        found = play(policy, text, prompt, costs, (seconds, speed))
        tokens, calls, spent = tokens + found[0], calls + found[1], spent + found[2]
        plain += sum(seconds.of(1, prompt + at) for at in range(1, 1 + found[0]))
    return {"tokens_per_call": tokens / calls, "to_plain": plain / spent}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("--traces", type=Path, required=True)
    parser.add_argument("--costs", type=Path, required=True)
    parser.add_argument("--lengths", type=int, nargs="+", default=LENGTHS)
    parser.add_argument("--prompts", type=int, default=6)
    add_json(parser)


def run(arguments: argparse.Namespace) -> int:
    """Measure, print, write the JSON."""
    seconds, rows = Seconds(SavedCosts.read(arguments.costs)), []
    for name, clock in CLOCKS.items():
        models = {policy.name: Model() for policy in COMPARED}
        for length in arguments.lengths:
            for task in TASKS:
                many = texts(arguments.traces, task, length, arguments.prompts)
                found = {
                    policy.name: cell(policy, models[policy.name], many, seconds, clock)
                    for policy in COMPARED
                }
                rows.append({"clock": name, "length": length, "task": task, "ways": found})
                best = max((each["to_plain"], policy) for policy, each in found.items())[1]
                share = found["auto"]["to_plain"] / found[best]["to_plain"]
                speeds = "  ".join(
                    f"{policy} {each['to_plain']:.2f}" for policy, each in found.items()
                )
                print(f"{name} {length} {task}: {speeds}; auto is {share:.3f} of {best}")
    given = {"costs": arguments.costs.name, "prompts": arguments.prompts}
    write(arguments, {**given, "rows": rows})
    return 0
