"""Many prompts: plain loops, padded batches, ``generate_batch`` and ``generate_many``.

    python -m benchmarks many --json many.json
    python -m benchmarks many --text random --model FOLDER --dtype float32
    python -m benchmarks many --memory --ways "batches of 16" "16 rows"

The prompts are those of the public traces. Texts are greedy and end where the model ends them, or
with ``--text random`` are a fixed random sequence for each prompt. Padded batches are sorted by
length. Only every eighth prompt is generated alone. All ways take turns. With ``--memory`` each way
has a process instead, because memory depends on what ran there before: it is the most that the
process had during a run, above what it had with the model loaded and used (Linux only).
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import logging
import re
from collections.abc import Callable, Iterator
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from statistics import mean
from typing import Any

import torch
from transformers import LogitsProcessor

from benchmarks.harness import padded, show, write
from benchmarks.traces import PUBLIC
from ngramspec import SharedStore, Speculator, generate_many
from ngramspec.cli.options import CommandOptions
from ngramspec.measure.calls import take_turns
from ngramspec.measure.models import load
from ngramspec.measure.traces import read_traces

GROUPS = ("summary", "edit", "chat", "answer", "code")
MOST = 256  # new tokens of a text
MEAN = 100  # new tokens of a random text that is not cut off
READ = 64  # last tokens that the next one of a random text depends on: prompts end alike
PRIME = 2_147_483_647
WARM_UP = 4  # prompts of which each way generates a few tokens before it is timed
SAMPLE = 8  # every eighth prompt is also generated alone
Texts = dict[int, list[int]]  # the new tokens by prompt


def add_arguments(options: CommandOptions) -> None:
    options.path("--model", "FOLDER", "another model than the embedded one")
    options.dtype()
    options.add("--text", choices=("own", "random"), default="own")
    options.add("--batches", type=int, nargs="+", default=[4, 8, 16], help="rows of padded batches")
    options.add("--rows", type=int, nargs="+", default=[16], help="rows of generate_many")
    options.add("--ways", nargs="+", help="only those whose names contain one of these")
    options.count("--prompts", 64, "most prompts")
    options.count("--repeats", 1, "timed runs of each way")
    options.flag("--memory", "measure memory instead of time")
    options.json()


class RandomText(LogitsProcessor):  # type: ignore[misc]
    """Makes the next token a hash of the last ``READ``; one hash of ``MEAN`` ends the text."""

    def __init__(self, vocab: int, eos: int) -> None:
        self.vocab, self.eos = vocab, eos
        self.factors = torch.tensor([pow(40_503, each, PRIME) for each in range(READ)])

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        mixed = (input_ids[:, -READ:] * self.factors).sum(dim=1) % PRIME
        mixed = mixed * mixed % PRIME
        tokens = torch.where(mixed // self.vocab % MEAN == 0, self.eos, mixed % self.vocab)
        return scores.scatter(1, tokens[:, None], torch.finfo(scores.dtype).max)


def names_of(arguments: argparse.Namespace) -> dict[str, tuple[Any, ...]]:
    """The wanted ways by name: a method of Ways and its arguments."""
    ways: dict[str, tuple[Any, ...]] = {"one by one": (Ways.batches, 1, SAMPLE)}
    for rows in arguments.batches:
        ways[f"batches of {rows}"] = (Ways.batches, rows)
    if arguments.text == "own":  # it takes no processors of the caller
        ways["generate_batch"] = (Ways.continuous,)
    for rows in [*arguments.rows, "auto"]:
        ways[f"{rows} rows without drafts"] = (Ways.many, rows, "none")
        ways[f"{rows} rows"] = (Ways.many, rows)
        ways[f"{rows} rows with a store"] = (Ways.many, rows, "auto", True)
    parts = arguments.ways or [""]
    return {name: way for name, way in ways.items() if any(each in name for each in parts)}


class Ways:
    """The ways to generate for all prompts. Each is a method that returns the texts."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        loaded = load(arguments.model, arguments.dtype)
        self.model, self.eos = loaded.model, loaded.eos_ids
        traces = [each for each in read_traces(PUBLIC) if each.group in GROUPS]
        self.prompts = [each.prompt.tolist() for each in traces][: arguments.prompts]
        if arguments.model is not None:  # both have the same marks of turns
            text = load(None, "bfloat16").tokenizer.decode
            self.prompts = [loaded.encode(text(each), chat=False) for each in self.prompts]
        self.given: dict[str, Any] = {"do_sample": False, "max_new_tokens": MOST}
        self.given |= {"eos_token_id": self.eos, "pad_token_id": self.eos[0]}
        if arguments.text == "random":
            random = RandomText(self.model.config.vocab_size, self.eos[0])
            self.given["logits_processor"] = [random]

    def warm_up(self, call: Callable[[], Texts]) -> None:
        """Run a way for a few tokens."""
        prompts, given = self.prompts, self.given
        self.prompts, self.given = prompts[:WARM_UP], given | {"max_new_tokens": WARM_UP}
        call()
        self.prompts, self.given = prompts, given

    def batches(self, rows: int, every: int = 1) -> Texts:
        order = sorted(range(0, len(self.prompts), every), key=lambda at: len(self.prompts[at]))
        found: Texts = {}
        for first in range(0, len(order), rows):
            chosen = order[first : first + rows]
            inputs = padded([self.prompts[at] for at in chosen], self.eos[0])
            output = self.model.generate(**inputs, **self.given)
            for at, row in zip(chosen, output[:, inputs["input_ids"].shape[1] :], strict=True):
                found[at] = self.ended(row.tolist())
        return found

    def continuous(self) -> Texts:
        from transformers import GenerationConfig

        config = GenerationConfig(**self.given)
        found = self.model.generate_batch(self.prompts, generation_config=config)
        ordered = sorted(found.items(), key=lambda each: int(re.findall(r"\d+", each[0])[-1]))
        return {at: self.ended(output.generated_tokens) for at, (_, output) in enumerate(ordered)}

    def many(self, rows: int | str, drafter: str = "auto", stored: bool = False) -> Texts:
        found: Texts = {}
        stores = [SharedStore()["earlier"]] if stored else None
        run = generate_many(
            self.model,
            self.prompts,
            rows=rows,
            speculator=Speculator(drafter),
            stores=stores,
            **self.given,
        )
        for index, ids in run:
            found[index] = self.ended(ids[0].tolist()[len(self.prompts[index]) :])
        return found

    def ended(self, ids: list[int]) -> list[int]:
        """New tokens up to the end of the text."""
        ends = (at for at, token in enumerate(ids) if token in self.eos)
        return ids[: next(ends, len(ids) - 1) + 1]


