"""Compiled verification against plain compiled ``generate`` and prompt lookup, which is eager.

    python -m benchmarks compiled --dtype bfloat16 --repeats 3 --json compiled.json

All ways take turns in one process, on the demo's texts, with a new Speculator each time. The static
caches of all ways and texts have one size. What is compiled is compiled before anything is timed:
one graph of plain ``generate``, and of ngramspec one for each width; the seconds that took are
printed. Times are of a whole call, prefill included; what counts are the ratios of their medians.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import numpy as np
import torch

from ngramspec import Draft, Drafter, DraftSession, Speculator, generate
from ngramspec.draft import Int32
from ngramspec.measure.machine import machine
from ngramspec.measure.measurement import Measurement
from ngramspec.measure.models import load
from ngramspec.measure.sample_texts import demo_texts
from ngramspec.target.compiled import bucket_sizes


class AllWidths(Drafter):
    """Drafts of every width in turn, twice each: what compiles all graphs."""

    tiers = ("widths",)

    def __init__(self, widths: tuple[int, ...]) -> None:
        self.lengths = [width - 1 for width in widths for _ in range(2)]

    def start(self, tokens: Int32) -> DraftSession:
        lengths = iter(self.lengths)

        class Session(DraftSession):
            def propose(self, gamma: int, cost: Any = None, *, tree: bool = False) -> Draft:
                return Draft(np.zeros(min(next(lengths, 0), gamma), np.int32))

            def extend(self, tokens: Int32) -> None:
                return None

        return Session()


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("--model", help="a folder or a hub id; default: the embedded one")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", default="bfloat16", choices=["bfloat16", "float32", "float16"])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--max-new-tokens", type=int, default=128)
    parser.add_argument("--gamma-max", type=int, default=31)
    parser.add_argument("--width", type=int, default=16, help="of the way that has a fixed one")
    parser.add_argument("--texts", type=int, default=4, help="how many of the demo's")
    parser.add_argument("--json", type=Path, help="where to write the raw times")


def run(arguments: argparse.Namespace) -> int:
    """Measure, print a table, write the JSON."""
    loaded = load(arguments.model, arguments.dtype)
    loaded.model.to(arguments.device)
    measurement = Measurement(loaded, Speculator(), arguments.max_new_tokens)
    texts = list(demo_texts())[: arguments.texts]
    prompts = [loaded.encode(each.prompt, chat=each.chat) for each in texts]
    size = max(len(prompt) for prompt in prompts) + arguments.max_new_tokens
    bench = Bench(measurement, size, arguments.gamma_max, arguments.width)
    compile_seconds = bench.warm_up(min(prompts, key=len))
    print(
        {way: round(seconds, 1) for way, seconds in compile_seconds.items()}, "seconds to warm up"
    )
    known = compilations()
    rows = []
    print(f"{'tokens/s':<24}" + "".join(f"{way:>16}" for way in bench.ways))
    for text, prompt in zip(texts, prompts, strict=True):
        row = bench.measure(text.title, prompt, arguments.repeats)
        rows.append(row)
        speed = row["tokens_per_second"]
        print(
            f"{text.title:<24}" + "".join(f"{speed[way]:>16.1f}" for way in bench.ways), flush=True
        )
    print(f"compilations: {known} to warm up, {compilations() - known} while timed")
    if arguments.json:
        settings = {name: str(value) for name, value in vars(arguments).items()}
        result = {
            "settings": settings,
            "machine": machine(),
            "device": torch.cuda.get_device_name() if arguments.device == "cuda" else "cpu",
            "cache_positions": size,
            "warm_up_seconds": compile_seconds,
            "compilations": {"warm_up": known, "timed": compilations() - known},
            "rows": rows,
        }
        arguments.json.parent.mkdir(parents=True, exist_ok=True)
        arguments.json.write_text(json.dumps(result, indent=1) + "\n")
    return 0


class Bench:
    """The ways to generate, all greedy.

    Args:
        measurement: a model and how to call it.
        size: positions of all static caches.
        gamma_max: most tokens that are drafted.
        width: of the way with a fixed one.
    """

    def __init__(self, measurement: Measurement, size: int, gamma_max: int, width: int) -> None:
        from transformers import CompileConfig

        self.measurement = measurement
        self.gamma_max = gamma_max
        config = CompileConfig(fullgraph=True)
        config._compile_all_devices = True
        static = {"cache_implementation": "static", "max_cache_len": size, "compile_config": config}
        eager = {"cache_implementation": "static", "max_cache_len": size, "disable_compile": True}
        plain = measurement.model.generate
        self.static = static
        self.speculators: dict[str, Speculator] = {}
        self.calls: dict[str, Callable[..., Any]] = {
            "plain": plain,
            "plain static": partial(plain, **eager),
            "plain compiled": partial(plain, **static),
            "lookup": partial(plain, prompt_lookup_num_tokens=10),
            "ours": partial(self.ours, "ours"),
            "ours compiled": partial(self.ours, "ours compiled", compiled=True, **static),
            f"ours width {width}": partial(
                self.ours, f"ours width {width}", compiled=True, width=width, **static
            ),
        }

    @property
    def ways(self) -> tuple[str, ...]:
        """Their names."""
        return tuple(self.calls)

    def ours(self, way: str, *, compiled: bool = False, width: Any = "fit", **kwargs: Any) -> Any:
        """Generate with a new Speculator, and keep its statistics."""
        gamma_max = self.gamma_max
        speculator = Speculator(gamma_max=gamma_max, compiled=compiled, width=width)
        self.speculators[way] = speculator
        return generate(self.measurement.model, speculator=speculator, **kwargs)

    def warm_up(self, prompt: list[int]) -> dict[str, float]:
        """Compile all graphs; seconds that each way's first call took."""
        seconds = {}
        for way, call in self.calls.items():
            begin = perf_counter()
            self.measurement.new_tokens(call, prompt, 8)
            seconds[way] = perf_counter() - begin
        widths = bucket_sizes(self.gamma_max + 1)
        speculator = Speculator(AllWidths(widths), gamma_max=self.gamma_max, compiled=True)
        call = partial(generate, self.measurement.model, speculator=speculator, **self.static)
        begin = perf_counter()
        self.measurement.new_tokens(call, prompt, 2 * len(widths) + self.gamma_max + 1)
        seconds[f"widths {widths}"] = perf_counter() - begin
        return seconds

    def measure(self, title: str, prompt: list[int], repeats: int) -> dict[str, Any]:
        """All ways in turn, after one turn that is not counted."""
        seconds: dict[str, list[float]] = {way: [] for way in self.ways}
        tokens: dict[str, list[int]] = {}
        for turn in range(repeats + 1):
            for way, call in self.calls.items():
                begin = perf_counter()
                tokens[way] = self.measurement.new_tokens(call, prompt, None)
                if turn:
                    seconds[way].append(perf_counter() - begin)
        return {
            "text": title,
            "prompt_tokens": len(prompt),
            "new_tokens": {way: len(new) for way, new in tokens.items()},
            "same_as_plain": {way: new == tokens["plain"] for way, new in tokens.items()},
            "tokens_per_second": {
                way: len(tokens[way]) / median(seconds[way]) for way in self.ways
            },
            "tokens_per_call": {
                way: speculator.stats.tokens_per_call
                for way, speculator in self.speculators.items()
            },
            "seconds": seconds,
        }


def compilations() -> int:
    """Graphs that dynamo has made in this process."""
    return int(torch._dynamo.utils.counters["stats"]["unique_graphs"])
