"""``ngramspec replay`` with the drafters of other projects.

``--peers`` adds Arctic's suffix decoding and transformers' prompt lookup.
"""

from __future__ import annotations

import argparse

from benchmarks.peers import add_peers, installed, print_skipped
from ngramspec.cli import replay
from ngramspec.cli.options import CommandOptions


def add_arguments(options: CommandOptions) -> None:
    replay.add_arguments(options)
    add_peers(options)


def run(arguments: argparse.Namespace) -> int:
    peers, skipped = installed() if arguments.peers else ({}, {})
    code = replay.run(arguments, peers, skipped)
    print_skipped(skipped)
    return code