def memory_of(arguments: argparse.Namespace, name: str) -> float:
    """The MiB that a way uses in this process."""
    ways = Ways(arguments)
    call, *given = names_of(arguments)[name]
    ways.warm_up(partial(call, ways, *given))
    gc.collect()
    ctypes.CDLL("libc.so.6").malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5")
    before = status("VmRSS")
    call(ways, *given)
    return (status("VmHWM") - before) / 1024


def status(field: str) -> int:
    """A field of the process's status, KiB."""
    found = re.findall(rf"{field}:\s*(\d+)", Path("/proc/self/status").read_text())
    return int(found[0])


def run(arguments: argparse.Namespace) -> int:
    logging.getLogger("ngramspec").setLevel(logging.ERROR)
    names = names_of(arguments)
    if arguments.memory:
        with get_context("spawn").Pool(1, maxtasksperchild=1) as pool:
            found = [pool.apply(memory_of, (arguments, name)) for name in names]
        rows = [{"way": name, "mib": mib} for name, mib in zip(names, found, strict=True)]
        lengths = None
    else:
        ways = Ways(arguments)
        lengths = [*map(len, ways.prompts)]
        calls = {name: partial(call, ways, *given) for name, (call, *given) in names.items()}
        for call in calls.values():
            ways.warm_up(call)
        rows = [*rows_of(take_turns(calls, arguments.repeats, warm_up=0, first=0))]
    for row in rows:
        show(**{name: value for name, value in row.items() if name != "seconds"})
    write(arguments, {"rows": rows, "prompts": lengths})
    return 0


def rows_of(turns: Any) -> Iterator[dict[str, Any]]:
    """What was measured of each way; ``same`` is the share of texts equal to a complete way's."""
    all_texts = [results[-1] for results in turns.results.values()]
    reference: Texts = max(all_texts, key=len)  # of the first way that has all prompts
    speeds = {name: len(turns.last(name)) / turns.median(name) for name in turns.seconds}
    plain = [speeds[name] for name in speeds if "rows" not in name]
    for name, speed in speeds.items():
        texts = turns.last(name)
        yield {
            "way": name,
            "per_second": speed,
            "over_best_plain": speed / max(plain, default=speed),
            "tokens": mean(map(len, texts.values())),
            "same": mean(texts[at] == text for at, text in reference.items() if at in texts),
            "seconds": turns.seconds[name],
        }
