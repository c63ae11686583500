"""Explain a model's speed on this machine: measure the cost of wider forwards, acceptance by
position and by source, and whole greedy calls; predict the speed from these, and split the
difference to the paper's formula into its parts; say what would help most. --html writes a page
with the coloured text and every step."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from ngramspec.cli.options import (
    add_count,
    add_drafter,
    add_flag,
    add_gamma,
    add_model_argument,
    add_outputs,
    add_path,
    load_model,
    make_speculator,
)
from ngramspec.cli.output import console, make_table, print_paths, stages, write_json
from ngramspec.cli.usage import UsageError, check_least, need_plots, usable, writable

if TYPE_CHECKING:
    from rich.table import Table

    from ngramspec.measure.explain import Run
    from ngramspec.measure.explain_advice import Advice
    from ngramspec.measure.explain_predict import Batch, Rung
    from ngramspec.measure.models import LoadedModel

SUMMARY = "measure, predict and explain the speed on a model and prompts"
MEASURED = (  # of a Run, under these names in the JSON file
    *("plain_seconds", "speculative_seconds", "plain_first_seconds", "plain_token_seconds"),
    *("plain_rounds", "speculative_rounds", "noise"),
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    add_model_argument(parser)
    add_drafter(parser)
    add_gamma(parser)
    add_path(
        parser,
        "--prompts",
        "FILE",
        "JSON lines as 'ngramspec record' reads them (default: the demo's texts)",
    )
    add_flag(parser, "--raw", "do not use the model's chat template")
    add_count(parser, "--count", 8, "prompts at most")
    add_count(parser, "--tokens", 128, "new tokens of each")
    add_count(parser, "--repeats", 3, "timed rounds")
    add_count(parser, "--rows", 1, "of batches whose speed is predicted too")
    add_path(parser, "--html", "OUT", "write a self-contained page")
    add_outputs(parser, plots=True)


def run(arguments: argparse.Namespace) -> int:
    """Measure; print tables; write the page, the JSON file and the figures."""
    from dataclasses import asdict

    from ngramspec.measure.explain import explain
    from ngramspec.measure.explain_advice import advise
    from ngramspec.measure.explain_predict import batches, by_depth, by_source, ladder
    from ngramspec.measure.machine import machine

    need_plots(arguments.plots)
    check_least(arguments, count=1, tokens=2, repeats=1, rows=1)
    screen = console()
    speculator = make_speculator(arguments.drafter, arguments.gamma)
    loaded = load_model(arguments, option="MODEL")
    prompts = encoded_prompts(arguments, loaded)
    with stages(screen) as on_stage:
        found = explain(
            loaded,
            prompts,
            speculator,
            new=arguments.tokens,
            repeats=arguments.repeats,
            rows=arguments.rows,
            on_stage=on_stage,
        )
        if not found.traces:
            raise UsageError("the model ends after one token on every prompt; give others")
        rungs, advice = ladder(found), advise(found)
    in_batches = batches(found)
    for shown in results(found, rungs, advice, in_batches):
        screen.print(shown)
    fields = {
        "where": machine(),
        "model": found.model,
        "settings": found.settings,
        "forward_seconds": found.seconds,
        "context": found.context,
        "same_text": found.same,
        **{name: getattr(found, name) for name in MEASURED},
        "rungs": [asdict(rung) for rung in rungs],
        "advice": [asdict(each) for each in advice],
        "row_seconds": found.row_seconds,
        "by_rows": [asdict(each) for each in in_batches],
        "by_depth": {depth: asdict(share) for depth, share in by_depth(found.steps).items()},
        "by_source": {source: asdict(share) for source, share in by_source(found).items()},
        "steps": found.steps,
    }
    write_json(arguments, fields)
    if arguments.html is not None:
        from ngramspec.measure.explain_page import page

        with writable("--html", arguments.html):
            arguments.html.write_text(page(found, rungs, advice), encoding="utf-8")
    if arguments.plots is not None:
        from ngramspec.measure.figures import figure_1, figure_5

        for figure in (figure_1, figure_5):
            print_paths(figure(arguments.plots, fields))
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


def results(
    run: Run, rungs: Sequence[Rung], advice: Sequence[Advice], in_batches: Sequence[Batch]
) -> Iterator[Table | str]:
    """What is printed: tables of the predictions, acceptance, changes, and batches if measured."""
    from ngramspec.measure.explain_predict import by_depth, by_source, rung_rows

    names: Sequence[str] = ("takes into account", "speed", "change", "from")
    yield _table("speedup over baseline", names, rung_rows(rungs))
    yield run.noise_says
    depths = list(by_depth(run.steps).items())[:8]
    shares = by_source(run) | {f"position {depth + 1}": share for depth, share in depths}
    names = ("of", "accepted / verified", "verified")
    rows = [(name, f"{each.rate:.3f}", f"{each.verified:,}") for name, each in shares.items()]
    yield _table("acceptance", names, rows)
    names = ("change", "predicted gain", "by")
    rows = [(each.name, f"{each.gain:.2f}", each.basis) for each in advice]
    yield _table("what would help most", names, rows)
    if run.row_seconds:
        names = ("rows", "cost(n)", "speed", "tokens/s, plain", "tokens/s")
        lines = [
            (
                *(str(each.rows), f"{each.cost:.2f}", f"{each.speed:.2f}"),
                *(f"{each.plain:.1f}", f"{each.speculative:.1f}"),
            )
            for each in in_batches
        ]
        yield _table("batches, predicted", names, lines)


def _table(title: str, names: Sequence[str], rows: Iterable[Sequence[str]]) -> Table:
    words = ("takes into account", "from", "of", "change", "by")
    return make_table(names, rows, left=words, title=title)
