"""Answers that are sampled again in a later epoch, drafted from those of the epoch before.

    python -m benchmarks rollouts --model FOLDER --traces rollouts.jsonl --json rollouts.json

As in reinforcement learning, each of 24 prompts gets several answers in each of two epochs, at
temperatures 1 and 0.7, without other settings of sampling. They are recorded in the file unless it
exists. Then the second epoch's answers are replayed, on the costs of a CPU and of a GPU: without
the first epoch's, with those to the same prompt ("own") or to all ("together") as a store, and by
an oracle that always drafts from the place in its own that agrees longest, of those after the last
token.
"""

from __future__ import annotations

import argparse
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from itertools import chain, islice
from typing import Any

import numpy as np
import torch

from benchmarks.harness import add_traces, padded, show_and_write
from benchmarks.traces import EDITS, functions, passages
from ngramspec.cli.options import CommandOptions
from ngramspec.draft import Float32
from ngramspec.drafters import build_drafter
from ngramspec.measure.models import load
from ngramspec.measure.replay import Known, Player, ReplayPlan, cost_curve
from ngramspec.measure.traces import Trace, read_traces, write_traces
from ngramspec.stores import SharedStore

Place = tuple[list[int], int]  # a text, and where in it a draft begins
TEMPERATURES, EPOCHS = (1.0, 0.7), 2
TREE, CURVES = 64, ("cpu", "gpu")
BEFORE = 16  # of the prompt's last tokens, in front of each answer in the store
CODE = (
    "Write a Python function that returns the longest common prefix of a list of strings.",
    "Write a Python function that merges overlapping intervals.",
    "Write a Python class for a least-recently-used cache, with get and put.",
    "Write a Python function that parses a CSV line with quoted fields, without the csv module.",
    "Write a Python function that checks whether a string of brackets is balanced.",
    "Write a Python function that finds the k most frequent words in a text.",
    "Write a Python function that rotates a square matrix by 90 degrees in place.",
    "Write a Python function that converts a Roman numeral to an integer.",
)
MATHEMATICS = (
    "A baker makes 12 trays of 18 rolls. He sells 7 rolls in every 9. How many rolls are left?",
    "A train leaves at 9:40 and travels 210 km at 84 km/h. When does it arrive?",
    "Anna has three times as many stamps as Ben. Together they have 132. How many has each?",
    "A jacket costs 80 euros. It is reduced by 15 percent and then by a further 10 percent. What is"
    " its price?",
    "A tank fills in 6 hours through one pipe and in 4 hours through another. How long do both"
    " take?",
    "The sum of four consecutive even numbers is 204. What are they?",
    "A rectangle is 5 m longer than wide. Its perimeter is 46 m. What is its area?",
    "Of 240 pupils, 5/8 play a sport, and a third of those play football. How many play football?",
)


def add_arguments(options: CommandOptions) -> None:
    options.path("--model", "FOLDER", "another model than the embedded one")
    options.dtype()
    add_traces(options)
    options.count("--answers", 8, "answers to a prompt in an epoch")
    options.count("--batch", 6, "prompts whose answers are recorded together")
    options.count("--max-new-tokens", 256, "most new tokens of each answer")
    options.json()


def run(arguments: argparse.Namespace) -> int:
    if not arguments.traces.exists():
        write_traces(arguments.traces, recorded(arguments))
    traces = read_traces(arguments.traces)
    return show_and_write(arguments, rows(traces))


def prompts() -> Iterator[tuple[str, str]]:
    """The group and the text of each prompt."""
    yield from (("code", text) for text in CODE)
    yield from (("mathematics", f"{text} Think step by step.") for text in MATHEMATICS)
    for _, _, passage in islice(passages(), 4):
        yield "summary", f"Summarize this text in two sentences:\n\n{passage}"
    for at, (_, code, _) in enumerate(islice(functions(), 4)):
        yield "edit", f"{EDITS[at % len(EDITS)]}\n\n```python\n{code}\n```"


def recorded(arguments: argparse.Namespace) -> Iterator[Trace]:
    """Sampled answers of all epochs, in padded batches."""
    loaded = load(arguments.model, arguments.dtype)
    known = [(group, loaded.encode(text, chat=True)) for group, text in prompts()]
    order = sorted(range(len(known)), key=lambda at: len(known[at][1]))
    eos, answers = loaded.eos_ids, arguments.answers
    given: dict[str, Any] = {"do_sample": True, "top_k": 0, "top_p": 1.0, "repetition_penalty": 1.0}
    given |= {"max_new_tokens": arguments.max_new_tokens}
    given |= {"eos_token_id": eos, "pad_token_id": eos[0]}
    for temperature in TEMPERATURES:
        for epoch in range(EPOCHS):
            torch.manual_seed(1000 * epoch + int(10 * temperature))
            for first in range(0, len(order), arguments.batch):
                print(".", end="", flush=True, file=sys.stderr)
                chosen = [
                    at for at in order[first : first + arguments.batch] for _ in range(answers)
                ]
                inputs = padded([known[at][1] for at in chosen], eos[0])
                output = loaded.model.generate(**inputs, temperature=temperature, **given)
                texts = output[:, inputs["input_ids"].shape[1] :].tolist()
                for number, (at, text) in enumerate(zip(chosen, texts, strict=True)):
                    ends = (place for place, token in enumerate(text) if token in eos)
                    ids = np.array(text[: next(ends, len(text) - 1) + 1], np.int32)
                    group, prompt = known[at]
                    yield Trace(
                        f"{group} {temperature}",
                        f"{at} {number % answers}",
                        np.array(prompt, np.int32),
                        ids,
                        session=f"epoch {epoch}",
                    )


