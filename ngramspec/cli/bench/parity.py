"""Run tiny random models of every causal and sequence-to-sequence class of the installed
transformers plainly and with half-right drafts, and compare the text."""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ngramspec.cli.options import add_outputs
from ngramspec.cli.output import write_json

if TYPE_CHECKING:
    from ngramspec.bench.parity import Cell

SUMMARY = "compare every class of models with plain generate"
OUTCOMES = ("identical", "refused", "wrong", "not run")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument(
        "--families-only", action="store_true", help="a few families, with caches and processors"
    )
    add_outputs(parser)


def run(arguments: argparse.Namespace) -> int:
    """Try every cell; print those that are not identical, and a summary; 1 if a cell is wrong."""
    import warnings
    from dataclasses import asdict
    from itertools import chain

    from transformers.utils import logging

    from ngramspec.bench.parity import matrix, walk

    warnings.simplefilter("ignore")
    logging.set_verbosity_error()
    cells = []
    for cell in chain(matrix(), () if arguments.families_only else walk()):
        if cell.outcome != "identical":
            print(f"{cell.outcome:<10} {cell.model}, {cell.what}: {cell.detail}", flush=True)
        cells.append(cell)
    print(summary(cells))
    write_json(arguments.json, {"cells": [asdict(cell) for cell in cells]})
    return int(any(cell.outcome == "wrong" for cell in cells))


def summary(cells: Sequence[Cell]) -> str:
    """How many cells had each outcome, by what was varied."""
    kinds: dict[str, Counter[str]] = {}
    for cell in cells:
        kinds.setdefault(cell.what.rpartition(", ")[0] or cell.what, Counter())[cell.outcome] += 1
    kinds["all"] = Counter(cell.outcome for cell in cells)
    lines = [f"{'':<36}" + "".join(f"{outcome:>11}" for outcome in OUTCOMES)]
    for kind, found in kinds.items():
        lines.append(f"{kind:<36}" + "".join(f"{found[outcome]:>11}" for outcome in OUTCOMES))
    return "\n".join(lines)
