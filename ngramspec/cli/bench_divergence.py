"""The benchmark ``divergence``: real prompts plainly and speculatively, and where they part."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ngramspec.cli import UsageError
from ngramspec.cli.arguments import check_least, usable
from ngramspec.cli.demo import make_speculator, parse_gamma

if TYPE_CHECKING:
    from ngramspec.bench.divergence import Comparison
    from ngramspec.cli.measure import Measurement
    from ngramspec.draft import Int32

DTYPES = ("bfloat16", "float16", "float32")


def declare(commands: Any) -> None:
    """Declare the subcommand and its options."""
    parser = commands.add_parser(
        "divergence",
        help="where speculative text departs from plain text, and how near a tie that was",
        description="Continue prompts greedily with plain generate and speculatively, for a fixed"
        " number of tokens. Where the texts first part, the gap between the two best logits of"
        " plain generate's own forward is reported, in units in the last place of the larger one."
        " Exit status 1 if a gap is more than rounding explains: above 8 units, or in float32"
        " 1e-4.",
    )
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
        help="the prompts of recorded traces, as bench record writes them: of this model's tokens",
    )
    parser.add_argument(
        "--count", type=int, default=100, metavar="N", help="prompts (default: 100)"
    )
    parser.add_argument("--tokens", type=int, default=128, metavar="N", help="default: 128")
    parser.add_argument("--batch", type=int, default=1, metavar="N", help="default: 1")
    parser.add_argument("--dtype", choices=DTYPES, default="bfloat16", help="default: bfloat16")
    parser.add_argument(
        "--model", metavar="MODEL", help="folder or hub id (default: the embedded SmolLM2)"
    )
    parser.add_argument("--drafter", default="auto", metavar="SPEC", help="default: auto")
    parser.add_argument("--gamma", type=parse_gamma, default="auto", metavar="N")
    parser.add_argument("--json", type=Path, metavar="OUT", help="write everything found")
    parser.set_defaults(benchmark=run)


def run(arguments: argparse.Namespace) -> int:
    """Compare every prompt; print each departure and their distribution; 1 if one is no tie."""
    import warnings

    import torch

    from ngramspec.bench.divergence import compare, histogram
    from ngramspec.cli.bench import write
    from ngramspec.cli.bench_view import departure_line, divergence_summary
    from ngramspec.cli.measure import Measurement
    from ngramspec.cli.models import load

    warnings.simplefilter("ignore")  # the library's sources have some
    check_least(arguments, count=1, tokens=1, batch=1)
    speculator = make_speculator(arguments.drafter, arguments.gamma)
    loaded = load(arguments.model, arguments.dtype, on_stage=lambda stage: None)
    prompts = read(arguments, Measurement(loaded, speculator, arguments.tokens))
    dtype = getattr(torch, arguments.dtype)
    found: list[Comparison] = []
    for each in compare(loaded.model, speculator, prompts, arguments.tokens, arguments.batch):
        found.append(each)
        if each.divergence is None:
            print(".", end="", flush=True, file=sys.stderr)
        else:
            print(departure_line(each, dtype, loaded.tokenizer), flush=True)
    print(file=sys.stderr)
    departures = [each.divergence for each in found if each.divergence is not None]
    wrong = [each for each in departures if not each.is_tie(dtype)]
    print(divergence_summary(found, dtype, speculator.stats.tokens_per_call))
    settings = {
        "model": loaded.name,
        "dtype": arguments.dtype,
        "prompts": len(prompts),
        "tokens": arguments.tokens,
        "batch": arguments.batch,
        "drafter": arguments.drafter,
        "gamma": arguments.gamma,
    }
    totals = {
        "identical": len(found) - len(departures),
        "ties": len(departures) - len(wrong),
        "wrong": len(wrong),
        "tokens_per_call": speculator.stats.tokens_per_call,
    }
    parted = [asdict(each) for each in found if each.divergence is not None]
    counts = {"histogram_ulps": histogram(departures)}
    write(arguments.json, {"settings": settings, **totals, **counts, "departures": parted})
    return int(bool(wrong))


def read(arguments: argparse.Namespace, measurement: Measurement) -> Sequence[tuple[str, Int32]]:
    """Names and token ids of the prompts asked for, of every group some.

    Raises:
        UsageError: the file cannot be read, or a prompt leaves no room for the new tokens.
    """
    import numpy as np

    from ngramspec.bench.prompts import library_prompts
    from ngramspec.bench.record import read_prompts
    from ngramspec.bench.traces import by_group, read_traces

    def encode(text: str) -> Int32:
        return np.array(measurement.encode(text, chat=True), np.int32)

    with usable():
        if arguments.traces is not None:
            groups = [*by_group(read_traces(arguments.traces)).values()]
            longest = max(len(group) for group in groups)
            traces = [group[at] for at in range(longest) for group in groups if at < len(group)]
            named = [(f"{each.group} {each.id}", each.prompt) for each in traces]
        else:
            if arguments.prompts is None:
                prompts = library_prompts(arguments.count)
            else:
                prompts = read_prompts(arguments.prompts)
            named = [
                (f"{each.group} {each.id}", encode(each.text))
                for each in prompts[: arguments.count]
            ]
    limit = getattr(measurement.model.config, "max_position_embeddings", None)
    if limit is not None:
        named = [(name, ids) for name, ids in named if len(ids) + arguments.tokens <= limit]
    if not named:
        raise UsageError(f"no prompt leaves room for {arguments.tokens} tokens")
    return named[: arguments.count]
