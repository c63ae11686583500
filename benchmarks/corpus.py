"""The cost of a corpus: building, opening, looking up.

    python -m benchmarks corpus --size 5_000_000 --json corpus.json

The text is the source of Python's own library, in the embedded model's tokens. Where it is too
short, it is repeated with one token in fifty replaced. Times are of one look-up called from Python:
at most 32 places of the longest matches of the last 64 tokens.
"""

from __future__ import annotations

import argparse
import json
import resource
import tempfile
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from time import perf_counter, perf_counter_ns
from typing import Any

import numpy as np

from benchmarks.harness import write
from benchmarks.texts import library
from ngramspec.cli.options import Options
from ngramspec.measure.models import load_tokenizer, locate
from ngramspec.stores import Corpus

CONTEXTS = 100_000
REPLACED = 0.02


def add_arguments(options: Options) -> None:
    options.add("--size", type=int, default=10_000_000)
    options.json()


def run(arguments: argparse.Namespace) -> int:
    with ProcessPoolExecutor(1, get_context("spawn")) as other:  # its memory does not count
        tokens, lengths = other.submit(library_tokens, arguments.size).result()
    documents = list(grown(tokens, lengths, arguments.size))
    with tempfile.TemporaryDirectory() as folder:
        result = measure(documents, Path(folder) / "c.ngc")
    result["real_tokens"] = len(tokens)
    print(json.dumps(result, indent=1))
    write(arguments, result)
    return 0


def library_tokens(size: int) -> tuple[Any, Any]:
    """At least ``size`` ids of the library's source, if it has as much, and the files' lengths."""
    tokenizer = load_tokenizer(locate(None))
    documents: list[Any] = []
    total = 0
    for text in library():
        documents.append(np.array(tokenizer(text)["input_ids"], np.int32))
        total += len(documents[-1])
        if total >= size:
            break
    return np.concatenate(documents), np.array([len(each) for each in documents])


def grown(tokens: Any, lengths: Any, size: int) -> Iterator[Any]:
    """Documents of ``size`` tokens in all."""
    rng = np.random.default_rng(0)
    total, again = 0, False
    while True:
        at = 0
        for length in lengths.tolist():
            document = tokens[at : at + length].astype(np.int32)
            at += length
            if again:
                places = rng.random(length) < REPLACED
                document[places] = rng.choice(tokens, int(places.sum()))
            yield document
            total += length
            if total >= size:
                return
        again = True


def measure(documents: list[Any], path: Path) -> dict[str, Any]:
    """Build, open, look up."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    begin = perf_counter()
    Corpus.build(documents, path)
    seconds = perf_counter() - begin
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    opening = []
    for _ in range(20):
        begin = perf_counter()
        corpus = Corpus.open(path)
        opening.append((perf_counter() - begin) * 1000)
    info = corpus.info()
    return {
        "tokens": info.tokens,
        "documents": info.documents,
        "width": info.width,
        "bytes_a_token": info.bytes / info.tokens,
        "build_us_a_token": seconds / info.tokens * 1e6,
        "memory_bytes_a_token": (peak - before) * 1024 / info.tokens,
        "open_ms_median": float(np.median(opening)),
        "look_up": look_ups(corpus, documents),
    }


def look_ups(corpus: Corpus, documents: list[Any]) -> dict[str, Any]:
    """Microseconds of look-ups of real contexts; in half of them one of the last tokens differs."""
    rng = np.random.default_rng(1)
    contexts: list[Any] = []
    while len(contexts) < CONTEXTS:
        document = documents[rng.integers(len(documents))]
        if len(document) < 80:
            continue
        at = int(rng.integers(64, len(document)))
        context = document[at - 64 : at].copy()
        if len(contexts) % 2:
            context[-int(rng.integers(1, 16))] = documents[0][rng.integers(len(documents[0]))]
        contexts.append(context)
    index: Any = corpus.index
    ask = index.find
    for context in contexts:  # warm
        ask(context)
    times, lengths = [], []
    for context in contexts:
        begin = perf_counter_ns()
        found = ask(context)
        times.append(perf_counter_ns() - begin)
        lengths.append(found[0][1] if found else 0)
    return {
        "contexts": CONTEXTS,
        "us_median": float(np.median(times)) / 1000,
        "us_p99": float(np.percentile(times, 99)) / 1000,
        "match_length_quartiles": np.percentile(lengths, (25, 50, 75)).tolist(),
    }
