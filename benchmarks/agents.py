"""Replay of agent sessions: chains and trees, with and without a store of earlier outputs.

    python -m benchmarks agents --json agents.json            # the public traces
    python -m benchmarks agents --traces FILE

A turn's prompt is its whole history, and turns are replayed in the order of the file. Only traces
with a ``session`` are used. With the store, outputs of earlier turns of all sessions are known.
``--peers`` adds Arctic's suffix decoding, which keeps the same outputs.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Sequence
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import agent_sessions
from benchmarks.harness import add_traces, show, write
from benchmarks.peers import ARCTIC, PEERS, Contenders, add_peers, installed, print_skipped
from benchmarks.traces import PUBLIC
from ngramspec.cli.options import CommandOptions, usable
from ngramspec.drafters import build_drafter
from ngramspec.drafters.base import Drafter
from ngramspec.drafters.tool_calls import ToolCalls
from ngramspec.errors import check_int
from ngramspec.measure.replay import Earlier, Known, Player, ReplayPlan, Tally, cost_curve
from ngramspec.measure.traces import Trace, by_group, read_traces

OURS = "ngramspec"
STORE, PROMPTS, TOOLS, ALONE = "store", "store with prompts", "store and tools", "no store"
CURVES = ("cpu", "gpu")
ARCTIC_TREE = "arctic tree"  # these draft no chains
TRACES_HELP = "JSON lines with group, id, session, prompt and output (default: the public traces)"


def add_arguments(options: CommandOptions) -> None:
    add_traces(options, TRACES_HELP, PUBLIC)
    options.count("--tree", 64, "most tokens of a chain, and nodes of a tree")
    add_peers(options)
    options.json()


def run(arguments: argparse.Namespace) -> int:
    with usable():
        traces = turns(arguments.traces)
        predicted = None
        if arguments.traces == PUBLIC:
            predicted = agent_sessions.tools(), tokenizer(None)
        longest = check_int("--tree", arguments.tree, 1)
    peers, skipped = arctic() if arguments.peers else ({}, {})
    rows = []
    for trees, curve in product((False, True), CURVES):
        cost = cost_curve(curve, longest)
        contenders = list(ours(predicted))
        for name, (make, gamma) in peers.items():
            if trees or not name.startswith(ARCTIC_TREE):
                contenders.append((name, STORE, make, Earlier("outputs"), gamma))
        for drafter, known, make, knowledge, gamma in contenders:
            most = gamma if isinstance(gamma, str) else min(gamma, longest)
            plan = ReplayPlan(cost, most, longest, trees)
            groups = Player(make(), plan, knowledge=knowledge).play(traces).groups
            row = {"drafter": drafter, "known": known, "curve": curve, "trees": trees}
            rows.append(row | summary(groups))
            show(**rows[-1])
    counts = {name: len(found) for name, found in by_group(traces).items()}
    write(arguments, {"turns": counts, "rows": rows, "skipped": skipped})
    print_skipped(skipped)
    return 0


def turns(path: Path) -> list[Trace]:
    """The turns of sessions in a file; a ValueError if there are none."""
    found = [trace for trace in read_traces(path) if trace.session]
    if not found:
        raise ValueError(f"{path} has no trace with a session")
    return found


def tokenizer(folder: str | None) -> Any:
    """A folder's tokenizer, or the embedded model's."""
    from ngramspec.measure.models import load_tokenizer, locate

    with usable("--tokenizer"):
        return load_tokenizer(locate(folder))


def arctic() -> tuple[Contenders, dict[str, str]]:
    """Arctic's drafters by name if they are installed; else how to install each."""
    here, missing = installed()
    names = PEERS[ARCTIC]
    return (
        {name: here[name] for name in names if name in here},
        {name: missing[name] for name in names if name in missing},
    )


# Name, knowledge by name, what makes the drafter, its knowledge, the gamma that it is asked for.
Contender = tuple[str, str, Callable[[], Drafter], Known | None, int | str]


def ours(predicted: tuple[Sequence[Any], Any] | None) -> Iterator[Contender]:
    """The default drafter with each kind of knowledge; ``predicted``: tools and tokenizer."""

    def make() -> Drafter:
        return build_drafter("auto")

    yield OURS, ALONE, make, None, "auto"
    yield OURS, STORE, make, Earlier("outputs"), "auto"
    yield OURS, PROMPTS, make, Earlier("all"), "auto"
    if predicted is not None:
        yield OURS, TOOLS, make, Earlier("outputs", ToolCalls(*predicted)), "auto"


def summary(groups: dict[str, Tally]) -> dict[str, Any]:
    """Tokens per cost and per call by group, and the median time of a step in microseconds."""
    steps = np.concatenate([tally.nanoseconds for tally in groups.values()])
    named = {name: tally.to_dict() for name, tally in groups.items()}
    return {
        **{
            ratio: {name: each[ratio] for name, each in named.items()}
            for ratio in ("tokens_per_cost", "tokens_per_call")
        },
        "step_us_median": float(np.median(steps)) / 1000,
    }
