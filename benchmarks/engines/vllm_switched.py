"""The value of drafts in vLLM: all methods in turn in one server, which can change its method.

Server processes vary by up to 10 % in the speed of their steps, so that servers compared with each
other differ by more than their drafts. Here one process uses the method that a file names. Each
method is compared with "nothing", which is asked for drafts and has none::

    python -m benchmarks vllm_switched --model FOLDER --prompts prompts.jsonl --json switched.json

"suffix" and "forgetful" are vLLM's suffix decoding with its memory of earlier requests and without,
"shared" is ngramspec with a shared store.
"""

from __future__ import annotations

import argparse
import copy
import json
import os
import tempfile
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from statistics import geometric_mean
from typing import Any

import numpy as np

from benchmarks.engines.server import serve
from benchmarks.engines.vllm_server import (
    OPTIONS,
    PACKAGES,
    ask_all,
    read_prompts,
    take_fresh,
)
from ngramspec.draft import Int32
from ngramspec.engines.vllm import NgramspecProposer
from ngramspec.measure.machine import versions
from ngramspec.measure.turns import take_turns

CACHED = {"suffix": 10_000, "forgetful": 0}  # earlier requests that suffix decoding remembers
METHODS = ("nothing", "suffix", "forgetful", "ngramspec", "shared")
FILE = "VLLM_SWITCHED"  # variable with the path of the file that names the method
DEPTH = 24  # of suffix trees, as in vLLM's own method, like the probability
LEAST = 0.1


class Suffix:
    """Suffix decoding as vLLM calls it; requests are identified by their prompts."""

    def __init__(self, k: int, max_len: int, cached: int) -> None:
        from arctic_inference.suffix_decoding import SuffixDecodingCache

        self.cache = SuffixDecodingCache(max_tree_depth=DEPTH, max_cached_requests=cached)
        self._k, self._max_len = k, max_len
        self._prompts: dict[int, Int32] = {}  # of live requests
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
        for text, length, new in zip(tokens, lengths.tolist(), sampled, strict=False):
            if not len(new):
                drafts.append([])
                continue
            request = self._request(text, length, len(new), seen)
            seen.add(request)
            self.cache.add_active_response(request, list(map(int, new)))
            draft = self.cache.speculate(
                request,
                text[max(0, length - DEPTH) : length],
                max_spec_tokens=min(self._k, self._max_len - length - 1),
                max_spec_factor=1.0,
                min_token_prob=LEAST,
            )
            drafts.append(list(draft.token_ids))
        for request in self._prompts.keys() - seen:
            self.cache.stop_request(request)
            del self._prompts[request]
        return drafts

    def _request(self, text: Int32, length: int, new: int, seen: set[int]) -> int:
        for request, prompt in self._prompts.items():
            n = len(prompt)
            if request not in seen and length > n and np.array_equal(text[:n], prompt):
                return request
        self._count += 1
        prompt = self._prompts[self._count] = text[: length - new].copy()
        self.cache.start_request(self._count, prompt)
        return self._count


class Switched:
    """A proposer for vLLM's method ``custom_class`` that asks the current method."""

    def __init__(self, vllm_config: Any) -> None:
        k = vllm_config.speculative_config.num_speculative_tokens
        max_len = vllm_config.model_config.max_model_len
        self.methods: dict[str, Any] = {}
        for name, options in OPTIONS.items():
            config = copy.copy(vllm_config)
            config.additional_config = {"ngramspec": options}
            self.methods[name] = NgramspecProposer(config)
        self.methods |= {name: Suffix(k, max_len, cached) for name, cached in CACHED.items()}
        self._file = Path(os.environ[FILE])

    def load_model(self, *args: Any, **kwargs: Any) -> None:
        """There is none to load."""

    def propose(self, *args: Any, **kwargs: Any) -> list[list[int]]:
        """As ``NgramspecProposer.propose``."""
        drafts: list[list[int]] = self.methods[self._file.read_text()].propose(*args, **kwargs)
        return drafts


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--prompts", type=Path, required=True)
    parser.add_argument("--concurrency", nargs="+", type=int, default=[4, 16])
    parser.add_argument("--repeats", type=int, default=6)
    parser.add_argument("--k", type=int, default=24)
    parser.add_argument("--tokens", type=int, default=48)
    parser.add_argument("--most", type=int, default=800, help="length of a prompt, as it is given")
    parser.add_argument("--core", default="0")
    parser.add_argument("--json", type=Path, required=True)


def run(args: argparse.Namespace) -> int:
    """Read the command line, measure, and print the ratios."""
    with tempfile.TemporaryDirectory() as folder:
        switch = Path(folder) / "method"
        os.environ[FILE] = str(switch)
        runs = measure(args, switch)
    print(table(runs))
    return 0


def measure(args: argparse.Namespace, switch: Path) -> list[dict[str, Any]]:
    """The figures, also in the file: the same fresh prompts by all methods, for each repeat."""
    speculative = {
        "method": "custom_class",
        "model": f"{__name__}.Switched",
        "num_speculative_tokens": args.k,
    }
    prompts, used = read_prompts(args.prompts, args.most), set[str]()
    runs: list[dict[str, Any]] = []
    result = {"k": args.k, "tokens": args.tokens, "versions": versions(PACKAGES), "runs": runs}
    log, here = switch.with_suffix(".log"), Path(__file__).parents[2]
    switch.write_text("nothing")
    with serve(args.model, speculative, cores=args.core, log=log, path=here) as server:
        for name in METHODS:  # the first steps are slow
            switch.write_text(name)
            ask_all(server, ["The first words are not measured:"] * 4, 4, 12)
        for repeat in range(args.repeats):
            for kind in ("mixed", "copies"):
                for at_once in args.concurrency:
                    fresh = take_fresh(prompts, used, kind, at_once)
                    texts = [each["prompt"] for each in fresh]

                    def ask(name: str, texts: list[Any] = texts, at_once: int = at_once) -> Any:
                        switch.write_text(name)
                        return ask_all(server, texts, at_once, args.tokens)

                    calls = {name: partial(ask, name) for name in METHODS}
                    turns = take_turns(calls, 1, warm_up=0, first=repeat)
                    figures = {name: turns.last(name) for name in METHODS}
                    names = [each["id"] for each in fresh]
                    run = {"kind": kind, "concurrency": at_once, "prompts": names}
                    runs.append(run | {"figures": figures})
                    args.json.write_text(json.dumps(result, indent=1) + "\n")
    return runs


def table(runs: list[dict[str, Any]]) -> str:
    """Speedups over no drafts, geometric means over the repeats, as a Markdown table."""
    lines = ["| prompts, at once | " + " | ".join(METHODS[1:]) + " |", "|---|---|---|---|---|"]
    for kind, at_once in sorted({(run["kind"], run["concurrency"]) for run in runs}):
        cell = f"| {kind}, {at_once} |"
        of_cell = [r["figures"] for r in runs if (r["kind"], r["concurrency"]) == (kind, at_once)]
        for name in METHODS[1:]:
            speed = "tokens_per_second"
            ratios = [each[name][speed] / each["nothing"][speed] for each in of_cell]
            cell += f" {geometric_mean(ratios):.3f} |"
        lines.append(cell)
    return "\n".join(lines)
