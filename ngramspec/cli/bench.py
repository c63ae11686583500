"""Compare whole calls of plain generate (the baseline), transformers' prompt lookup and ngramspec,
in turn in one process: speed, speedup over the baseline, share of the limit, memory, text."""

from __future__ import annotations

import argparse
import json
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from ngramspec.cli.options import (
    CommandOptions,
    UsageError,
    check_least,
    console,
    counted,
    load_model,
    make_table,
    usable,
    write_json,
)
from ngramspec.errors import check_int

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

    from ngramspec.measure.bench import Measured
    from ngramspec.measure.models import LoadedModel
    from ngramspec.measure.tasks import Prompt

SUMMARY = "compare whole calls with plain generate and prompt lookup"
NUMBERS = {  # by title: a field of a row, and its format
    "tokens/s": ("tokens_per_second", ".1f"),
    "speedup": ("ratio", ".3f"),
    "median": ("ratio_median", ".3f"),
    "worst": ("ratio_worst", ".3f"),
    "tokens/forward": ("tokens_per_call", ".2f"),
    "mean cost": ("mean_cost", ".3f"),
    "of limit": ("limit_share", ".1%"),
}
TITLES = ("", *NUMBERS, "peak MB", "same text")
WIDE_TITLES = ("median", "mean cost", "of limit", "peak MB")
LEAST_WIDE_COLUMNS = 120  # of a screen that has room for them


def add_arguments(options: CommandOptions) -> None:
    """Declare the options; ngramspec's defaults are always compared with the baseline."""
    options.model("rich")
    prompts = options.group("prompts")
    help = "JSON lines as 'ngramspec record' reads them (default: the demo's)"
    prompts.path("--prompts", "FILE", help)
    help = "groups of the file, and 'nothing' for random text (default: all groups)"
    prompts.text("--tasks", "TASK", help, nargs="+")
    help = "use only the file's prompts of this length"
    prompts.add("--prompt-tokens", nargs=2, type=int, metavar=("MIN", "MAX"), help=help)
    help = "cut or fill every prompt to exactly N tokens, for each of these lengths"
    prompts.numbers("--lengths", [], help)
    ways = options.group("what is compared with the baseline")
    help = "prompt lookup with drafts of N tokens, none without N (default: 3 10)"
    ways.text("--lookup", "N", help, nargs="*", type=int, default=[3, 10])
    ways.numbers("--width", [], "also with fixed widths")
    help = "also with these arguments of Speculator, such as '{\"gamma\": 8}'"
    ways.repeated("--speculator", "JSON", help, type=_fields)
    ways.flag("--compiled", "also with compiled static forwards")
    plan = options.group("measurement")
    plan.count("--prompts-per-task", 8, "maximum prompts of each task and length")
    plan.count("--max-new-tokens", 96, "new tokens in each call")
    help = "leave out prompts with a shorter output (default: 48, at most --max-new-tokens)"
    plan.add("--least", type=int, metavar="N", help=help)
    plan.count("--repeats", 3, "timed calls of each prompt and configuration")
    plan.flag(
        "--same-text",
        "make the model's logits prefer the baseline's text, because texts in bfloat16 can diverge"
        " at near ties",
    )
    plan.flag("--cached", "begin with a cache of all but 64 tokens of the prompt")
    options.flag("--wide", "print all columns, as on a screen of 120 columns")
    options.json()


def run(arguments: argparse.Namespace) -> int:
    """Measure; print and write the results."""
    from ngramspec.measure.bench import BenchPlan, EndToEnd, forced_texts, summarize, to_dict
    from ngramspec.measure.calls import usual_configurations

    if arguments.least is None:
        arguments.least = min(48, arguments.max_new_tokens)
    check_least(arguments, repeats=1, max_new_tokens=2, prompts_per_task=1, least=2, lengths=1)
    _check_given(arguments)
    screen = console(wide=arguments.wide)
    loaded = load_model(arguments)
    prompts = _prompts(arguments, loaded)
    plan = BenchPlan(
        new=arguments.max_new_tokens,
        prompts=arguments.prompts_per_task,
        **{name: getattr(arguments, name) for name in ("repeats", "least", "same_text", "cached")},
    )
    configurations = usual_configurations(
        lookups=arguments.lookup,
        widths=arguments.width,
        speculators=arguments.speculator,
        compiled=arguments.compiled,
    )
    texts = forced_texts(loaded.model, prompts, plan)
    with texts as set_text, screen.status("measuring") as status, usable():
        bench = EndToEnd(loaded.model, configurations, plan, set_text, status.update)
        measured = bench.run(prompts)
    rows = summarize(measured)
    show(screen, rows, measured)
    model = {"model": loaded.name, "dtype": arguments.dtype, "device": arguments.device}
    settings = {**model, **asdict(plan), "ways": [asdict(way) for way in configurations]}
    write_json(arguments, {"settings": settings, "summary": rows, **to_dict(measured)})
    return 0


