"""``ngramspec replay`` with the drafters of other projects, and in batches.

Without ``--rows`` and ``--together`` it is the replay of ``ngramspec replay``, one request after
another. ``--peers`` adds Arctic's suffix decoding and transformers' prompt lookup.
"""

from __future__ import annotations

import argparse
from itertools import product
from pathlib import Path

from benchmarks.peers import add_peers, installed, print_skipped
from benchmarks.replay_batch import MEASURES, GeneratePlan, compare_trees, flat, measured
from benchmarks.replay_rows import BatchPlan, compare_rows
from ngramspec.cli import replay
from ngramspec.cli.options import Options, usable
from ngramspec.cli.output import write_json
from ngramspec.errors import check_int
from ngramspec.measure.replay import cost_curve

PEERS_GAMMA = 64  # most tokens that a peer drafts; --gamma-max does not bound them


def add_arguments(options: Options) -> None:
    """Declare the options of ``ngramspec replay`` and those for batches and peers."""
    replay.add_arguments(options)
    add_peers(options)
    options.add(
        "--rows",
        type=int,
        metavar="N",
        help="play each group in a batch of N rows, which share a step's positions, and one trace"
        " after another",
    )
    options.count(
        "--free",
        64,
        "with --rows, or --together without --curve: positions of a step that cost as much as one",
    )
    options.add(
        "--together",
        type=int,
        nargs="+",
        metavar="N",
        help="play each group in batches of N rows as generate does: rows begin together, and all"
        " are as wide as the longest draft; chains, and then trees",
    )
    options.add("--new", type=int, metavar="N", help="with --together: most tokens of an output")


def run(arguments: argparse.Namespace) -> int:
    """Replay; print, write and draw the results."""
    given = replay.read(arguments)
    if arguments.together is not None:
        return run_together(arguments, given)
    if arguments.rows is not None:
        return run_rows(arguments, given)
    peers, skipped = installed() if arguments.peers else ({}, {})
    longest = max(given.gamma_max, PEERS_GAMMA) if peers else given.gamma_max
    own = {name: (maker, arguments.gamma) for name, maker in given.makers.items()}
    results = []
    for curve, cost in replay.curves(arguments, longest).items():
        results += replay.replay(arguments, given, own, given.gamma_max, curve, cost)
        results += replay.replay(arguments, given, peers, longest, curve, cost)
    replay.report(arguments, given, results, skipped)
    print_skipped(skipped)
    return 0


def run_rows(
    arguments: argparse.Namespace,
    given: replay.Given,
) -> int:
    """Replay every drafter in batches; print and write the results."""
    with usable():
        rows = check_int("--rows", arguments.rows, 1)
        plan = BatchPlan(rows, given.gamma_max, check_int("--free", arguments.free, rows))
    results = {name: compare_rows(make, plan, given.traces) for name, make in given.makers.items()}
    for name, groups in results.items():
        print(f"{name}, tokens per call: one row, {rows} rows with {plan.free} positions, share")
        for group, found in groups.items():
            single, batch = (found[way]["tokens_per_call"] for way in ("single", "rows"))
            print(f"{group:<20}{single:>8.3f}{batch:>8.3f}{found['share']:>8.3f}")
    settings = {
        "traces": len(given.traces),
        "gamma_max": given.gamma_max,
        "rows": rows,
        "free": plan.free,
    }
    write_json(arguments, {"settings": settings, "results": results})
    return 0


def run_together(
    arguments: argparse.Namespace,
    given: replay.Given,
) -> int:
    """Replay every drafter in batches of ``generate``; print and write the results."""
    with usable():
        sizes = [check_int("--together", each, 1) for each in arguments.together]
        new = None if arguments.new is None else check_int("--new", arguments.new, 2)
        free = check_int("--free", arguments.free, 1)
        longest = max(sizes) * (given.gamma_max + 1)
        named = {each: cost_curve(each, longest) for each in arguments.curve or ()}
        curves = {Path(each).stem: measured(curve) for each, curve in named.items()}
        curves = curves or {f"flat to {free}": flat(free)}
    results = []
    for (name, make), (curve, cost), rows in product(given.makers.items(), curves.items(), sizes):
        groups = compare_trees(
            make, GeneratePlan(rows, cost, given.gamma_max, new=new), given.traces
        )
        results.append({"drafter": name, "curve": curve, "rows": rows, "groups": groups})
        print(f"{name}, {rows} rows, {curve}: tokens per call, speedup; chains, trees")
        for group, ways in groups.items():
            found = [ways[way][each] for each in MEASURES for way in ("chains", "trees")]
            print(f"{group:<20}" + "".join(f"{each:>8.3f}" for each in found))
    settings = {"traces": len(given.traces), "gamma_max": given.gamma_max, "new": new, "free": free}
    write_json(arguments, {"settings": settings, "results": results})
    return 0
