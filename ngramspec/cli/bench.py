"""Measure drafters on recorded outputs, by time and memory; and whole generations of a model."""

from __future__ import annotations

import argparse
import json
import os
import platform
import shlex
import sys
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ngramspec.cli import UsageError, bench_acceptance, bench_divergence, bench_e2e
from ngramspec.cli.arguments import check_least, usable
from ngramspec.cli.demo import DTYPES, parse_gamma

if TYPE_CHECKING:
    from ngramspec.drafters.base import Drafter

SUMMARY = "measure drafters and whole generations, and peers beside them"
INSTALL_PLOTS = "pip install 'ngramspec[plots]'"
INSTALL_PEERS = "pip install --no-deps arctic-inference==0.3.0"
PEERS_GAMMA = 64  # most tokens that a peer drafts, whatever --gamma-max says of ours
SIZES = (1_000, 10_000, 100_000, 1_000_000)
TWIN_MOST, LOOKUP_MOST = 10_000, 100_000  # tokens beyond which these take minutes
CONTINUATION = 8192  # tokens behind the context, for the steps


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the subcommands and their options."""
    commands = parser.add_subparsers(title="benchmarks", metavar="BENCHMARK", required=True)
    replay = commands.add_parser(
        "replay",
        help="play recorded outputs through drafters",
        description="Play recorded outputs through drafters: a draft token is accepted while the"
        " recording says the same. No model is run.",
    )
    replay.add_argument(
        "--traces",
        type=Path,
        required=True,
        metavar="FILE",
        help="JSON lines with group, id, prompt and output (token ids), as bench record writes",
    )
    replay.add_argument(
        "--drafter",
        action="append",
        metavar="SPEC",
        help='such as "copy+ngram"; may be given again (default: auto)',
    )
    replay.add_argument(
        "--policy", default="value", help="value or priority, see build_drafter (default: value)"
    )
    replay.add_argument(
        "--peers",
        action="store_true",
        help="other projects' drafters as well, those that are installed",
    )
    replay.add_argument(
        "--curve",
        action="append",
        metavar="CURVE",
        help="what a forward of n positions costs: cpu, gpu, or a JSON file with positions and"
        " cost; may be given again (default: cpu and gpu)",
    )
    replay.add_argument(
        "--gamma",
        type=parse_gamma,
        default="auto",
        metavar="N",
        help="tokens asked for: an integer, heuristic, or auto: by expected tokens per cost where"
        " the drafter estimates them (default: auto)",
    )
    replay.add_argument("--gamma-max", type=int, default=64, metavar="N", help="default: 64")
    replay.add_argument(
        "--tree",
        type=int,
        metavar="N",
        help="token trees of at most N nodes in place of chains (a peer's are its own choice)",
    )
    replay.add_argument(
        "--fresh", action="store_true", help="a new drafter for every trace: nothing carries over"
    )
    replay.add_argument("--shuffle", type=int, metavar="SEED", help="play in another order")
    replay.add_argument("--json", type=Path, metavar="OUT", help="write everything measured")
    replay.add_argument("--plots", type=Path, metavar="FOLDER", help="draw PNG files")
    replay.set_defaults(benchmark=run_replay)

    record = commands.add_parser(
        "record",
        help="record what a model says, for replay",
        description="Record what a model says after your prompts, greedily, for bench replay.",
    )
    record.add_argument(
        "--prompts",
        type=Path,
        required=True,
        metavar="FILE",
        help='JSON lines: texts, or {"prompt": ..., "group": ..., "id": ...}',
    )
    record.add_argument("--out", type=Path, required=True, metavar="FILE")
    record.add_argument(
        "--model", metavar="MODEL", help="folder or hub id (default: the embedded SmolLM2)"
    )
    record.add_argument("--dtype", choices=[*DTYPES][:3], default="bfloat16")
    record.add_argument("--max-new-tokens", type=int, default=256, metavar="N")
    record.add_argument(
        "--no-chat", action="store_true", help="the prompts are text to go on with, not messages"
    )
    record.set_defaults(benchmark=run_record)

    drafters = commands.add_parser(
        "drafters",
        help="time per operation and bytes per token, by context length",
        description="Time per operation and bytes per token on natural and adversarial texts.",
    )
    drafters.add_argument("--drafter", action="append", metavar="SPEC", help="default: auto")
    drafters.add_argument("--policy", default="value", help="value or priority (default: value)")
    drafters.add_argument("--peers", action="store_true", help="other projects' as well")
    drafters.add_argument("--twin", action="store_true", help="the pure-Python twin as well")
    drafters.add_argument(
        "--size",
        action="append",
        type=int,
        metavar="N",
        help="tokens of context; may be given again (default: 1k, 10k, 100k and 1M)",
    )
    drafters.add_argument(
        "--text", type=Path, metavar="FILE", help="natural text (default: Python's own library)"
    )
    drafters.add_argument("--gamma", type=int, default=10, metavar="N", help="default: 10")
    drafters.add_argument("--json", type=Path, metavar="OUT")
    drafters.add_argument("--plots", type=Path, metavar="FOLDER")
    drafters.set_defaults(benchmark=run_drafters)

    parity = commands.add_parser(
        "parity",
        help="compare every class of models with plain generate",
        description="Run tiny random models of every causal and sequence-to-sequence class of the"
        " installed transformers plainly and with half-right drafts, and compare the text.",
    )
    parity.add_argument("--json", type=Path, metavar="OUT")
    parity.add_argument(
        "--families-only", action="store_true", help="a few families, with caches and processors"
    )
    parity.set_defaults(benchmark=run_parity)
    bench_divergence.declare(commands)
    bench_acceptance.declare(commands)
    bench_e2e.add_arguments(commands)


def run(arguments: argparse.Namespace) -> int:
    """Run the subcommand that was given."""
    return int(arguments.benchmark(arguments))


def run_replay(arguments: argparse.Namespace) -> int:
    """Replay every drafter on every curve; print, write and draw what came out."""
    from ngramspec.bench.compare import compare
    from ngramspec.bench.costs import cost_curve
    from ngramspec.bench.replay import Plan
    from ngramspec.bench.traces import read_traces
    from ngramspec.cli.bench_view import replay_tables
    from ngramspec.errors import check_int

    need_plots(arguments.plots)
    specs = arguments.drafter or ["auto"]
    with usable():
        gamma_max = check_int("--gamma-max", arguments.gamma_max, 1, 4096)
        if arguments.tree is not None:
            gamma_max = check_int("--tree", arguments.tree, 1, 4096)
        if isinstance(arguments.gamma, str) and arguments.gamma not in ("auto", "heuristic"):
            raise ValueError(f"--gamma must be an integer, auto or heuristic: {arguments.gamma!r}")
        if isinstance(arguments.gamma, int):
            check_int("--gamma", arguments.gamma, 1, gamma_max)
        makers = {spec: partial(make, spec, arguments.policy) for spec in specs}
        for maker in makers.values():
            maker()
        traces = read_traces(arguments.traces)
        longest = max(gamma_max, PEERS_GAMMA) if arguments.peers else gamma_max
        curves = {name: cost_curve(name, longest) for name in arguments.curve or ("cpu", "gpu")}
    contenders: dict[str, tuple[Any, int | str]] = {
        name: (maker, arguments.gamma) for name, maker in makers.items()
    }
    skipped = add_peers(contenders) if arguments.peers else {}
    results = []
    for curve, cost in curves.items():
        for name, (maker, gamma) in contenders.items():
            most = gamma_max if name in makers else longest
            limit = most if gamma in ("auto", "heuristic") else int(gamma)
            tree = arguments.tree is not None
            plan = Plan(cost, gamma, min(limit, most), tree)
            order = arguments.shuffle
            found = compare(maker, plan, traces, fresh=arguments.fresh, shuffle=order)
            results.append({"drafter": name, "curve": Path(curve).stem, **found})
    print(replay_tables(results))
    for name, install in skipped.items():
        print(f"skipped: {name} is not installed ({install})")
    settings = {
        "traces": len(traces),
        "gamma_max": gamma_max,
        "tree": arguments.tree is not None,
        "fresh": arguments.fresh,
        "shuffle": arguments.shuffle,
    }
    write(arguments.json, {"settings": settings, "results": results, "skipped": skipped})
    if arguments.plots is not None:
        from ngramspec.bench.plots import plot_replay

        for path in plot_replay(results, arguments.plots):
            print(path)
    return 0


def run_record(arguments: argparse.Namespace) -> int:
    """Load the model and write a trace for each prompt."""
    from ngramspec import Speculator
    from ngramspec.bench.record import read_prompts, record
    from ngramspec.bench.traces import write_traces
    from ngramspec.cli.measure import Measurement
    from ngramspec.cli.models import load

    check_least(arguments, max_new_tokens=2)
    with usable("--prompts"):
        prompts = read_prompts(arguments.prompts)
    loaded = load(arguments.model, arguments.dtype, on_stage=lambda stage: None)
    measurement = Measurement(loaded, Speculator(), arguments.max_new_tokens)

    def encode(text: str) -> list[int]:
        return measurement.encode(text, chat=not arguments.no_chat)

    def generate(ids: list[int]) -> list[int]:
        print(".", end="", flush=True, file=sys.stderr)
        return measurement.speculate(ids)

    try:
        count = write_traces(arguments.out, record(prompts, encode, generate))
    except OSError as error:
        raise UsageError(f"--out: cannot write {arguments.out}: {error.strerror}") from error
    print(file=sys.stderr)
    print(f"{count} traces of {loaded.name} ({arguments.dtype}) in {arguments.out}")
    return 0


def run_drafters(arguments: argparse.Namespace) -> int:
    """Time drafters on texts of every size; print, write and draw what came out."""
    from dataclasses import asdict

    from ngramspec.bench.structures import sweep
    from ngramspec.bench.texts import TEXTS, natural
    from ngramspec.bench.twins import TwinDrafter
    from ngramspec.cli.bench_view import READINGS_HEADER, reading_line
    from ngramspec.errors import check_int

    need_plots(arguments.plots)
    sizes = sorted(arguments.size or SIZES)
    with usable():
        for size in sizes:
            check_int("--size", size, 1, 2**29)
        gamma = check_int("--gamma", arguments.gamma, 1, 4096)
        specs = arguments.drafter or ["auto"]
        drafters: dict[str, tuple[Drafter, int]] = {
            spec: (make(spec, arguments.policy), sizes[-1]) for spec in specs
        }
        longest = sizes[-1] + CONTINUATION
        texts = {name: text(longest) for name, text in TEXTS.items() if name != "natural"}
        texts = {"natural": natural(longest, arguments.text), **texts}
    if arguments.twin:
        drafters["twin (Python)"] = (TwinDrafter(), TWIN_MOST)
    contenders: dict[str, tuple[Any, int | str]] = {}
    skipped = add_peers(contenders) if arguments.peers else {}
    for name, (maker, _) in contenders.items():
        if "tree" not in name:
            drafters[name] = (maker(), LOOKUP_MOST if "lookup" in name else sizes[-1])
    print(READINGS_HEADER)
    readings = []
    for reading in sweep(drafters, texts, sizes, gamma):
        print(reading_line(reading), flush=True)
        readings.append(asdict(reading))
    for name, install in skipped.items():
        print(f"skipped: {name} is not installed ({install})")
    write(arguments.json, {"gamma": gamma, "readings": readings, "skipped": skipped})
    if arguments.plots is not None:
        from ngramspec.bench.plots import plot_structures

        print(plot_structures(readings, arguments.plots))
    return 0


def run_parity(arguments: argparse.Namespace) -> int:
    """Try every cell; print what is not identical, and a summary; 1 if a cell is wrong."""
    import warnings
    from dataclasses import asdict
    from itertools import chain

    from transformers.utils import logging

    from ngramspec.bench.parity import matrix, walk
    from ngramspec.cli.bench_view import parity_summary

    warnings.simplefilter("ignore")
    logging.set_verbosity_error()
    cells = []
    for cell in chain(matrix(), () if arguments.families_only else walk()):
        if cell.outcome != "identical":
            print(f"{cell.outcome:<10} {cell.model}, {cell.what}: {cell.detail}", flush=True)
        cells.append(cell)
    print(parity_summary(cells))
    write(arguments.json, {"cells": [asdict(cell) for cell in cells]})
    return int(any(cell.outcome == "wrong" for cell in cells))


def make(spec: str, policy: str) -> Drafter:
    """A drafter from its description."""
    from ngramspec.drafters import build_drafter

    return build_drafter(spec, policy=policy)


def add_peers(contenders: dict[str, tuple[Any, int | str]]) -> dict[str, str]:
    """Add the peers that are installed; how to install the others."""
    from ngramspec.bench.peers import PEERS, installed

    here, missing = installed()
    for name in here:
        _, maker, gamma = PEERS[name]
        contenders[name] = (maker, gamma)
    return missing


def need_plots(folder: Path | None) -> None:
    """Refuse ``--plots`` without matplotlib, before anything is measured."""
    if folder is not None and find_spec("matplotlib") is None:
        raise UsageError(f"--plots needs matplotlib; run: {INSTALL_PLOTS}")


def write(path: Path | None, fields: dict[str, Any]) -> None:
    """Write what was measured, with where it was measured, as JSON."""
    if path is None:
        return
    from ngramspec.draft_length.cost_file import processor

    packages = {}
    for name in ("ngramspec", "numpy", "torch", "transformers", "arctic-inference"):
        try:
            packages[name] = version(name)
        except PackageNotFoundError:
            continue
    where = {
        "command": shlex.join(["ngramspec", *sys.argv[1:]]),
        "machine": platform.machine(),
        "processor": f"{processor()}, {os.cpu_count()} cores",
        "python": platform.python_version(),
        "packages": packages,
    }
    try:
        path.write_text(json.dumps({**where, **fields}, indent=1) + "\n", encoding="utf-8")
    except OSError as error:
        raise UsageError(f"--json: cannot write {path}: {error.strerror}") from error
