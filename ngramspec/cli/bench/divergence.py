"""Continue prompts greedily with plain generate and speculatively, for a fixed number of tokens.
Where the texts first diverge, the gap between the two best logits of plain generate's own forward
is reported, in units in the last place of the larger one. Exit status 1 if a gap is more than
rounding explains: above 8 units, or in float32 1e-4."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ngramspec.bench.wording import counted
from ngramspec.cli.options import (
    add_count,
    add_drafter,
    add_gamma,
    add_model,
    add_outputs,
    load_model,
    make_speculator,
)
from ngramspec.cli.output import write_json
from ngramspec.cli.usage import UsageError, check_least, usable

if TYPE_CHECKING:
    import torch

    from ngramspec.bench.divergence import Comparison
    from ngramspec.bench.models import LoadedModel
    from ngramspec.bench.record import Prompt
    from ngramspec.draft import Int32

SUMMARY = "where speculative text diverges from plain text, and how near a tie that was"
SETTINGS = ("dtype", "tokens", "batch", "drafter", "gamma")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    given = parser.add_mutually_exclusive_group()
    given.add_argument(
        "--prompts",
        type=Path,
        metavar="FILE",
        help='JSON lines: texts, or {"prompt": ..., "group": ..., "id": ...} (default: passages of'
        " Python's own library, each with a task)",
    )
    given.add_argument(
        "--traces",
        type=Path,
        metavar="FILE",
        help="the prompts of traces that bench record wrote with this model",
    )
    add_count(parser, "--count", 100, "prompts")
    add_count(parser, "--tokens", 128, "new tokens of each")
    add_count(parser, "--batch", 1, "prompts in a batch")
    add_model(parser)
    add_drafter(parser)
    add_gamma(parser)
    add_outputs(parser)


def run(arguments: argparse.Namespace) -> int:
    """Compare every prompt; print each divergence and their distribution; 1 if one is no tie."""
    import warnings

    import torch

    from ngramspec.bench.divergence import compare

    warnings.simplefilter("ignore")  # the library's sources have some
    check_least(arguments, count=1, tokens=1, batch=1)
    speculator = make_speculator(arguments.drafter, arguments.gamma)
    loaded = load_model(arguments)
    prompts = read(arguments, loaded)
    dtype = getattr(torch, arguments.dtype)
    found: list[Comparison] = []
    for each in compare(loaded.model, speculator, prompts, arguments.tokens, arguments.batch):
        found.append(each)
        if each.divergence is None:
            print(".", end="", flush=True, file=sys.stderr)
        else:
            print(line(each, dtype, loaded.tokenizer), flush=True)
    print(file=sys.stderr)
    tokens_per_call = speculator.stats.tokens_per_call
    print(summary(found, dtype, tokens_per_call))
    settings = {"model": loaded.name, "prompts": len(prompts)}
    settings |= {name: getattr(arguments, name) for name in SETTINGS}
    totals = {**outcomes(found, dtype), "tokens_per_call": tokens_per_call}
    write_json(arguments.json, {"settings": settings, **totals, **details(found)})
    return int(totals["wrong"] > 0)


def read(arguments: argparse.Namespace, loaded: LoadedModel) -> Sequence[tuple[str, Int32]]:
    """Names and token ids of the prompts asked for, groups in turn.

    Raises:
        UsageError: the file cannot be read, or no prompt leaves room for the new tokens.
    """
    from ngramspec.bench.prompts import library_prompts
    from ngramspec.bench.record import read_prompts
    from ngramspec.bench.traces import in_turn, read_traces

    with usable():
        if arguments.traces is not None:
            traces = in_turn(read_traces(arguments.traces))
            named = [(f"{each.group} {each.id}", each.prompt) for each in traces]
        elif arguments.prompts is not None:
            named = encoded(read_prompts(arguments.prompts)[: arguments.count], loaded)
        else:
            named = encoded(library_prompts(arguments.count), loaded)
    limit = loaded.max_positions
    if limit is not None:
        named = [(name, ids) for name, ids in named if len(ids) + arguments.tokens <= limit]
    if not named:
        raise UsageError(f"no prompt leaves room for {arguments.tokens} tokens")
    return named[: arguments.count]


def encoded(prompts: Sequence[Prompt], loaded: LoadedModel) -> list[tuple[str, Int32]]:
    """Names and token ids of prompts, int32 (n,)."""
    import numpy as np

    return [
        (f"{each.group} {each.id}", np.array(loaded.encode(each.text, chat=True), np.int32))
        for each in prompts
    ]


def outcomes(found: Sequence[Comparison], dtype: torch.dtype) -> dict[str, Any]:
    """How many texts are identical, diverge at a tie, and are wrong."""
    divergences = [each.divergence for each in found if each.divergence is not None]
    ties = sum(each.is_tie(dtype) for each in divergences)
    identical = len(found) - len(divergences)
    return {"identical": identical, "ties": ties, "wrong": len(divergences) - ties}


def details(found: Sequence[Comparison]) -> dict[str, Any]:
    """Every divergence, and how many have which gap, as plain values."""
    from ngramspec.bench.divergence import histogram

    diverged = [each for each in found if each.divergence is not None]
    return {
        "histogram_ulps": histogram([each.divergence for each in diverged if each.divergence]),
        "departures": [asdict(each) for each in diverged],
    }


def line(found: Comparison, dtype: torch.dtype, tokenizer: Any) -> str:
    """Where a prompt's texts diverge, and by how much the logits are apart there."""
    at = found.divergence
    assert at is not None
    plain, speculative = (tokenizer.decode([token]) for token in (at.plain, at.speculative))
    verdict = "tie" if at.is_tie(dtype) else "WRONG"
    return (
        f"{verdict:<6}{found.name}, token {at.token}: {speculative!r} instead of {plain!r};"
        f" two best {at.gap:.3g} apart ({at.gap_ulps:.3g} ulps), these two {at.chosen_gap:.3g}"
        f" ({at.chosen_ulps:.3g} ulps)"
    )


def summary(found: Sequence[Comparison], dtype: torch.dtype, tokens_per_call: float) -> str:
    """How many texts are identical, and how far apart the two best logits are elsewhere."""
    from ngramspec.bench.divergence import histogram

    counts = outcomes(found, dtype)
    lines = [
        f"{counted(len(found), 'prompt')}: {counts['identical']} identical,"
        f" {counts['ties']} diverge at a tie, {counts['wrong']} are wrong;"
        f" {counted(sum(each.tokens for each in found), 'token')} the same;"
        f" {tokens_per_call:.2f} per call"
    ]
    divergences = [each.divergence for each in found if each.divergence is not None]
    if divergences:
        lines.append("gap between the two best logits there, in units in the last place")
        bars = histogram(divergences).items()
        lines += [f"{unit:>4}{count:>6}  {'#' * count}" for unit, count in bars]
    return "\n".join(lines)
