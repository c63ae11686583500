"""The cost of a corpus or of a shared store: adding text, and looking it up.

    python -m benchmarks stores --size 5000000 --json corpus.json
    python -m benchmarks stores --mib 16 --json shared_store.json

A corpus has the source of Python's own library, in the embedded model's tokens. The outputs of the
traces fill a shared store's namespace and wrap around in it. Where a text is too short, it is
repeated with one token in fifty replaced. Times are of one look-up called from Python: at most 32
places of the longest matches of the last 64 tokens. In half of them one of these tokens is another.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from time import perf_counter, perf_counter_ns
from typing import Any

import numpy as np

from benchmarks.harness import add_traces, write
from benchmarks.texts import library
from benchmarks.traces import PUBLIC
from ngramspec.cli.options import CommandOptions
from ngramspec.draft import Int32
from ngramspec.measure.models import load_tokenizer, locate
from ngramspec.measure.traces import read_traces
from ngramspec.stores import Corpus, SharedStore

REPLACED = 0.02
BYTES_PER_TOKEN = 28  # of a namespace, about


def add_arguments(options: CommandOptions) -> None:
    options.count("--size", 10_000_000, "tokens of the corpus")
    options.add("--mib", type=int, help="measure a shared store whose namespace is as large")
    add_traces(options, "of the shared store", PUBLIC)
    options.count("--contexts", 100_000, "look-ups")
    options.json()


def run(arguments: argparse.Namespace) -> int:
    measure = corpus if arguments.mib is None else shared_store
    result = measure(arguments)
    print(json.dumps(result, indent=1))
    write(arguments, result)
    return 0


def corpus(arguments: argparse.Namespace) -> dict[str, Any]:
    """Build, open, look up."""
    source = library_tokens(arguments.size)
    documents = list(grown(source, arguments.size))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "c.ngc"
        begin = perf_counter()
        Corpus.build(documents, path)
        seconds = perf_counter() - begin
        opened = Corpus.open(path)
        info, index = opened.info(), opened.index
        return {
            "tokens": info.tokens,
            "documents": info.documents,
            "bytes_a_token": info.bytes / info.tokens,
            "build_us_a_token": seconds / info.tokens * 1e6,
            "look_up": look_ups(index.find, source, arguments.contexts),
        }


def shared_store(arguments: argparse.Namespace) -> dict[str, Any]:
    """Add more text than there is room for, look up."""
    outputs = [trace.output for trace in read_traces(arguments.traces)]
    size = arguments.mib << 20
    store = SharedStore(size, namespace_bytes=size)
    namespace, tokens, seconds = store["a"], 0, 0.0
    for text in grown(outputs, int(1.2 * size / BYTES_PER_TOKEN)):
        begin = perf_counter()
        namespace.add(text)
        seconds += perf_counter() - begin
        tokens += len(text)
    held = namespace.statistics().tokens
    return {
        "add": {"tokens": tokens, "held": held, "us_a_token": seconds / tokens * 1e6},
        "look_up": look_ups(namespace.index.find, outputs, arguments.contexts),
        "bytes": store.sizeof(),
    }


def library_tokens(size: int) -> list[Int32]:
    """At least ``size`` ids of the library's source, if it has as much, file by file."""
    tokenizer = load_tokenizer(locate(None))
    documents: list[Int32] = []
    total = 0
    for text in library():
        documents.append(np.array(tokenizer(text)["input_ids"], np.int32))
        total += len(documents[-1])
        if total >= size:
            break
    return documents


def grown(documents: Sequence[Int32], size: int) -> Iterator[Int32]:
    """Documents of ``size`` tokens in all; from the second round on with replaced tokens."""
    rng, alphabet = np.random.default_rng(0), np.concatenate(documents)
    total, again = 0, False
    while total < size:
        for document in documents:
            text = document.copy()
            if again:
                places = rng.random(len(text)) < REPLACED
                text[places] = rng.choice(alphabet, int(places.sum()))
            yield text
            total += len(text)
            if total >= size:
                return
        again = True


def look_ups(
    find: Callable[[Int32], Sequence[Any]], documents: Sequence[Int32], count: int
) -> dict[str, Any]:
    """Microseconds of look-ups of real contexts, after one round that is not counted."""
    rng, text = np.random.default_rng(1), np.concatenate(documents)
    contexts = []
    for number in range(count):
        at = int(rng.integers(64, len(text)))
        contexts.append(text[at - 64 : at].copy())
        if number % 2:
            contexts[-1][-int(rng.integers(1, 16))] = rng.choice(text)
    for context in contexts:
        find(context)
    times, lengths = [], []
    for context in contexts:
        begin = perf_counter_ns()
        found = find(context)
        times.append(perf_counter_ns() - begin)
        lengths.append(found[0][1] if found else 0)
    return {
        "contexts": count,
        "us_median": float(np.median(times)) / 1000,
        "us_p99": float(np.percentile(times, 99)) / 1000,
        "match_length_quartiles": np.percentile(lengths, (25, 50, 75)).tolist(),
    }
