"""Measure drafters on recorded outputs, by time and memory; and whole generations of a model."""

from __future__ import annotations

import argparse

from ngramspec.cli.subcommands import add_subcommands

SUMMARY = "measure drafters and whole generations, and compare with peers"
# A new benchmark is a module here and its name in this list; see add_subcommands.
BENCHMARKS = (
    "replay",
    "record",
    "drafters",
    "parity",
    "divergence",
    "e2e",
    "lengths",
    "profile",
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the benchmarks."""
    commands = parser.add_subparsers(title="benchmarks", metavar="BENCHMARK", required=True)
    add_subcommands(commands, __name__, BENCHMARKS)
