"""The cost of a shared store: adding and looking up.

    python -m benchmarks shared_store --traces traces.jsonl --json shared_store.json

The traces' outputs, repeated with one token in fifty replaced, fill a namespace and wrap around in
it. Times are of calls from Python.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from time import perf_counter, perf_counter_ns
from typing import Any

import numpy as np

from benchmarks.harness import write
from ngramspec.cli.options import Options
from ngramspec.measure.traces import read_traces
from ngramspec.stores import SharedStore

REPLACED = 0.02


def add_arguments(options: Options) -> None:
    options.add("--traces", type=Path, required=True)
    options.add("--mib", type=int, default=64, help="of the namespace")
    options.add("--contexts", type=int, default=20_000)
    options.json()


def run(arguments: argparse.Namespace) -> int:
    outputs = [trace.output for trace in read_traces(arguments.traces)]
    size = arguments.mib << 20
    store = SharedStore(size, namespace_bytes=size)
    result = {
        "add": filled(store, outputs),
        "look_up": look_ups(store, outputs, arguments.contexts),
        "bytes": store.sizeof(),
    }
    print(json.dumps(result, indent=1))
    write(arguments, result)
    return 0


def filled(store: SharedStore, outputs: list[Any]) -> dict[str, Any]:
    """Add more text than there is room for; microseconds a token."""
    rng = np.random.default_rng(0)
    alphabet = np.concatenate(outputs)
    namespace, tokens, seconds = store["a"], 0, 0.0
    while tokens < 1.2 * store.max_bytes / 28:
        for output in outputs:
            text = output.copy()
            places = rng.random(len(text)) < REPLACED
            text[places] = rng.choice(alphabet, int(places.sum()))
            begin = perf_counter()
            namespace.add(text)
            seconds += perf_counter() - begin
            tokens += len(text)
    held = namespace.statistics().tokens
    return {"tokens": tokens, "held": held, "us_a_token": seconds / tokens * 1e6}


def look_ups(store: SharedStore, outputs: list[Any], count: int) -> dict[str, Any]:
    """Microseconds of look-ups of real contexts; in half of them one of the last tokens differs."""
    rng = np.random.default_rng(1)
    text = np.concatenate(outputs)
    stream = store["a"].index
    times, lengths, places = [], [], []
    for i in range(count):
        at = int(rng.integers(64, len(text)))
        context = text[at - 64 : at].copy()
        if i % 2:
            context[-int(rng.integers(1, 16))] = rng.choice(text)
        begin = perf_counter_ns()
        found = stream.find(context, 32)
        times.append(perf_counter_ns() - begin)
        places.append(len(found))
        lengths.append(found[0][1] if found else 0)
    return {
        "contexts": count,
        "us_median": float(np.median(times)) / 1000,
        "us_p99": float(np.percentile(times, 99)) / 1000,
        "places_mean": float(np.mean(places)),
        "longest_mean": float(np.mean(lengths)),
    }