def _check_given(arguments: argparse.Namespace) -> None:
    """Check what a later part of the run would refuse."""
    from ngramspec import Speculator

    for fields in arguments.speculator:
        with usable(f"--speculator {json.dumps(fields)}"):
            Speculator(**fields)
    if arguments.prompt_tokens is not None:
        if arguments.prompts is None:
            raise UsageError("--prompt-tokens needs --prompts")
        with usable():
            check_int("--prompt-tokens MIN", arguments.prompt_tokens[0], 1)
            check_int("--prompt-tokens MAX", arguments.prompt_tokens[1], arguments.prompt_tokens[0])


def _prompts(arguments: argparse.Namespace, loaded: LoadedModel) -> list[Prompt]:
    """The prompts of the requested tasks and lengths, and random texts after them."""
    from ngramspec.hf_model.compat.models import vocab_size
    from ngramspec.measure import tasks

    with usable("--prompts"):
        pool = tasks.prompts_of(loaded, arguments.prompts)
        (task, name), count = Counter((each.task, each.id) for each in pool).most_common(1)[0]
        if count > 1:
            raise ValueError(f"{count} prompts of {task} have the id {name}")
    with usable("--tasks"):
        wanted = tasks.known_tasks(pool, arguments.tasks or ())
    if arguments.prompt_tokens is not None:
        least, most = arguments.prompt_tokens
        pool = [each for each in pool if least <= len(each.ids) <= most]
    sets = [tasks.fit(pool, length) for length in arguments.lengths] or [pool]
    new, vocab = arguments.max_new_tokens, vocab_size(loaded.model)
    found: list[Prompt] = []
    for same in sets:
        found += [*same, *tasks.unpredictable(same, new, vocab, loaded.eos_ids)]
    found = [each for each in found if each.task in wanted]
    with usable():
        tasks.check_prompts(loaded, found, new)
    return found


def _fields(text: str) -> dict[str, Any]:
    """``--speculator``: a JSON object; the Speculator checks the rest."""
    try:
        fields = json.loads(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"not JSON: {text}") from error
    if not isinstance(fields, dict):
        raise argparse.ArgumentTypeError(f"not a JSON object: {text}")
    return fields


def show(screen: Console, rows: Sequence[dict[str, Any]], measured: Measured) -> None:
    """Print the tables, and what was not measured."""
    wide = screen.width >= LEAST_WIDE_COLUMNS
    titles = [each for each in TITLES if wide or each not in WIDE_TITLES]
    for table in tables(rows, titles):
        screen.print(table)
    for way, reason in measured.skipped.items():
        screen.print(f"skipped: {way}: {reason}")
    for way, count in measured.compiling.items():
        screen.print(f"{way}: {counted(count, 'call')} repeated, something was compiled in them")
    for task, count in measured.left_out.items():
        left_out = counted(count, "prompt")
        screen.print(f"{task}: {left_out} left out because the plain output is too short")


def tables(rows: Sequence[dict[str, Any]], titles: Sequence[str]) -> Iterator[RenderableType]:
    """A table for each task and length, with the columns of these titles."""
    for task, length in dict.fromkeys((row["task"], row["length"]) for row in rows):
        same = [row for row in rows if (row["task"], row["length"]) == (task, length)]
        title = f"{task}, {counted(same[0]['prompts'], 'prompt')}"
        title += f" of {counted(length, 'token')}" if length else ""
        cells = ([_cells(row)[each] for each in titles] for row in same)
        yield make_table(titles, cells, left=("",), title=title)


def _cells(row: dict[str, Any]) -> dict[str, str]:
    """A row of a table, by title."""
    cells = {"": row["way"]}
    for title, (name, form) in NUMBERS.items():
        cells[title] = "-" if row[name] is None else format(row[name], form)
    peak, differences = row["peak_bytes"], row["first_differences"]
    cells["peak MB"] = "-" if peak is None else f"{peak / 1e6:.0f}"
    cells["same text"] = f"{row['same']}/{row['prompts']}"
    if differences:
        cells["same text"] += f", first at {min(differences.values())}"
    return cells
