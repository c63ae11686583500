"""Measure how often drafts are accepted: alpha, the mean of sum min(p, q) at the target's own
positions (Leviathan et al. 2023, Corollary 3.6), by exact sums, with standard errors, overall and
by position in the draft, next to the rate counted while decoding. The drafters are those of the
paper's Table 3 that need no second model, and this package's own. --lenience measures Table 5."""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ngramspec.cli.options import (
    add_count,
    add_device,
    add_flag,
    add_model,
    add_numbers,
    add_outputs,
    add_repeated,
    load_model,
)
from ngramspec.cli.output import console, make_table, print_paths, stages, write_json
from ngramspec.cli.usage import UsageError, check_least, need_plots, usable
from ngramspec.errors import check_real

if TYPE_CHECKING:
    from rich.table import Table

    from ngramspec.measure.alpha import Alpha
    from ngramspec.measure.alpha_run import Plan, Row
    from ngramspec.measure.models import LoadedModel
    from ngramspec.measure.traces import Prompt

SUMMARY = "measure alpha of any drafter on a model"
SETTINGS = ("dtype", "tokens", "gamma", "train", "lenience", "top_k", "top_p", "repetition_penalty")
SAMPLING = ("top_k", "top_p", "repetition_penalty")
TYPES, LIBRARY = "types", "library"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    add_model(parser, dtype="float32")
    add_device(parser)
    add_repeated(
        parser,
        "--drafter",
        "SPEC",
        "such as copy, 'ngram(order=3,sample=true)', trained-unigram, trained-bigram, random;"
        " may be repeated (default: all of these)",
    )
    parser.add_argument("--draft-model", metavar="MODEL", help="a smaller model, as one drafter")
    parser.add_argument(
        "--prompts",
        metavar="FILE",
        default=LIBRARY,
        help="JSON lines as 'ngramspec record' reads them; 'types': natural text, code, structured"
        " data and repeated text; 'library' (default): tasks about passages of Python's library",
    )
    add_count(parser, "--count", 10, "prompts, of 'types' of each type")
    add_count(parser, "--train", 10, "further prompts whose outputs train unigram and bigram")
    add_count(parser, "--tokens", 128, "new tokens of each")
    add_count(parser, "--gamma", 4, "tokens drafted in a step")
    for option, default, metavar, text in (
        ("--temperatures", [0.0, 1.0], "T", "of the target, 0 for greedy"),
        ("--draft-temperatures", [1.0], "T", "of the n-gram counts, in the default"),
        ("--lenience", [], "L", "values below 1 to measure too, such as 0.5 0.3 0.1"),
    ):
        add_numbers(parser, option, default, text, float, metavar)
    parser.add_argument("--top-k", type=int, metavar="N", help="of the target (default: off)")
    parser.add_argument("--top-p", type=float, metavar="P", help="of the target (default: off)")
    parser.add_argument("--repetition-penalty", type=float, metavar="X", help="default: off")
    add_flag(parser, "--no-observed", "do not decode speculatively")
    add_outputs(parser, plots=True)


def run(arguments: argparse.Namespace) -> int:
    """Measure; print, write and draw the results."""
    import warnings

    from ngramspec.measure.alpha_run import default_drafters, measure
    from ngramspec.measure.machine import machine

    warnings.simplefilter("ignore")  # parsing the library's sources causes some
    check(arguments)
    screen = console()
    loaded = load_model(arguments)
    with usable():
        plan = make_plan(arguments, loaded)
    rows: list[Row] = []
    with stages(screen) as on_stage, usable():
        for temperature in arguments.temperatures:
            names = arguments.drafter or default_drafters(temperature, arguments.draft_temperatures)
            if plan.draft_model is not None:
                names = [*names, "draft-model"]
            rows += measure(loaded.model, plan, temperature, names, on_stage)
    for title, table in tables(rows, plan):
        screen.print(title)
        screen.print(table)
    settings = {"model": loaded.name, **{name: getattr(arguments, name) for name in SETTINGS}}
    found = [row.to_dict() for row in rows]
    write_json(arguments, {"settings": settings, "where": machine(), "rows": found})
    if arguments.plots is not None:
        from ngramspec.measure.figures import plot_alpha

        print_paths(plot_alpha(found, arguments.plots))
    return 0


def check(arguments: argparse.Namespace) -> None:
    """Check the numbers; a UsageError names one that is out of bounds."""
    need_plots(arguments.plots)
    check_least(arguments, count=1, train=0, tokens=2, gamma=1)
    bounds = {
        "--temperatures": ([each for each in arguments.temperatures if each], math.inf),
        "--draft-temperatures": (arguments.draft_temperatures, math.inf),
        "--lenience": (arguments.lenience, 1.0),
    }
    with usable():
        for option, (values, most) in bounds.items():
            for value in values:
                check_real(option, value, 0.0, most)


