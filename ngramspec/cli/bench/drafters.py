"""Time per operation and bytes per token on natural and adversarial texts."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from ngramspec.cli.options import add_count, add_drafters, add_outputs
from ngramspec.cli.output import print_paths, print_skipped, write_json
from ngramspec.cli.usage import need_plots, usable
from ngramspec.errors import check_int

if TYPE_CHECKING:
    from ngramspec.bench.structures import Reading
    from ngramspec.draft import Int32
    from ngramspec.drafters.base import Drafter

SUMMARY = "time per operation and bytes per token, by context length"
SIZES = (1_000, 10_000, 100_000, 1_000_000)
TWIN_MOST, LOOKUP_MOST = 10_000, 100_000  # tokens: longer contexts would take minutes
CONTINUATION = 8192  # tokens after the context, for the steps
HEADER = (
    f"{'drafter':<30}{'text':<12}{'tokens':>9}{'start':>9}{'propose':>9}{'step':>9}"
    f"{'p99':>9}{'worst':>9}{'bytes':>8}{'drafted':>9}\n"
    f"{'':<30}{'':<12}{'':>9}{'µs/token':>9}{'µs':>9}{'µs':>9}{'µs':>9}{'µs':>9}"
    f"{'/token':>8}{'/step':>9}"
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    add_drafters(parser)
    parser.add_argument(
        "--twin", action="store_true", help="also the reference implementation in Python"
    )
    parser.add_argument(
        "--size",
        action="append",
        type=int,
        metavar="N",
        help="tokens of context; may be repeated (default: 1k, 10k, 100k and 1M)",
    )
    parser.add_argument(
        "--text", type=Path, metavar="FILE", help="natural text (default: Python's own library)"
    )
    add_count(parser, "--gamma", 10, "tokens drafted in a step")
    add_outputs(parser, plots=True)


def run(arguments: argparse.Namespace) -> int:
    """Time drafters on texts of every size; print, write and draw the results."""
    from dataclasses import asdict

    from ngramspec.bench.structures import sweep

    need_plots(arguments.plots)
    sizes = sorted(arguments.size or SIZES)
    with usable():
        for size in sizes:
            check_int("--size", size, 1, 2**29)
        gamma = check_int("--gamma", arguments.gamma, 1, 4096)
        drafters, skipped = contenders(arguments, sizes[-1])
        texts = read_texts(sizes[-1] + CONTINUATION, arguments.text)
    print(HEADER)
    readings = []
    for reading in sweep(drafters, texts, sizes, gamma):
        print(line(reading), flush=True)
        readings.append(asdict(reading))
    print_skipped(skipped)
    write_json(arguments.json, {"gamma": gamma, "readings": readings, "skipped": skipped})
    if arguments.plots is not None:
        from ngramspec.bench.plots import plot_structures

        print_paths(plot_structures(readings, arguments.plots))
    return 0


def contenders(
    arguments: argparse.Namespace, longest: int
) -> tuple[dict[str, tuple[Drafter, int]], dict[str, str]]:
    """The drafters, each with its longest context; and the peers that are not installed.

    Raises:
        TypeError, ValueError: ``--drafter`` or ``--policy`` cannot be used.
    """
    from ngramspec.bench.peers import installed
    from ngramspec.bench.twins import TwinDrafter
    from ngramspec.drafters import build_drafter

    found: dict[str, tuple[Drafter, int]] = {
        spec: (build_drafter(spec, policy=arguments.policy), longest)
        for spec in arguments.drafter or ["auto"]
    }
    if arguments.twin:
        found["twin (Python)"] = (TwinDrafter(), TWIN_MOST)
    peers, skipped = installed() if arguments.peers else ({}, {})
    for name, (maker, _) in peers.items():
        if "tree" not in name:
            found[name] = (maker(), LOOKUP_MOST if "lookup" in name else longest)
    return found, skipped


def read_texts(length: int, path: Path | None) -> dict[str, Int32]:
    """The texts by name, natural first, int32 (length,).

    Raises:
        OSError, ValueError: the natural text cannot be read, or is too short.
    """
    from ngramspec.bench.texts import TEXTS, natural

    texts = {"natural": natural(length, path)}
    return texts | {name: text(length) for name, text in TEXTS.items() if name != "natural"}


def line(reading: Reading) -> str:
    """One line under HEADER."""
    r = reading
    size = "-" if r.bytes_per_token is None else f"{r.bytes_per_token:.0f}"
    return (
        f"{r.drafter:<30}{r.text:<12}{r.tokens:>9}{r.start_us:>9.3f}{r.propose_us:>9.2f}"
        f"{r.step_us:>9.2f}{r.p99_us:>9.1f}{r.worst_us:>9.0f}{size:>8}"
        f"{r.drafted:>9.2f}"
    )
