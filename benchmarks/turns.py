"""Completions that several users wait for: in turns, step by step, or as one batch.

    python benchmarks/turns.py --traces traces.jsonl --dtype bfloat16 --json turns.json

The embedded model continues recorded prompts of a group, greedily, without an end of sequence, for
2 and for 4 users. All ask at the same moment, the best case for batches. "turns" steps a session
of ``stepwise.open_generation`` for each user in turn; "joint" runs these sessions' steps in one
forward for all, as the server does; "batch" is one call of ``generate``; "queue" answers one user
after the other. All times begin when the users ask. Every
run has a new Speculator. What counts are the medians of the ratios of one repeat, turns divided by
the other way: above 1 the other way is faster.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from statistics import mean, median
from time import perf_counter
from typing import Any

import torch
from first_look import machine

from ngramspec import Speculator, StepEvent, generate
from ngramspec.bench.models import load
from ngramspec.bench.traces import read_traces
from ngramspec.stepwise import JointSteps, open_generation

STEPS: dict[int, JointSteps] = {}  # of each model, as a server keeps them
FIGURES = ("total", "mean_finish", "worst_finish", "mean_first", "worst_first")


def main() -> None:
    """Measure, print a table, write the JSON."""
    parser = argparse.ArgumentParser(description="turns, batches and queues, in one process")
    parser.add_argument("--traces", type=Path, required=True)
    parser.add_argument("--group", default="code_completion")
    parser.add_argument("--dtype", default="bfloat16", choices=["bfloat16", "float32"])
    parser.add_argument("--longest", type=int, default=400, help="leave longer prompts out")
    parser.add_argument("--users", type=int, nargs="+", default=[2, 4])
    parser.add_argument("--sets", type=int, default=3, help="of prompts, one for each user")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--warm-up", type=int, default=1, help="repeats before, not counted")
    parser.add_argument("--max-new-tokens", type=int, default=96)
    parser.add_argument(
        "--ways", nargs="+", default=["turns", "joint", "batch"], choices=sorted(WAYS)
    )
    parser.add_argument("--json", type=Path, help="where to write the raw times")
    arguments = parser.parse_args()
    if "turns" not in arguments.ways:
        parser.error("--ways must have turns, which the others are compared with")
    model = load(None, arguments.dtype).model
    prompts = prompts_of(arguments)
    rows = []
    for users in arguments.users:
        for number in range(arguments.sets):
            chosen = prompts[number * users : (number + 1) * users]
            row = {"users": users, "set": number, **measure(model, chosen, arguments)}
            rows.append(row)
            show(row)
        show_all([row for row in rows if row["users"] == users])
    if arguments.json:
        settings = {name: str(value) for name, value in vars(arguments).items()}
        result = {"settings": settings, "machine": machine(), "rows": rows}
        arguments.json.write_text(json.dumps(result, indent=1) + "\n")


def prompts_of(arguments: argparse.Namespace) -> list[list[int]]:
    """Enough prompts for every set, as they come.

    Raises:
        ValueError: there are too few.
    """
    traces = [each for each in read_traces(arguments.traces) if each.group == arguments.group]
    prompts = [each.prompt.tolist() for each in traces if len(each.prompt) <= arguments.longest]
    needed = arguments.sets * max(arguments.users)
    if len(prompts) < needed:
        raise ValueError(f"{needed} prompts are needed, got {len(prompts)} of {arguments.group!r}")
    return prompts


class Times:
    """When each user's tokens came, in seconds since all asked.

    Attributes:
        tokens: of each user, so far.
        first, finish: seconds; None: not yet.
    """

    def __init__(self, users: int, new: int) -> None:
        self._begin, self._new = perf_counter(), new
        self.tokens: list[list[int]] = [[] for _ in range(users)]
        self.first: list[float | None] = [None] * users
        self.finish: list[float | None] = [None] * users

    def add(self, user: int, tokens: list[int]) -> None:
        """Note that a user got tokens just now."""
        now = perf_counter() - self._begin
        self.tokens[user] += tokens[: self._new - len(self.tokens[user])]
        if self.first[user] is None:
            self.first[user] = now
        if len(self.tokens[user]) == self._new and self.finish[user] is None:
            self.finish[user] = now

    def figures(self) -> dict[str, float]:
        """Seconds by FIGURES, once all have finished."""
        total = perf_counter() - self._begin
        first = [each for each in self.first if each is not None]
        finish = [each for each in self.finish if each is not None]
        assert len(first) == len(finish) == len(self.tokens)
        every = (total, mean(finish), max(finish), mean(first), max(first))
        return dict(zip(FIGURES, every, strict=True))


def options(new: int) -> dict[str, Any]:
    """Arguments of ``generate`` that all ways have in common."""
    return {"do_sample": False, "max_new_tokens": new, "eos_token_id": None, "pad_token_id": 0}


def opened(model: Any, prompt: list[int], speculator: Speculator, new: int) -> Any:
    """A user's session."""
    ids = torch.tensor([prompt])
    mask = torch.ones_like(ids)
    return open_generation(model, ids, speculator=speculator, attention_mask=mask, **options(new))