def make_plan(arguments: argparse.Namespace, loaded: LoadedModel) -> Plan:
    """The encoded prompts and all other settings of the measurement."""
    from ngramspec.measure.alpha_run import Plan
    from ngramspec.measure.prompts import library_prompts

    chat = arguments.prompts != TYPES
    prompts, train = read_prompts(arguments)
    if not train and arguments.train:
        train = library_prompts(2 * arguments.train)[arguments.train :]
    draft = argparse.Namespace(**vars(arguments) | {"model": arguments.draft_model})
    given = {name: getattr(arguments, name) for name in SAMPLING}
    leniences = [1.0, *(each for each in arguments.lenience if each < 1.0)]
    return Plan(
        prompts=[(each.group, loaded.encode(each.text, chat=chat)) for each in prompts],
        train=[loaded.encode(each.text, chat=chat) for each in train],
        new=arguments.tokens,
        gamma=arguments.gamma,
        leniences=leniences,
        observed=not arguments.no_observed,
        sampling={name: value for name, value in given.items() if value is not None},
        draft_model=load_model(draft, option="--draft-model").model if draft.model else None,
    )


def read_prompts(arguments: argparse.Namespace) -> tuple[list[Prompt], list[Prompt]]:
    """The prompts to measure, and those to train on; the latter are empty if a file is given."""
    from ngramspec.measure.prompts import TYPES as KINDS
    from ngramspec.measure.prompts import content_prompts, library_prompts
    from ngramspec.measure.traces import read_prompts

    count, train = arguments.count, arguments.train
    if arguments.prompts == TYPES:
        each = count + -(-train // len(KINDS))  # prompts of each type, one type after another
        chosen: list[Prompt] = []
        others: list[Prompt] = []
        for at, prompt in enumerate(content_prompts(each)):
            (chosen if at % each < count else others).append(prompt)
        return chosen, others
    if arguments.prompts == LIBRARY:
        found = library_prompts(count + train)
        return found[:count], found[count:]
    try:
        return read_prompts(Path(arguments.prompts))[:count], []
    except OSError as error:
        raise UsageError(f"--prompts: {error}") from error


def tables(rows: list[Row], plan: Plan) -> list[tuple[str, Table]]:
    """Titles and tables: Table 3, by depth, by group, and Table 5 if lenience was requested."""
    from ngramspec.measure.alpha_run import ALL

    whole = [row for row in rows if row.group == ALL]
    found = [("alpha", _overview(whole)), ("alpha by position in the draft", _by_depth(whole))]
    groups = [row for row in rows if row.group != ALL]
    if groups:
        found.append(("alpha by group", _by_group(groups)))
    if len(plan.leniences) > 1:
        found.append(("alpha under lenience", _lenient(whole, plan.leniences)))
    return found


def _table(names: Sequence[str], rows: Iterable[Sequence[str]]) -> Table:
    return make_table(("drafter", "T", *names), rows, left=("drafter",))


def _key(row: Row) -> tuple[str, str]:
    """The first cells of a row."""
    return row.drafter, f"{row.temperature:g}"


def _overview(rows: list[Row]) -> Table:
    names = ("positions", "drafted", "alpha", "± s.e.", "match", "observed", "tokens per call")
    cells = []
    for row in rows:
        alpha = row.alpha
        seen = [f"{each:.3f}" for o in row.observed[:1] for each in (o.alpha, o.tokens_per_call)]
        mean, error = _first(alpha)
        figures = (f"{alpha.drafted:.3f}", f"{mean:.4f}", f"{error:.4f}", f"{alpha.match:.4f}")
        cells.append((*_key(row), f"{alpha.positions:,}", *figures, *(seen or ("", ""))))
    return _table(names, cells)


def _by_depth(rows: list[Row]) -> Table:
    depths = max((len(row.alpha.by_depth) for row in rows), default=0)
    cells = [
        (*_key(row), *(f"{mean:.3f} ± {error:.3f}" for mean, error, _ in row.alpha.by_depth))
        for row in rows
    ]
    return _table([str(depth + 1) for depth in range(depths)], cells)


def _by_group(rows: list[Row]) -> Table:
    lines: dict[tuple[str, str], dict[str, str]] = {}
    for row in rows:
        mean, error = _first(row.alpha)
        cell = f"{mean:.3f} ± {error:.3f} of {row.alpha.drafted:.2f}"
        lines.setdefault(_key(row), {})[row.group] = cell
    cells = [(*key, *found.values()) for key, found in lines.items()]
    return _table(list(dict.fromkeys(row.group for row in rows)), cells)


def _lenient(rows: list[Row], leniences: Sequence[float]) -> Table:
    decoding = ("observed", "tokens per call", "its variation", "its perplexity", "of texts")
    names = ("l", "alpha", "± s.e.", "total variation", "perplexity", *decoding)
    lines = []
    for row in rows:
        alpha = row.alpha
        exact = [(alpha.alpha, ".4f"), (alpha.error, ".4f"), (alpha.moved, ".4f")]
        exact.append((alpha.perplexity, ".3f"))
        for k, lenience in enumerate(leniences):
            cells = [format(each[k], form) if each else "" for each, form in exact]
            if row.observed:
                seen = row.observed[k]
                found = (seen.alpha, seen.tokens_per_call, seen.moved, seen.perplexity)
                cells += ["" if each is None else f"{each:.3f}" for each in found]
                cells += ["" if seen.text_moved is None else f"{seen.text_moved:.2f}"]
            lines.append((*_key(row), f"{lenience:g}", *cells))
    return _table(names, lines)


def _first(alpha: Alpha) -> tuple[float, float]:
    """Alpha and its standard error without lenience, 0 without any text."""
    return (alpha.alpha[0], alpha.error[0]) if alpha.alpha else (0.0, 0.0)
