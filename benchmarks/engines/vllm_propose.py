"""How long vLLM's runner waits for drafts: ``propose`` for batches of recorded outputs, no server.

    python -m benchmarks vllm_propose --traces traces.jsonl --json vllm_propose.json

Rows have about ``--length`` tokens. They are concatenated recorded prompts and outputs, and end
with a prompt. The recorded output takes the target's part. Drafts and costs are those of a server:
the steps' times come from a clock that a step moves by what its rows and drafted tokens would cost
on a CPU. Measured is the whole call, conversion from vLLM's arrays and to lists included. Traces
are those of ``ngramspec record``, with token ids below ``--vocab``.
"""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import dataclass
from typing import Any

import numpy as np

from benchmarks import renderers
from benchmarks.harness import add_traces, write
from ngramspec.cli.options import CommandOptions
from ngramspec.draft import Int32
from ngramspec.engines.row_options import EngineOptions
from ngramspec.engines.rows import Rows
from ngramspec.engines.vllm import propose
from ngramspec.measure.traces import read_traces

K = 24
MAX_NEW_TOKENS = 4096  # of each row
WARM = 5  # first calls, which read the texts, are not counted


@dataclass
class Clock:
    """A simulated clock, in seconds, so that no figure depends on this machine's load."""

    now: float = 0.0

    def __call__(self) -> float:
        return self.now


class Batch:
    """Rows as vLLM's runner holds them, and the recorded outputs that they go on with."""

    def __init__(self, texts: list[tuple[list[int], list[int]]]) -> None:
        self.rows = len(texts)
        self.outputs = [output for _, output in texts]
        self.at = [1] * self.rows
        self.lengths: Int32 = np.array([len(text) + 1 for text, _ in texts], np.int32)
        self.tokens: Int32 = np.zeros(
            (self.rows, int(self.lengths.max()) + MAX_NEW_TOKENS), np.int32
        )
        self.sampled = [[output[0]] for output in self.outputs]
        for row, (text, output) in enumerate(texts):
            self.tokens[row, : len(text) + 1] = [*text, output[0]]

    def step(self, drafts: list[list[int]]) -> None:
        """Commit of each draft the prefix that was recorded, and the token after it."""
        for row, draft in enumerate(drafts):
            new: list[int] = []
            for guess in [*draft, None]:
                output = self.outputs[row]
                new.append(output[self.at[row] % len(output)])
                self.at[row] += 1
                if guess != new[-1]:
                    break
            self.tokens[row, self.lengths[row] : self.lengths[row] + len(new)] = new
            self.lengths[row] += len(new)
            self.sampled[row] = new


def add_arguments(options: CommandOptions) -> None:
    add_traces(options)
    options.add("--rows", nargs="+", type=int, default=[1, 4, 8, 16])
    options.add("--length", type=int, default=2000, help="tokens of a row")
    options.add("--steps", type=int, default=120)
    options.add("--repeats", type=int, default=5)
    options.add("--vocab", type=int, default=49152)
    options.add("--options", type=json.loads, default={}, help="of ngramspec, as JSON")
    options.json()


def run(args: argparse.Namespace) -> int:
    """Read the command line."""
    known = [trace for trace in read_traces(args.traces) if len(trace.prompt) > 200]
    traces = [(trace.prompt.tolist(), trace.output.tolist()) for trace in known]
    figures = [measured(rows, traces, args) for rows in args.rows]
    print(renderers.vllm_propose({"figures": figures}))
    write(args, {"k": K, "figures": figures})
    return 0


def measured(
    rows: int, traces: list[tuple[list[int], list[int]]], args: argparse.Namespace
) -> dict[str, Any]:
    """Times of the calls for batches of ``rows`` rows, in microseconds."""
    runs = [one_run(rows, traces, args, seed) for seed in range(args.repeats)]
    medians = [float(np.median(times)) for times, _ in runs]
    everything = np.concatenate([times for times, _ in runs])
    stats = [stats for _, stats in runs]
    return {
        "rows": rows,
        "median_us": float(np.median(medians)),
        "medians_us": medians,
        "p90_us": float(np.percentile(everything, 90)),
        "drafted_a_row": sum(s.drafted for s in stats) / sum(s.row_steps for s in stats),
        "tokens_a_row_step": sum(s.emitted for s in stats) / sum(s.row_steps for s in stats),
    }


def one_run(
    rows: int, traces: list[tuple[list[int], list[int]]], args: argparse.Namespace, seed: int
) -> tuple[np.ndarray[Any, Any], Any]:
    """One run of ``steps`` steps: each call's microseconds, and the counts."""
    rng = np.random.default_rng(seed)
    batch = Batch(texts_of(rows, traces, args.length, rng))
    clock = Clock()
    options = EngineOptions.read(args.options, "--options")
    drafts_of: Rows = options.rows(
        K,
        vocab=args.vocab,
        max_len=batch.tokens.shape[1],
        device="cpu",
        dtype="float32",
        clock=clock,
    )
    times = []
    for _ in range(args.steps):
        began = time.perf_counter()
        drafts = propose(drafts_of, batch.sampled, batch.lengths, batch.tokens)
        times.append(1e6 * (time.perf_counter() - began))
        width = sum(map(len, drafts)) / rows
        clock.now += 0.03 * (1 + 0.1 * rows) * (1 + 0.04 * width) * (1 + 0.02 * rng.random())
        batch.step(drafts)
    assert drafts_of.stats.faults == 0, "a draft was lost"
    return np.array(times[WARM:]), drafts_of.stats


def texts_of(
    rows: int, traces: list[tuple[list[int], list[int]]], length: int, rng: np.random.Generator
) -> list[tuple[list[int], list[int]]]:
    """(tokens so far, tokens to come) of each row: other traces, then one's prompt."""
    texts = []
    for row in range(rows):
        prompt, output = traces[(row * 7) % len(traces)]
        prompt = prompt[-400:]
        text: list[int] = []
        other = int(rng.integers(len(traces)))
        while len(text) < length - len(prompt):
            text += [*traces[other][0], *traces[other][1]]
            other = (other + 1) % len(traces)
        texts.append((text[: length - len(prompt)] + prompt, output))
    return texts
