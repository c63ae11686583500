"""Draw Figures 1 to 5 of Leviathan et al. 2023 as PNG and SVG. Figures 2 to 4 follow from the
closed forms. Figure 1, a coloured text, needs a run that 'ngramspec explain --json FILE' measured;
Figure 5, a trace, is drawn of such a run, or simulated."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from ngramspec.cli.options import add_path
from ngramspec.cli.output import print_paths
from ngramspec.cli.usage import UsageError, need, usable, writable

SUMMARY = "draw Figures 1 to 5 of Leviathan et al. 2023"
FIGURES, OF_RUNS = (1, 2, 3, 4, 5), (1, 5)
NEEDED = ("steps", "plain_token_seconds")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument(
        "figures",
        nargs="*",
        type=int,
        metavar="N",
        help="1 to 5 (default: all; Figure 1 only with --run)",
    )
    add_path(
        parser, "--run", "FILE", "what 'ngramspec explain --json FILE' wrote", dest="from_file"
    )
    add_path(
        parser,
        "--plots",
        "FOLDER",
        "where the files go (default: figures)",
        default=Path("figures"),
    )


def run(arguments: argparse.Namespace) -> int:
    """Draw the figures; a UsageError if there is none of a given number, or the run is invalid."""
    need("matplotlib", "the figures need")
    for number in arguments.figures:
        if number not in FIGURES:
            raise UsageError(f"figures must be in 1..5, got {number}")
    source = None if arguments.from_file is None else read_run(arguments.from_file)
    wanted = arguments.figures or [each for each in FIGURES if each != 1 or source]
    if 1 in wanted and source is None:
        raise UsageError("Figure 1 needs --run FILE; 'ngramspec explain --json FILE' writes it")
    from ngramspec.measure import figures

    for number in wanted:
        draw = getattr(figures, f"figure_{number}")
        run = (source,) if number in OF_RUNS else ()
        with writable("--plots", arguments.plots):
            written = draw(arguments.plots, *run)
        print_paths(written)
    return 0


def read_run(path: Path) -> dict[str, Any]:
    """Read a file of ``ngramspec explain --json``; a UsageError if it is not one."""
    with usable("--run"):
        found = dict(json.loads(path.read_text(encoding="utf-8")))
        for name in NEEDED:
            if name not in found:
                raise ValueError(f"{path} has no {name!r}")
    return found