class Answers(Known):
    """Answers of the first epoch in a store, which is new for each trace, as traces add to it.

    ``own``: only those to the trace's prompt.
    """

    def __init__(self, first: dict[str, list[Trace]], *, own: bool) -> None:
        super().__init__()
        self._first, self._own, self._count = first, own, 0

    def which(self, trace: Trace) -> str:
        self._count += 1
        self._trace = trace
        return str(self._count)

    def store(self, which: str) -> Any:
        store = SharedStore(write="all")["epoch"]
        own = [self._first[prompt_of(self._trace)]] if self._own else self._first.values()
        for each in chain.from_iterable(own):
            store.add(np.concatenate((each.prompt[-BEFORE:], each.output)))
        return store


def prompt_of(trace: Trace) -> str:
    """The number of a trace's prompt."""
    return trace.id.partition(" ")[0]


def rows(traces: Sequence[Trace]) -> Iterator[dict[str, Any]]:
    """Tokens per call and per cost of the second epoch, by temperature and cost curve."""
    for curve in CURVES:
        cost = cost_curve(curve, TREE)
        for temperature in TEMPERATURES:
            own = [each for each in traces if each.group.endswith(f" {temperature}")]
            first: dict[str, list[Trace]] = defaultdict(list)
            for each in own:
                if each.session == "epoch 0":
                    first[prompt_of(each)].append(each)
            second = [each for each in own if each.session == "epoch 1"]
            row: dict[str, Any] = {"curve": curve, "temperature": temperature}
            kinds: dict[str, Known | None] = {"without": None, "own": Answers(first, own=True)}
            kinds["together"] = Answers(first, own=False)
            for name, known in kinds.items():
                plan = ReplayPlan(cost, gamma_max=TREE, tree=True)
                found = Player(build_drafter("auto"), plan, known).play(second).groups
                counts = [(each.emitted, each.target_calls, each.cost) for each in found.values()]
                row |= ratios(name, counts)
                for group, count in zip(found, counts, strict=True):
                    row |= ratios(f"{name}_{group.split()[0]}", [count])
            counts = [ideal(each, places_in(first[prompt_of(each)]), cost) for each in second]
            yield row | ratios("oracle", counts)


def places_in(answers: Sequence[Trace]) -> Callable[[int], Sequence[Place]]:
    """The places after each occurrence of a token in answers."""
    places: dict[int, list[Place]] = defaultdict(list)
    for answer in (each.output.tolist() for each in answers):
        for at, token in enumerate(answer[:-1]):
            places[token].append((answer, at + 1))
    return lambda token: places[token]


def ideal(
    trace: Trace, places: Callable[[int], Sequence[Place]], cost: Float32
) -> tuple[int, int, float]:
    """The tokens, calls and cost of an oracle that drafts from the best place after a token."""
    text, at, calls, spent = trace.output.tolist(), 1, 0, 0.0
    while at < len(text):
        most = min(TREE, len(text) - at - 1)
        agree = (
            agreement(answer[begin : begin + most], text[at : at + most])
            for answer, begin in places(text[at - 1])
        )
        longest = max(agree, default=0)
        drafted = max(range(longest + 1), key=lambda n: (n + 1) / cost[n + 1])
        calls, spent, at = calls + 1, spent + float(cost[drafted + 1]), at + drafted + 1
    return len(text) - 1, calls, spent


def agreement(one: Sequence[int], other: Sequence[int]) -> int:
    """How many tokens two texts begin with in common."""
    differ = (at for at, pair in enumerate(zip(one, other, strict=False)) if pair[0] != pair[1])
    return next(differ, min(len(one), len(other)))


def ratios(name: str, counts: Sequence[tuple[int, int, float]]) -> dict[str, float]:
    """Tokens per call and per cost, from tokens, calls and costs."""
    tokens, calls, cost = map(sum, zip(*counts, strict=True))
    return {f"{name}_per_call": tokens / calls, f"{name}_per_cost": tokens / cost}
