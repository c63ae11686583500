"""Measure what a forward of n positions costs here, and save it for Speculator(costs=FILE)."""

from __future__ import annotations

import argparse
import sys

from ngramspec.cli.options import (
    CommandOptions,
    check_least,
    console,
    load_model,
    make_table,
    writable,
)

SUMMARY = "measure what wider forwards cost on this machine"
WIDTHS = (1, 2, 3, 4, 5, 6, 7, 8, 9, 11, 12, 13, 16, 17, 20, 24, 32, 33, 48, 64, 65)


def add_arguments(options: CommandOptions) -> None:
    """Declare the options."""
    options.model("rich")
    options.numbers("--contexts", [400, 900], "positions in the cache")
    options.count("--repeats", 9, "timed forwards of each width")
    options.path("--json", "OUT", "save the costs")


def run(arguments: argparse.Namespace) -> int:
    """Measure, print a table, and save the costs."""
    check_least(arguments, contexts=1, repeats=1)
    screen = console()
    from ngramspec.costs.saved import SavedCosts, described
    from ngramspec.hf_model.compat.devices import device_of
    from ngramspec.hf_model.compat.models import attention_of
    from ngramspec.measure.forwards import forward_seconds

    loaded = load_model(arguments)
    model = loaded.model
    print(f"timing {loaded.name} in {arguments.dtype}", file=sys.stderr)
    seconds = {
        context: forward_seconds(model, context, WIDTHS, arguments.repeats)
        for context in arguments.contexts
    }
    names = ("positions", *(f"context\n{context}" for context in seconds))
    rows = [(str(n), *(f"{each[n] / each[1]:.2f}" for each in seconds.values())) for n in WIDTHS]
    rows.append(("ms for 1", *(f"{1000 * each[1]:.1f}" for each in seconds.values())))
    title = "cost of a forward, in forwards of one position"
    screen.print(make_table(names, rows, left=(), title=title))
    if arguments.json is not None:
        with writable("--json", arguments.json):
            depends = described(model, attention_of(model), device_of(model))
            SavedCosts(depends, seconds).write(arguments.json)
        screen.print(f"saved; use Speculator(costs={str(arguments.json)!r})")
    return 0
