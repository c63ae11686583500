"""Play recorded outputs through drafters: a draft token is accepted if the recording has it
there too. No model is run."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ngramspec.bench.wording import counted
from ngramspec.cli.options import add_count, add_drafters, add_gamma, add_outputs
from ngramspec.cli.output import print_paths, print_skipped, write_json
from ngramspec.cli.usage import need_plots, usable
from ngramspec.errors import check_int

if TYPE_CHECKING:
    from ngramspec.bench.knowledge import Known
    from ngramspec.bench.peers import Contenders
    from ngramspec.bench.traces import Trace
    from ngramspec.draft import Float32
    from ngramspec.drafters.base import Drafter

SUMMARY = "play recorded outputs through drafters"
PEERS_GAMMA = 64  # most tokens that a peer drafts; --gamma-max does not bound them
MOST_GAMMA = 4096


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument(
        "--traces",
        type=Path,
        required=True,
        metavar="FILE",
        help="JSON lines with group, id, prompt and output (token ids), as bench record writes",
    )
    add_drafters(parser)
    parser.add_argument(
        "--curve",
        action="append",
        metavar="CURVE",
        help="the cost of a forward of n positions: cpu, gpu, or a JSON file with positions and"
        " cost; may be repeated (default: cpu and gpu)",
    )
    add_gamma(
        parser,
        "tokens asked for: an integer, heuristic, threshold, or auto: by expected tokens per cost"
        " if the drafter estimates them (default: auto)",
    )
    add_count(parser, "--gamma-max", 64, "most tokens of a draft")
    parser.add_argument(
        "--tree",
        type=int,
        metavar="N",
        help="token trees of at most N nodes instead of chains (peers choose for themselves)",
    )
    parser.add_argument(
        "--fresh", action="store_true", help="a new drafter for every trace: nothing carries over"
    )
    parser.add_argument(
        "--corpus",
        type=Path,
        metavar="PLACE",
        help="what all drafters know beside each request: a corpus, or a folder with REPO.ngc or"
        " REPO.npy (token ids, a 0 behind each document) for each trace's repo",
    )
    parser.add_argument(
        "--shared",
        choices=("outputs", "all"),
        help="all drafters share a store of what the traces before said: outputs, or all: prompts"
        " too (peers: outputs)",
    )
    parser.add_argument(
        "--rows",
        type=int,
        metavar="N",
        help="play each group in a batch of N rows, which share a step's positions, and one trace"
        " after another",
    )
    add_count(
        parser,
        "--free",
        64,
        "with --rows, or --together without --curve: positions of a step that cost as much as one",
    )
    parser.add_argument(
        "--together",
        type=int,
        nargs="+",
        metavar="N",
        help="play each group in batches of N rows as generate does: rows begin together, and all"
        " are as wide as the longest draft; chains, and then trees",
    )
    parser.add_argument(
        "--new", type=int, metavar="N", help="with --together: most tokens of an output"
    )
    parser.add_argument("--shuffle", type=int, metavar="SEED", help="play in another order")
    add_outputs(parser, plots=True)


def run(arguments: argparse.Namespace) -> int:
    """Replay every drafter on every curve; print, write and draw the results."""
    from ngramspec.bench.costs import cost_curve
    from ngramspec.bench.peers import installed
    from ngramspec.bench.traces import read_traces
    from ngramspec.drafters import build_drafter

    need_plots(arguments.plots)
    specs = arguments.drafter or ["auto"]
    with usable():
        gamma_max = most_tokens(arguments)
        makers = {spec: partial(build_drafter, spec, policy=arguments.policy) for spec in specs}
        for maker in makers.values():
            maker()
        traces = read_traces(arguments.traces)
        knowledge = known(arguments, traces)
        longest = max(gamma_max, PEERS_GAMMA) if arguments.peers else gamma_max
        curves = {name: cost_curve(name, longest) for name in arguments.curve or ("cpu", "gpu")}
    if arguments.together is not None:
        return run_together(arguments, makers, gamma_max, traces)
    if arguments.rows is not None:
        return run_rows(arguments, makers, gamma_max, traces)
    peers, skipped = installed() if arguments.peers else ({}, {})
    results = []
    for curve, cost in curves.items():
        contenders: Contenders = {name: (maker, arguments.gamma) for name, maker in makers.items()}
        results += replay(arguments, contenders, gamma_max, curve, cost, traces, knowledge)
        results += replay(arguments, peers, longest, curve, cost, traces, knowledge)
    print(tables(results))
    print_skipped(skipped)
    settings = {
        "traces": len(traces),
        "gamma_max": gamma_max,
        "tree": arguments.tree is not None,
        "fresh": arguments.fresh,
        "shuffle": arguments.shuffle,
        "shared": arguments.shared,
        "corpus": None if arguments.corpus is None else arguments.corpus.name,
    }
    write_json(arguments.json, {"settings": settings, "results": results, "skipped": skipped})
    if arguments.plots is not None:
        from ngramspec.bench.plots import plot_replay

        print_paths(plot_replay(results, arguments.plots))
    return 0


def known(arguments: argparse.Namespace, traces: Sequence[Trace]) -> Known | None:
    """What drafters know beside each request, by ``--corpus`` or ``--shared``.

    Raises:
        OSError, ValueError: a corpus cannot be used, or the options exclude each other.
    """
    from ngramspec.bench.knowledge import Earlier, Knowledge

    if arguments.shared is not None:
        if arguments.corpus is not None or arguments.fresh:
            raise ValueError("--shared cannot be combined with --corpus or --fresh")
        return Earlier(arguments.shared)
    if arguments.corpus is None:
        return None
    knowledge = Knowledge(arguments.corpus)
    for repo in {trace.repo for trace in traces}:
        knowledge.corpus(repo)
    return knowledge


def run_rows(
    arguments: argparse.Namespace,
    makers: Mapping[str, Callable[[], Drafter]],
    gamma_max: int,
    traces: Sequence[Trace],
) -> int:
    """Replay every drafter in batches; print and write the results."""
    from ngramspec.bench.replay_rows import BatchPlan, compare_rows

    with usable():
        rows = check_int("--rows", arguments.rows, 1)
        plan = BatchPlan(rows, gamma_max, check_int("--free", arguments.free, rows))
    results = {name: compare_rows(make, plan, traces) for name, make in makers.items()}
    for name, groups in results.items():
        batch_name = f"{counted(rows, 'row')} with {counted(plan.free, 'position')}"
        print(f"{name}, tokens per call: one row, {batch_name}, share")
        for group, found in groups.items():
            single, batch = (found[way]["tokens_per_call"] for way in ("single", "rows"))
            print(f"{group:<20}{single:>8.3f}{batch:>8.3f}{found['share']:>8.3f}")
    settings = {"traces": len(traces), "gamma_max": gamma_max, "rows": rows, "free": plan.free}
    write_json(arguments.json, {"settings": settings, "results": results})
    return 0


def run_together(
    arguments: argparse.Namespace,
    makers: Mapping[str, Callable[[], Drafter]],
    gamma_max: int,
    traces: Sequence[Trace],
) -> int:
    """Replay every drafter in batches of ``generate``; print and write the results."""
    from ngramspec.bench.costs import cost_curve
    from ngramspec.bench.replay_batch import (
        MEASURES,
        GeneratePlan,
        compare_trees,
        flat,
        measured,
    )

    with usable():
        sizes = [check_int("--together", each, 1) for each in arguments.together]
        new = None if arguments.new is None else check_int("--new", arguments.new, 2)
        free = check_int("--free", arguments.free, 1)
        longest = max(sizes) * (gamma_max + 1)
        named = {each: cost_curve(each, longest) for each in arguments.curve or ()}
        curves = {Path(each).stem: measured(curve) for each, curve in named.items()}
        curves = curves or {f"flat to {free}": flat(free)}
    results = []
    for (name, make), (curve, cost), rows in product(makers.items(), curves.items(), sizes):
        groups = compare_trees(make, GeneratePlan(rows, cost, gamma_max, new=new), traces)
        results.append({"drafter": name, "curve": curve, "rows": rows, "groups": groups})
        print(f"{name}, {counted(rows, 'row')}, {curve}:", end=" ")
        print("tokens per call, speed to plain; chains, trees")
        for group, ways in groups.items():
            found = [ways[way][each] for each in MEASURES for way in ("chains", "trees")]
            print(f"{group:<20}" + "".join(f"{each:>8.3f}" for each in found))
    settings = {"traces": len(traces), "gamma_max": gamma_max, "new": new, "free": free}
    write_json(arguments.json, {"settings": settings, "results": results})
    return 0


def most_tokens(arguments: argparse.Namespace) -> int:
    """The most tokens of a draft, by ``--gamma-max`` or ``--tree``; also checks ``--gamma``.

    Raises:
        TypeError, ValueError: one of the three cannot be used.
    """
    from ngramspec.draft_length.schedule import NAMED

    gamma = arguments.gamma
    most = check_int("--gamma-max", arguments.gamma_max, 1, MOST_GAMMA)
    if arguments.tree is not None:
        most = check_int("--tree", arguments.tree, 1, MOST_GAMMA)
    if isinstance(gamma, int):
        check_int("--gamma", gamma, 1, most)
    elif gamma not in NAMED:
        raise ValueError(f"--gamma must be an integer, {', '.join(NAMED)}: {gamma!r}")
    return most


def replay(
    arguments: argparse.Namespace,
    contenders: Contenders,
    gamma_max: int,
    curve: str,
    cost: Float32,
    traces: Sequence[Trace],
    knowledge: Known | None = None,
) -> list[dict[str, Any]]:
    """Replay all traces through each drafter with one cost curve."""
    from ngramspec.bench.compare import compare
    from ngramspec.bench.replay import Plan

    results = []
    for name, (maker, gamma) in contenders.items():
        limit = gamma_max if isinstance(gamma, str) else min(gamma, gamma_max)
        plan = Plan(cost, gamma, limit, arguments.tree is not None)
        found = compare(
            maker,
            plan,
            traces,
            fresh=arguments.fresh,
            shuffle=arguments.shuffle,
            knowledge=knowledge,
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
        tiers = result["tiers"].values()
        tested, accepted = (sum(tier[key] for tier in tiers) for key in ("tested", "accepted"))
        drafted = sum(group["drafted_per_step"] * group["calls"] for group in groups)
        lines.append(
            f"{result['drafter']:<30}{mean['tokens_per_cost']:>9.3f}{first:>8.3f}{second:>6.3f}"
            f"{mean['tokens_per_call']:>9.3f}{accepted / max(tested, 1):>7.3f}"
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
