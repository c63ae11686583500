"""Replay recorded outputs through drafters, without a model: a draft token is accepted if the
recording has it at its place."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ngramspec.cli.options import CommandOptions, console, make_table, usable, write_json

if TYPE_CHECKING:
    from rich.console import RenderableType

    from ngramspec.drafters.base import Drafter
    from ngramspec.measure.replay import Known
    from ngramspec.measure.traces import Trace

    # By name: what makes the drafter, and its gamma.
    Contenders = dict[str, tuple[Callable[[], Drafter], int | str]]

SUMMARY = "replay recorded outputs through drafters"


def add_arguments(options: CommandOptions) -> None:
    """Declare the options."""
    help = "JSON lines with group, id, prompt and output (token ids), as ngramspec record writes"
    options.path("--traces", "FILE", help, required=True)
    options.drafters()
    options.repeated(
        "--curve",
        "CURVE",
        "the cost of a forward of n positions: cpu, gpu, or a JSON file with positions and"
        " cost; may be repeated (default: cpu and gpu)",
    )
    options.gamma(
        "draft tokens per step: an integer, heuristic, threshold, or auto: by expected tokens per"
        " cost if the drafter estimates them (default: auto)"
    )
    options.count("--gamma-max", 64, "maximum tokens of a draft")
    options.text("--tree", "N", "token trees of at most N nodes instead of chains", type=int)
    options.flag("--fresh", "use a new drafter for every trace, so that nothing carries over")
    options.path(
        "--corpus",
        "PLACE",
        "text to draft from besides each request: a corpus, or a folder with"
        " REPO.ngc or REPO.npy (token ids, a 0 after each document) for each trace's repo",
    )
    help = "share a store of earlier traces' outputs, or with all: also of their prompts"
    options.add("--shared", choices=("outputs", "all"), help=help)
    options.json()


def run(
    arguments: argparse.Namespace,
    peers: Contenders | None = None,
    skipped: dict[str, str] | None = None,
) -> int:
    """Replay drafters and ``peers`` on each curve; ``skipped`` are those that are not installed."""
    from ngramspec.measure.replay import ReplayPlan, compare, cost_curve

    given, screen = read(arguments), console()
    contenders: Contenders = {
        **{name: (maker, arguments.gamma) for name, maker in given.makers.items()},
        **(peers or {}),
    }
    theirs = [gamma for _, gamma in (peers or {}).values() if isinstance(gamma, int)]
    longest = max([given.gamma_max, *theirs])
    with usable():
        curves = {name: cost_curve(name, longest) for name in arguments.curve or ("cpu", "gpu")}
    results = []
    for curve, cost in curves.items():
        for name, (maker, gamma) in contenders.items():
            plan = ReplayPlan(cost, gamma, given.gamma_max, arguments.tree is not None)
            known = {"fresh": arguments.fresh, "knowledge": given.knowledge}
            found = compare(maker, plan, given.traces, **known)
            results.append({"drafter": name, "curve": Path(curve).stem, **found})
    for table in tables(results):
        screen.print(table)
    settings = {
        **{"traces": len(given.traces), "gamma_max": given.gamma_max},
        **{name: getattr(arguments, name) for name in ("fresh", "shared")},
        "tree": arguments.tree is not None,
        "corpus": None if arguments.corpus is None else arguments.corpus.name,
    }
    write_json(arguments, {"settings": settings, "results": results, "skipped": skipped or {}})
    return 0


@dataclass(frozen=True, slots=True)
class ReplayInput:
    """What makes each drafter, what is replayed, and what all drafters know besides."""

    makers: dict[str, Callable[[], Drafter]]
    gamma_max: int
    traces: list[Trace]
    knowledge: Known | None


def read(arguments: argparse.Namespace) -> ReplayInput:
    """Check the options and read the traces; a UsageError if an option cannot be used."""
    from ngramspec import options
    from ngramspec.drafters import build_drafter
    from ngramspec.measure.traces import read_traces

    specs = arguments.drafter or ["auto"]
    makers = {spec: partial(build_drafter, spec, policy=arguments.policy) for spec in specs}
    fields = {name: getattr(arguments, name) for name in ("policy", "gamma", "gamma_max", "tree")}
    with usable():
        checked = [options.Options(spec, **fields) for spec in specs]
        traces = read_traces(arguments.traces)
        return ReplayInput(dict(makers), checked[0].longest, traces, known(arguments, traces))


def known(arguments: argparse.Namespace, traces: Sequence[Trace]) -> Known | None:
    """What drafters know in addition to each request, by the options."""
    from ngramspec.measure.replay import Earlier, Knowledge

    if arguments.shared is not None:
        if arguments.corpus is not None or arguments.fresh:
            raise ValueError("--shared cannot be combined with --corpus or --fresh")
        return Earlier(arguments.shared)
    if arguments.corpus is None:
        return None
    knowledge = Knowledge(arguments.corpus)
    for which in {knowledge.which(trace) for trace in traces}:
        knowledge.store(which)  # raises errors before the replay
    return knowledge


def tables(results: Sequence[dict[str, Any]]) -> Iterator[RenderableType]:
    """For each curve: the means of every drafter, then tokens per cost by group."""
    for curve in dict.fromkeys(result["curve"] for result in results):
        same = [result for result in results if result["curve"] == curve]
        title = f"{curve} curve: geometric means over groups; alpha over all traces; µs of a step"
        counts = ("tok/fwd", "alpha", "acc/drft", "drft/step")
        names = ("drafter", "tok/cost", *counts, "median", "p99")
        yield make_table(names, map(_means, same), left=("drafter",), title=title)
        groups = [*same[0]["groups"]]
        rows = [
            (each["drafter"], *(f"{each['groups'][g]['tokens_per_cost']:.3f}" for g in groups))
            for each in same
        ]
        title = "tokens per cost by group"
        yield make_table(("drafter", *groups), rows, left=("drafter",), title=title)


def _means(result: dict[str, Any]) -> list[str]:
    """A drafter's row: its means over all groups."""
    mean, sources = result["mean"], result["sources"].values()
    drafted, verified, accepted = (
        sum(each[name] for each in sources) for name in ("drafted", "verified", "accepted")
    )
    calls = sum(group["calls"] for group in result["groups"].values())
    counts = f"{accepted / max(verified, 1):.3f}", f"{accepted / max(drafted, 1):.3f}"
    times = f"{mean['step_us_median']:.2f}", f"{mean['step_us_p99']:.1f}"
    speeds = f"{mean['tokens_per_cost']:.3f}", f"{mean['tokens_per_call']:.3f}"
    return [result["drafter"], *speeds, *counts, f"{drafted / calls:.2f}", *times]
