"""The cost of a shared store: adding, looking up, and the threads' waits for its lock.

    python -m benchmarks shared_store --traces traces.jsonl --json shared_store.json

The traces' outputs, repeated with one token in fifty replaced, fill a namespace and wrap around in
it. Times are of calls from Python. The waits are of one thread that takes the lock again
and again, 2 µs apart, while others draft, add, copy the text and clear it.
"""

from __future__ import annotations

import argparse
import json
import threading
from pathlib import Path
from time import perf_counter, perf_counter_ns
from typing import Any

import numpy as np

from benchmarks.harness import add_json, write
from ngramspec.drafters import build_drafter
from ngramspec.measure.traces import read_traces
from ngramspec.stores import SharedStore

REPLACED = 0.02
PAUSE = 2000  # ns
AIM = 100_000  # ns, of the 99.9th percentile


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("--traces", type=Path, required=True)
    parser.add_argument("--threads", type=int, default=4)
    parser.add_argument("--mib", type=int, default=64, help="of the namespace")
    parser.add_argument("--contexts", type=int, default=20_000)
    parser.add_argument("--waits", type=int, default=200_000)
    add_json(parser)


def run(arguments: argparse.Namespace) -> int:
    """Measure, print, write the JSON."""
    outputs = [trace.output for trace in read_traces(arguments.traces)]
    size = arguments.mib << 20
    store = SharedStore(size, namespace_bytes=size)
    result = {
        "add": filled(store, outputs),
        "look_up": look_ups(store, outputs, arguments.contexts),
        "wait_alone": waits(store, outputs, 0, arguments.waits),
        "wait": waits(store, outputs, arguments.threads, arguments.waits),
        "most_operations": store.ring("a").most_operations(),
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


def waits(store: SharedStore, outputs: list[Any], threads: int, count: int) -> dict[str, Any]:
    """Nanoseconds that the lock was waited for, while others work."""
    done = threading.Event()
    drafter = build_drafter("auto", stores=[store["a"]])
    drafted = [0]

    def serve(seed: int) -> None:
        rng = np.random.default_rng(seed)
        while not done.is_set():
            output = outputs[rng.integers(len(outputs))]
            session = drafter.start(output[:8])
            for at in range(8, len(output), 3):
                session.propose(16)
                session.extend(output[at : at + 3])
                drafted[0] += 1
            session.close()

    def keep() -> None:
        at = 0
        while not done.is_set():
            at, codes = store.ring("a").codes(at)
            at = at + len(codes) if len(codes) else 0
            if at == 0:
                store["a"].clear()

    others = [threading.Thread(target=serve, args=(seed,)) for seed in range(threads)]
    others += [threading.Thread(target=keep)] if threads else []
    for thread in others:
        thread.start()
    waited = store.ring("a").waits(count, PAUSE)
    done.set()
    for thread in others:
        thread.join()
    percentiles = np.percentile(waited, [50, 99, 99.9, 99.99])
    names = ("ns_median", "ns_p99", "ns_p999", "ns_p9999")
    return {
        "threads": threads,
        "waits": count,
        **dict(zip(names, map(float, percentiles), strict=True)),
        "ns_most": int(waited.max()),
        "drafts_meanwhile": drafted[0],
        "aim_ns_p999": AIM,
    }
