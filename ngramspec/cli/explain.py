"""Explain a model's speed on this machine: measure the cost of wider forwards, acceptance by
position and by source, and whole greedy calls; predict the speed from these, and split the
difference to the paper's formula into its parts. --html writes a page with the coloured text and
every step."""

from __future__ import annotations

import argparse
from dataclasses import asdict

from ngramspec.cli.options import (
    CommandOptions,
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
from ngramspec.files import write_text

SUMMARY = "measure, predict and explain the speed on a model and prompts"


def add_arguments(options: CommandOptions) -> None:
    """Declare the options."""
    options.model("rich")
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
    from ngramspec.measure.explain import RUNG_HEADS, acceptance, explain, ladder, page, rung_rows
    from ngramspec.measure.tasks import check_prompts, prompts_of

    check_least(arguments, count=1, tokens=2, repeats=2)
    screen = console()
    speculator = make_speculator(arguments.drafter, arguments.gamma)
    loaded = load_model(arguments)
    with usable("--prompts"):
        prompts = prompts_of(loaded, arguments.prompts, chat=not arguments.raw)[: arguments.count]
        check_prompts(loaded, prompts, arguments.tokens)
    with usable("MODEL"), stages(screen) as on_stage:
        counts = {"new": arguments.tokens, "repeats": arguments.repeats}
        found = explain(loaded, prompts, speculator, on_stage=on_stage, **counts)
    if not found.prompts:
        raise UsageError("the model ends after one token on every prompt; give others")
    left, title = (RUNG_HEADS[0], RUNG_HEADS[3]), "speedup over baseline"
    screen.print(make_table(RUNG_HEADS, rung_rows(found), left=left, title=title))
    screen.print(found.text_says, found.noise_says)
    shares = acceptance(found)
    rows = [(name, f"{a / max(v, 1):.3f}", f"{v:,}") for name, (v, a) in shares.items()]
    heads = ("of", "accepted / verified", "verified")
    screen.print(make_table(heads, rows, left=("of",), title="acceptance"))
    derived = {
        **{"noise": found.noise, "plain_token_seconds": found.plain_token_seconds},
        "rungs": [asdict(rung) for rung in ladder(found)],
        "acceptance": {name: {"verified": v, "accepted": a} for name, (v, a) in shares.items()},
    }
    write_json(arguments, asdict(found) | derived)
    if arguments.html is not None:
        with writable("--html", arguments.html):
            write_text(arguments.html, page(found))
    return 0
