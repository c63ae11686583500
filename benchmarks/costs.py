"""Relative costs of forwards of the embedded model, each timed next to forwards of one position.

    python -m benchmarks costs --json costs.json

The initial costs of generations on CPUs are such figures: see ``ngramspec/costs/processors.py``. A
forward of n positions is timed between two forwards of one position, as a drafted step between
plain ones, and its cost is the median of its time / the mean of theirs.
"""

from __future__ import annotations

import argparse
from statistics import median
from time import perf_counter
from typing import Any

import torch

from benchmarks.harness import write
from ngramspec.cli.options import Options
from ngramspec.hf_model.attention import in_place
from ngramspec.hf_model.cache.kv_cache import kv_cache_for
from ngramspec.hf_model.compat.caches import cache_argument
from ngramspec.measure.models import load

WIDTHS = (1, 2, 3, 4, 5, 6, 8, 11, 16, 24, 32, 48, 65, 128)


def add_arguments(options: Options) -> None:
    """Declare the options."""
    options.add("--dtypes", nargs="+", default=["float32", "bfloat16"])
    options.count("--context", 300, "positions in the cache")
    options.count("--repeats", 5, "timed forwards of each width")
    options.json()


def run(arguments: argparse.Namespace) -> int:
    """Measure, print a table, write the JSON."""
    rows = []
    for dtype in arguments.dtypes:
        model = load(None, dtype).model
        costs, seconds = relative_costs(model, arguments.context, arguments.repeats)
        rows.append({"dtype": dtype, "costs": costs, "seconds_of_one": seconds})
        print(f"{dtype} ({1e3 * seconds:.1f} ms): " + "  ".join(_cells(costs)), flush=True)
    write(arguments, {"rows": rows})
    return 0


def _cells(costs: dict[int, float]) -> list[str]:
    return [f"{width}: {cost:.2f}" for width, cost in costs.items()]


@torch.inference_mode()
def relative_costs(model: Any, context: int, repeats: int) -> tuple[dict[int, float], float]:
    """Costs by width, relative to one position, and the median seconds of one position."""
    from transformers import DynamicCache

    make = torch.Generator().manual_seed(0)
    tokens = torch.randint(3, model.config.vocab_size, (1, context), generator=make)
    cache = DynamicCache(config=model.config)
    model(input_ids=tokens, **cache_argument(cache), use_cache=True, logits_to_keep=1)
    rolled = kv_cache_for(cache)
    rolled.record()

    def seconds(width: int) -> float:
        began = perf_counter()
        with in_place(model, model.device):
            block = tokens[:, :width]
            model(input_ids=block, **cache_argument(cache), use_cache=True, logits_to_keep=width)
        spent = perf_counter() - began
        rolled.truncate(width)
        return spent

    ratios: dict[int, list[float]] = {width: [] for width in WIDTHS if width > 1}
    plain = [seconds(1), seconds(1)]
    for turn in range(repeats + 1):
        for width, found in ratios.items():
            spent = seconds(width)
            seconds(1)  # the caches are cold after a wide forward
            plain.append(seconds(1))
            if turn:
                found.append(spent / ((plain[-2] + plain[-1]) / 2))
    return {1: 1.0, **{width: median(found) for width, found in ratios.items()}}, median(plain)
