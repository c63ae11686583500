"""Replay drafting heads with and without tables, without a model.

    python -m benchmarks heads --traces recorded.jsonl --json heads.json

The traces are of ``ngramspec record --top-k 8``. Traces without top-k tokens get those of the
embedded model. The head is synthetic. Figures are tokens per cost, where a row of the head costs
``--costs`` one-position forwards of the target.

"tables" and "head" draft alone, by expected tokens per cost. "head, tables" and "tables, head"
draft in order of priority: each continues the draft of the one before it, with the heuristic draft
length and without estimates. In "priced" ones the draft also ends by the measured acceptance of
each source. "both" is the arbiter (``auto+model(FOLDER)``).
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.harness import write
from benchmarks.recorded_heads import TOP, RecordedHead, SyntheticRows
from ngramspec.cli.options import Options
from ngramspec.drafters import CalibratedDrafter, ModelDrafter, PriorityDrafter, build_drafter
from ngramspec.drafters.base import Drafter
from ngramspec.drafters.headed import HeadedDrafter
from ngramspec.drafters.value import SOURCES, StoreDrafter, ValueDrafter
from ngramspec.measure.models import load
from ngramspec.measure.replay import Plan, Player, cost_curve, geometric_mean
from ngramspec.measure.traces import TopTokens, Trace, read_traces
from ngramspec.verification.evidence import leading

CHAINS = ("head, tables", "tables, head")
PRICED = ("priced h, t", "priced t, h")
GAMMA = 16  # most tokens of a head in the chainings
CONTEXT = 1024  # last tokens of a prompt that the embedded model reads


def add_arguments(options: Options) -> None:
    """Declare the options."""
    options.add("--traces", type=Path, required=True)
    options.add("--costs", type=float, nargs="+", default=[0.02, 0.05, 0.1, 0.3])
    options.add("--curve", default="gpu", help="cost of a forward: cpu, gpu or a file")
    options.add("--count", type=int, default=1000, help="most traces")
    options.add("--seed", type=int, default=0)
    options.json()


def head() -> ModelDrafter:
    """A head whose model the replay provides; chainings draft all that it is fairly sure of."""
    return ModelDrafter("recorded", gamma=GAMMA, tables=False)


def tables() -> Drafter:
    """The tables in order of priority."""
    return build_drafter("copy+ngram", policy="priority")


CONTENDERS: dict[str, Callable[[], Drafter]] = {
    "tables": ValueDrafter,
    "head": lambda: HeadedDrafter(StoreDrafter(), head()),
    "head, tables": lambda: PriorityDrafter([head(), tables()]),
    "tables, head": lambda: PriorityDrafter([tables(), head()]),
    "priced h, t": lambda: CalibratedDrafter(PriorityDrafter([head(), tables()])),
    "priced t, h": lambda: CalibratedDrafter(PriorityDrafter([tables(), head()])),
    "both": lambda: HeadedDrafter(ValueDrafter(SOURCES), head()),
}


def run(arguments: argparse.Namespace) -> int:
    """Replay; print a table for each cost and write the JSON."""
    traces = read_traces(arguments.traces)[: arguments.count]
    if any(trace.top_tokens is None for trace in traces):
        model = load(None, "float32").model
        traces = [with_top_tokens(model, trace) for trace in traces]
    plans = {True: Plan(cost_curve(arguments.curve, 64))}
    plans[False] = replace(plans[True], gamma="heuristic")
    groups = list(dict.fromkeys(trace.group for trace in traces))
    found: list[dict[str, Any]] = []
    for cost in arguments.costs:
        print(f"head cost {cost}".ljust(16) + "".join(f"{each[:13]:>14}" for each in groups))
        figures: dict[str, dict[str, float]] = {}
        for name, make in CONTENDERS.items():
            plan = plans[name not in CHAINS]
            if name == "tables":
                player = Player(make(), plan).play(traces)
            else:
                rows = (SyntheticRows(each, arguments.seed) for each in traces)
                heads = [RecordedHead(*each, cost) for each in zip(traces, rows, strict=True)]
                player = play_with(heads, make(), plan, traces)
            figures[name] = {
                each: player.groups[each].to_dict()["tokens_per_cost"] for each in groups
            }
            mean = geometric_mean(player.groups.values(), "tokens_per_cost")
            values = "".join(f"{figures[name][each]:>14.3f}" for each in groups)
            print(f"{name:<16}{values}{mean:>9.3f}", flush=True)
        ratios = compared(figures)
        for name, by_group in ratios.items():
            mean = float(np.exp(np.mean(np.log(list(by_group.values())))))
            values = "".join(f"{each:>14.3f}" for each in by_group.values())
            print(f"{name:<16}{values}{mean:>9.3f}")
        found.append({"cost": cost, "tokens_per_cost": figures, "ratios": ratios})
    settings = {
        "traces": len(traces),
        "head": "synthetic",
        "seed": arguments.seed,
        "curve": arguments.curve,
    }
    write(arguments, {"settings": settings, "results": found})
    return 0


def with_top_tokens(model: Any, trace: Trace) -> Trace:
    """The trace with a model's most probable tokens at the output's positions."""
    text = [*trace.prompt.tolist()[-CONTEXT:], *trace.output.tolist()]
    count = len(trace.output)
    with torch.inference_mode():
        logits = model(
            input_ids=torch.tensor([text[:-1]]), logits_to_keep=count, use_cache=False
        ).logits[0, -count:]
        ids, log_probs = leading(logits.float(), TOP)
    return replace(trace, top_tokens=TopTokens(ids.int().numpy(), log_probs.numpy()))


def play_with(
    heads: Sequence[RecordedHead], drafter: Drafter, plan: Plan, traces: Sequence[Trace]
) -> Player:
    """Replay traces, each with its head, whose rows are part of the cost."""
    following = iter(heads)
    player = Player(drafter, plan, head=lambda _: next(following)).play(traces)
    for trace, head in zip(traces, heads, strict=True):
        player.groups[trace.group].cost += head.paid
    return player


def compared(figures: dict[str, dict[str, float]]) -> dict[str, dict[str, float]]:
    """The arbiter relative to the better one alone, and to the better chains, by group."""
    rivals = {"/ better alone": ("tables", "head"), "/ better chain": CHAINS, "/ priced": PRICED}
    return {
        name: {
            group: value / max(figures[each][group] for each in names)
            for group, value in figures["both"].items()
        }
        for name, names in rivals.items()
    }
