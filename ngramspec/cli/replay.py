"""Replay recorded outputs through drafters, without a model: a draft token is accepted if the
recording has it at its place."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ngramspec.cli.options import (
    add_count,
    add_drafters,
    add_flag,
    add_gamma,
    add_outputs,
    add_path,
    add_repeated,
)
from ngramspec.cli.output import print_paths, write_json
from ngramspec.cli.usage import need_plots, usable
from ngramspec.errors import check_int

if TYPE_CHECKING:
    from ngramspec.draft import Float32
    from ngramspec.drafters.base import Drafter
    from ngramspec.measure.knowledge import Known
    from ngramspec.measure.traces import Trace

    # By name: what makes the drafter, and its gamma.
    Contenders = dict[str, tuple[Callable[[], Drafter], int | str]]

SUMMARY = "replay recorded outputs through drafters"
MAX_GAMMA = 4096  # of --gamma-max and --tree; not tuned


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    add_path(
        parser,
        "--traces",
        "FILE",
        "JSON lines with group, id, prompt and output (token ids), as ngramspec record writes",
        required=True,
    )
    add_drafters(parser)
    add_repeated(
        parser,
        "--curve",
        "CURVE",
        "the cost of a forward of n positions: cpu, gpu, or a JSON file with positions and"
        " cost; may be repeated (default: cpu and gpu)",
    )
    add_gamma(
        parser,
        "tokens asked for: an integer, heuristic, threshold, or auto: by expected tokens per cost"
        " if the drafter estimates them (default: auto)",
    )
    add_count(parser, "--gamma-max", 64, "most tokens of a draft")
    parser.add_argument(
        "--tree", type=int, metavar="N", help="token trees of at most N nodes instead of chains"
    )
    add_flag(parser, "--fresh", "a new drafter for every trace: nothing carries over")
    add_path(
        parser,
        "--corpus",
        "PLACE",
        "what all drafters know in addition to each request: a corpus, or a folder with"
        " REPO.ngc or REPO.npy (token ids, a 0 after each document) for each trace's repo",
    )
    parser.add_argument(
        "--shared",
        choices=("outputs", "all"),
        help="all drafters share a store of the earlier traces' outputs; all: prompts, too",
    )
    add_path(parser, "--tools", "FILE", "JSON: the tools of the traces' model")
    parser.add_argument(
        "--tokenizer", metavar="FOLDER", help="of the traces; only --tools needs it"
    )
    parser.add_argument("--shuffle", type=int, metavar="SEED", help="play in another order")
    add_outputs(parser, plots=True)


def run(arguments: argparse.Namespace) -> int:
    """Replay every drafter on every curve; print, write and draw the results."""
    given = read(arguments)
    own: Contenders = {name: (maker, arguments.gamma) for name, maker in given.makers.items()}
    results = []
    for curve, cost in curves(arguments, given.gamma_max).items():
        results += replay(arguments, given, own, given.gamma_max, curve, cost)
    report(arguments, given, results)
    return 0


@dataclass(frozen=True, slots=True)
class Given:
    """What the options ask for: what makes each drafter, and what is replayed.

    ``knowledge`` is what all drafters know in addition to each request, or None.
    """

    makers: dict[str, Callable[[], Drafter]]
    gamma_max: int
    traces: list[Trace]
    knowledge: Known | None


def read(arguments: argparse.Namespace) -> Given:
    """Check the options and read the traces; a UsageError if an option cannot be used."""
    from ngramspec.drafters import build_drafter
    from ngramspec.measure.traces import read_traces

    need_plots(arguments.plots)
    specs = arguments.drafter or ["auto"]
    with usable():
        gamma_max = most_tokens(arguments)
        makers = {spec: partial(build_drafter, spec, policy=arguments.policy) for spec in specs}
        for maker in makers.values():
            maker()
        traces = read_traces(arguments.traces)
        return Given(dict(makers), gamma_max, traces, known(arguments, traces))


def curves(arguments: argparse.Namespace, longest: int) -> dict[str, Float32]:
    """The cost curves of ``--curve`` by name, for drafts of at most ``longest`` tokens."""
    from ngramspec.measure.costs import cost_curve

    with usable():
        return {name: cost_curve(name, longest) for name in arguments.curve or ("cpu", "gpu")}


def report(
    arguments: argparse.Namespace,
    given: Given,
    results: list[dict[str, Any]],
    skipped: dict[str, str] | None = None,
) -> None:
    """Print, write and draw the results of all drafters and curves.

    ``skipped`` are the drafters that are not installed, with the command that installs each.
    """
    print(tables(results))
    settings = {
        "traces": len(given.traces),
        "gamma_max": given.gamma_max,
        "tree": arguments.tree is not None,
        "fresh": arguments.fresh,
        "shuffle": arguments.shuffle,
        "shared": arguments.shared,
        "corpus": None if arguments.corpus is None else arguments.corpus.name,
    }
    write_json(arguments, {"settings": settings, "results": results, "skipped": skipped or {}})
    if arguments.plots is not None:
        from ngramspec.measure.plots import plot_replay

        print_paths(plot_replay(results, arguments.plots))


def known(arguments: argparse.Namespace, traces: Sequence[Trace]) -> Known | None:
    """What drafters know in addition to each request, by the options."""
    from ngramspec.measure.knowledge import Earlier, Knowledge, Tools

    stored: Known | None = None
    if arguments.shared is not None:
        if arguments.corpus is not None or arguments.fresh:
            raise ValueError("--shared cannot be combined with --corpus or --fresh")
        stored = Earlier(arguments.shared)
    elif arguments.corpus is not None:
        stored = knowledge = Knowledge(arguments.corpus)
        for repo in {trace.repo for trace in traces}:
            knowledge.corpus(repo)  # raises errors before the replay
    if arguments.tools is None:
        return stored
    if arguments.tokenizer is None:
        raise ValueError("--tools needs --tokenizer")
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(arguments.tokenizer)
    return Tools(json.loads(arguments.tools.read_text(encoding="utf-8")), tokenizer, stored)


def most_tokens(arguments: argparse.Namespace) -> int:
    """The most tokens of a draft, by ``--gamma-max`` or ``--tree``; also checks ``--gamma``."""
    from ngramspec.options import GAMMA_WORDS

    gamma = arguments.gamma
    most = check_int("--gamma-max", arguments.gamma_max, 1, MAX_GAMMA)
    if arguments.tree is not None:
        most = check_int("--tree", arguments.tree, 1, MAX_GAMMA)
    if isinstance(gamma, int):
        check_int("--gamma", gamma, 1, most)
    elif gamma not in GAMMA_WORDS:
        raise ValueError(f"--gamma must be an integer, {', '.join(GAMMA_WORDS)}: {gamma!r}")
    return most


def replay(
    arguments: argparse.Namespace,
    given: Given,
    contenders: Contenders,
    gamma_max: int,
    curve: str,
    cost: Float32,
) -> list[dict[str, Any]]:
    """Replay all traces through each drafter with one cost curve."""
    from ngramspec.measure.compare import compare
    from ngramspec.measure.replay import Plan

    results = []
    for name, (maker, gamma) in contenders.items():
        limit = gamma_max if isinstance(gamma, str) else min(gamma, gamma_max)
        plan = Plan(cost, gamma, limit, arguments.tree is not None)
        found = compare(
            maker,
            plan,
            given.traces,
            fresh=arguments.fresh,
            shuffle=arguments.shuffle,
            knowledge=given.knowledge,
        )
        results.append({"drafter": name, "curve": Path(curve).stem, **found})
    return results


def tables(results: Sequence[dict[str, Any]]) -> str:
    """For each curve: the means of every drafter, then tokens per cost by group."""
    parts = []
    for curve in dict.fromkeys(result["curve"] for result in results):
        same = [result for result in results if result["curve"] == curve]
        parts += [means_table(same, curve), groups_table(same)]
    return "\n\n".join(parts)


def means_table(results: Sequence[dict[str, Any]], curve: str) -> str:
    """A line for each drafter: its means over all groups."""
    lines = [
        f"{curve} curve: geometric means over groups; counts over all traces; times of a step",
        f"{'drafter':<30}{'tok/cost':>9}{'halves':>14}{'tok/call':>9}{'alpha':>7}{'acc/drft':>9}"
        f"{'drft/step':>10}{'median':>8}{'p99 µs':>8}",
    ]
    for result in results:
        mean, groups = result["mean"], result["groups"].values()
        first, second = (half["tokens_per_cost"] for half in result["halves"])
        calls = sum(group["calls"] for group in groups)
        verified = sum(each["verified"] for each in result["sources"].values())
        accepted = sum(each["accepted"] for each in result["sources"].values())
        drafted = sum(group["drafted_per_step"] * group["calls"] for group in groups)
        lines.append(
            f"{result['drafter']:<30}{mean['tokens_per_cost']:>9.3f}{first:>8.3f}{second:>6.3f}"
            f"{mean['tokens_per_call']:>9.3f}{accepted / max(verified, 1):>7.3f}"
            f"{accepted / max(drafted, 1):>9.3f}{drafted / calls:>10.2f}"
            f"{mean['step_us_median']:>8.2f}{mean['step_us_p99']:>8.1f}"
        )
    return "\n".join(lines)


def groups_table(results: Sequence[dict[str, Any]]) -> str:
    """A line for each drafter: its tokens per cost in every group."""
    names = [*results[0]["groups"]]
    width = max(len(name) for name in names) + 2
    lines = ["tokens per cost by group", f"{'':<30}" + "".join(f"{n:>{width}}" for n in names)]
    for result in results:
        values = (result["groups"][name]["tokens_per_cost"] for name in names)
        lines.append(f"{result['drafter']:<30}" + "".join(f"{v:>{width}.3f}" for v in values))
    return "\n".join(lines)