def turns(model: Any, prompts: list[list[int]], new: int) -> Times:
    """Sessions that are stepped in turn; the first step of each is its prefill."""
    speculator = Speculator()
    times = Times(len(prompts), new)
    sessions = [opened(model, prompt, speculator, new) for prompt in prompts]
    while not all(session.finished for session in sessions):
        for user, session in enumerate(sessions):
            if not session.finished:
                times.add(user, session.step())
                if session.finished:
                    session.close()
    return times


def joint(model: Any, prompts: list[list[int]], new: int) -> Times:
    """Sessions that are prefilled in turn, and whose steps have one forward for all."""
    speculator, steps = Speculator(), STEPS.setdefault(id(model), JointSteps(model))
    times = Times(len(prompts), new)
    sessions = [opened(model, prompt, speculator, new) for prompt in prompts]
    for user, session in enumerate(sessions):
        times.add(user, session.step())
    while going := [user for user, session in enumerate(sessions) if not session.finished]:
        for user, added in zip(going, steps.step([sessions[user] for user in going]), strict=True):
            if isinstance(added, Exception):
                raise added
            times.add(user, added)
            if sessions[user].finished:
                sessions[user].close()
    return times


def queue(model: Any, prompts: list[list[int]], new: int) -> Times:
    """Sessions that are drained one after the other."""
    speculator = Speculator()
    times = Times(len(prompts), new)
    for user, prompt in enumerate(prompts):
        with opened(model, prompt, speculator, new) as session:
            while not session.finished:
                times.add(user, session.step())
    return times


def batch(model: Any, prompts: list[list[int]], new: int) -> Times:
    """One call of all prompts, padded at their left."""

    def on_step(event: StepEvent) -> None:
        times.add(event.row, list(event.verdict.emitted))

    speculator = Speculator(on_step=on_step)
    longest = max(map(len, prompts))
    ids = torch.tensor([[0] * (longest - len(each)) + each for each in prompts])
    mask = torch.tensor([[0] * (longest - len(each)) + [1] * len(each) for each in prompts])
    times = Times(len(prompts), new)
    generate(model, ids, attention_mask=mask, speculator=speculator, **options(new))
    return times


WAYS = {"turns": turns, "joint": joint, "batch": batch, "queue": queue}


def measure(model: Any, prompts: list[list[int]], arguments: argparse.Namespace) -> dict[str, Any]:
    """Each way's seconds in every repeat, and the medians of the ratios to turns."""
    seconds: dict[str, list[dict[str, float]]] = {way: [] for way in arguments.ways}
    texts: dict[str, list[list[int]]] = {}
    for repeat in range(-arguments.warm_up, arguments.repeats):
        for way in arguments.ways if repeat % 2 == 0 else arguments.ways[::-1]:
            times = WAYS[way](model, prompts, arguments.max_new_tokens)
            texts[way] = times.tokens
            if repeat >= 0:
                seconds[way].append(times.figures())
    row: dict[str, Any] = {"prompt_tokens": [len(prompt) for prompt in prompts]}
    for way in arguments.ways:
        of = seconds[way]
        row[way] = {name: median(each[name] for each in of) for name in FIGURES}
        pairs = list(zip(seconds["turns"], of, strict=True))
        row[f"turns/{way}"] = {
            name: median(turn[name] / each[name] for turn, each in pairs) for name in FIGURES
        }
        row[f"same_as_turns/{way}"] = sum(
            one == other for one, other in zip(texts["turns"], texts[way], strict=True)
        )
    return row | {"seconds": seconds}


def show(row: dict[str, Any]) -> None:
    """Print a set's ratios and turns' seconds."""
    others = [name for name in row if name.startswith("turns/") and name != "turns/turns"]
    own = " ".join(f"{name} {row['turns'][name]:.2f}s" for name in FIGURES)
    print(f"{row['users']} users, set {row['set']}: turns {own}")
    for name in others:
        ratios = " ".join(f"{figure} {row[name][figure]:.2f}x" for figure in FIGURES)
        way = name.removeprefix("turns/")
        print(f"    {way}: {ratios}; same text {row[f'same_as_turns/{way}']}/{row['users']}")


def show_all(rows: list[dict[str, Any]]) -> None:
    """Print the medians over sets."""
    for name in [key for key in rows[0] if key.startswith("turns/") and key != "turns/turns"]:
        ratios = " ".join(
            f"{figure} {median(row[name][figure] for row in rows):.2f}x" for figure in FIGURES
        )
        print(f"{rows[0]['users']} users, {name}, median of sets: {ratios}", flush=True)


if __name__ == "__main__":
    main()
