"""Explain a model's speed on this machine: measure the cost of wider forwards, acceptance by
position and by source, and whole greedy calls; predict the speed from these, and split the
difference to the paper's formula into its parts. --html writes a page with the coloured text and
every step."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from ngramspec.cli.options import (
    Options,
    UsageError,
    check_least,
    console,
    load_model,
    make_speculator,
    make_table,
    stages,
    usable,
    writable,
    write_json,
)

if TYPE_CHECKING:
    from rich.table import Table

    from ngramspec.measure.explain import Run
    from ngramspec.measure.models import LoadedModel

SUMMARY = "measure, predict and explain the speed on a model and prompts"
MEASURED = (  # of a Run, under these names in the JSON file
    *("model", "settings", "context", "noise", "steps", "plain_rounds", "speculative_rounds"),
    *("plain_seconds", "speculative_seconds", "plain_first_seconds", "plain_token_seconds"),
)


def add_arguments(options: Options) -> None:
    """Declare the options."""
    options.model_argument()
    options.drafter()
    options.gamma()
    help = "JSON lines as 'ngramspec record' reads them (default: the demo's texts)"
    options.path("--prompts", "FILE", help)
    options.flag("--raw", "do not use the model's chat template")
    options.count("--count", 8, "maximum number of prompts")
    options.count("--tokens", 128, "new tokens for each prompt")
    options.count("--repeats", 3, "timed rounds")
    options.path("--html", "OUT", "write a self-contained page")
    options.json()


def run(arguments: argparse.Namespace) -> int:
    """Measure; print tables; write the page and the JSON file."""
    from dataclasses import asdict

    from ngramspec.measure.explain import by_depth, by_source, explain, ladder

    check_least(arguments, count=1, tokens=2, repeats=1)
    screen = console()
    speculator = make_speculator(arguments.drafter, arguments.gamma)
    loaded = load_model(arguments, option="MODEL")
    prompts = encoded_prompts(arguments, loaded)
    with stages(screen) as on_stage:
        counts = {"new": arguments.tokens, "repeats": arguments.repeats}
        found = explain(loaded, prompts, speculator, on_stage=on_stage, **counts)
    if not found.prompts:
        raise UsageError("the model ends after one token on every prompt; give others")
    for shown in results(found):
        screen.print(shown)
    fields = {
        **{name: getattr(found, name) for name in MEASURED},
        "forward_seconds": found.seconds,
        "same_text": found.same,
        "rungs": [asdict(rung) for rung in ladder(found)],
        "by_depth": {depth: asdict(share) for depth, share in by_depth(found.steps).items()},
        "by_source": {source: asdict(share) for source, share in by_source(found).items()},
    }
    write_json(arguments, fields)
    if arguments.html is not None:
        from ngramspec.measure.explain import page

        with writable("--html", arguments.html):
            arguments.html.write_text(page(found), encoding="utf-8")
    return 0


def encoded_prompts(
    arguments: argparse.Namespace, loaded: LoadedModel
) -> list[tuple[str, Sequence[int]]]:
    """(name, token ids) of the prompts; a UsageError if the file or a prompt cannot be used."""
    from ngramspec.measure.tasks import sample_prompts
    from ngramspec.measure.traces import read_prompts

    with usable("--prompts"):
        if arguments.prompts is None:
            return [(each.task, each.ids) for each in sample_prompts(loaded)[: arguments.count]]
        return [
            (f"{each.group}, {each.id}", loaded.encode(each.text, chat=not arguments.raw))
            for each in read_prompts(arguments.prompts)[: arguments.count]
        ]


def results(run: Run) -> Iterator[Table | str]:
    """What is printed: tables of the predictions and of acceptance."""
    from ngramspec.measure.explain import by_depth, by_source, ladder, rung_rows

    names: Sequence[str] = ("takes into account", "speed", "change", "from")
    rows: list[Sequence[str]] = [*rung_rows(ladder(run))]
    yield make_table(names, rows, left=(names[0], names[3]), title="speedup over baseline")
    yield run.noise_says
    depths = list(by_depth(run.steps).items())[:8]
    shares = by_source(run) | {f"position {depth + 1}": share for depth, share in depths}
    names = ("of", "accepted / verified", "verified")
    rows = [(name, f"{each.rate:.3f}", f"{each.verified:,}") for name, each in shares.items()]
    yield make_table(names, rows, left=("of",), title="acceptance")
