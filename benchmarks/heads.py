"""Replay drafting heads with and without tables, without a model.

    python -m benchmarks heads --traces recorded.jsonl --json heads.json

The traces are of ``ngramspec record --top-k 8``. Traces without top-k tokens get those of the
embedded model. The head is synthetic. Figures are tokens per cost, where a row of the head costs
``--costs`` one-position forwards of the target.

"tables" and "head" draft alone, by expected tokens per cost. "head, tables" and "tables, head"
draft in order of priority: each continues the draft of the one before it, with the heuristic draft
length and without estimates. "both" is the arbiter (``auto+model(FOLDER)``).
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from benchmarks import renderers
from benchmarks.harness import add_traces, write
from ngramspec.cli.options import CommandOptions
from ngramspec.draft import Float32, Int32
from ngramspec.drafters import ModelDrafter, PriorityDrafter, build_drafter
from ngramspec.drafters.base import Drafter
from ngramspec.drafters.headed import HeadedDrafter
from ngramspec.drafters.value import SOURCES, StoreDrafter, ValueDrafter
from ngramspec.measure.forwards import top_tokens
from ngramspec.measure.models import load
from ngramspec.measure.replay import Player, ReplayPlan, cost_curve
from ngramspec.measure.traces import Trace, read_traces

ACCURACIES = (0.8, 0.65, 0.5, 0.4)  # of the synthetic head by depth, if all before is right
NOISE = 0.5  # standard deviation of the log-odds of its probabilities
CONCENTRATION = 3.0  # of the beta distribution of the probability that it is right
TOP = 8  # tokens of a row


class SyntheticRows:
    """A head that is right with known probabilities, and says so with some noise.

    Its first token at depth d is right with a probability that is drawn from a beta distribution
    with mean ``ACCURACIES[d]``. Its log-odds, with normal noise, are the head's own probability.
    A wrong first token is one of the target's recorded top 8. The right token then has a random
    rank. After wrong draft tokens it behaves as elsewhere, but nothing is right.
    """

    ahead: int | None = len(ACCURACIES)

    def __init__(self, trace: Trace, seed: int) -> None:
        self._output, self._top_tokens = trace.output, trace.top_tokens
        name = int.from_bytes(f"{trace.group} {trace.id}".encode()[-8:], "big")
        self._seed = (seed, name)

    def row(self, at: int, depth: int, recorded: bool) -> tuple[Int32, Float32]:
        """The head's tokens and log-probabilities, int32 and float32 (8,)."""
        rng = np.random.default_rng((*self._seed, at, depth, recorded))
        mean = ACCURACIES[min(depth, len(ACCURACIES) - 1)]
        chance = float(rng.beta(CONCENTRATION * mean, CONCENTRATION * (1 - mean)))
        chance = min(max(chance, 0.02), 0.98)
        odds = np.log(chance / (1 - chance)) + rng.normal(0, NOISE)
        first = float(1 / (1 + np.exp(-odds)))
        right = int(self._output[at])
        place = at
        if not recorded:
            place = int(rng.integers(0, len(self._output)))
            right = int(self._output[place])
        others = self._others(place, right, rng)
        if rng.random() < chance:
            tokens = [right, *others[: TOP - 1]]
        else:
            tokens = others[: TOP - 1]
            tokens.insert(int(rng.integers(1, TOP)), right)
        rest = (1 - first) * 0.5 ** np.arange(1, TOP)
        probs = np.array([first, *np.minimum(rest, first)], np.float32)
        return np.array(tokens, np.int32), np.log(probs)

    def _others(self, at: int, right: int, rng: np.random.Generator) -> list[int]:
        """The target's top tokens at a position but the right one, in an order of their ranks."""
        known: list[int] = []
        if self._top_tokens is not None:
            known = [each for each in self._top_tokens.ids[at].tolist() if each not in (right, -1)]
        while len(known) < TOP:
            token = int(rng.integers(0, 1 << 15))
            known += [token] if token != right and token not in known else []
        first = int(rng.choice(3, p=(0.6, 0.25, 0.15)))
        return [known[first], *known[:first], *known[first + 1 :]]


class RecordedHead:
    """A DraftModel that plays a recorded head; the tokens read show where it is."""

    room: int | None = None
    vocab: int | None = None
    ready = True

    def __init__(self, trace: Trace, rows: SyntheticRows, cost: float) -> None:
        self.ahead, self._rows, self._cost = rows.ahead, rows, cost
        self._said = [*trace.prompt.tolist(), *trace.output.tolist()]
        self._prompt = len(trace.prompt)
        self._read: list[int] = []
        self._committed = 0
        self.paid = 0.0

    def reading_cost(self, tokens: int) -> float:
        return 0.0

    def cost(self, last: int) -> float:
        """The cost of ``last`` rows."""
        return self._cost * last

    def commit(self, length: int) -> None:
        """See DraftModel."""
        self._committed = length

    def forward(self, tokens: Int32, last: int, most: int) -> tuple[Int32, Float32]:
        """See DraftModel."""
        self._read += tokens.tolist()
        self.paid += self.cost(last)
        ends = range(len(self._read) - last + 1, len(self._read) + 1)
        rows = [self._row(end) for end in ends]
        return np.stack([ids for ids, _ in rows]), np.stack([probs for _, probs in rows])

    def _row(self, end: int) -> tuple[Int32, Float32]:
        begin = self._committed
        recorded = self._read[begin:end] == self._said[begin:end]
        at = min(end, len(self._said) - 1) - self._prompt
        return self._rows.row(at, end - begin, recorded)

    def truncate(self, length: int) -> None:
        """See DraftModel."""
        del self._read[length:]


CHAINS = ("head, tables", "tables, head")
GAMMA = 16  # most tokens of a head in the chainings
CONTEXT = 1024  # last tokens of a prompt that the embedded model reads


def add_arguments(options: CommandOptions) -> None:
    add_traces(options)
    options.add("--costs", type=float, nargs="+", default=[0.02, 0.05, 0.1, 0.3])
    options.add("--curve", default="gpu", help="cost of a forward: cpu, gpu or a file")
    options.add("--count", type=int, default=1000, help="most traces")
    options.add("--seed", type=int, default=0)
    options.json()


def head() -> ModelDrafter:
    """A head whose model the replay provides; chainings draft all that it is fairly sure of."""
    return ModelDrafter("recorded", gamma=GAMMA, tables=False)


def tables() -> Drafter:
    """The tables in order of priority."""
    return build_drafter("copy+ngram", policy="priority")


CONTENDERS: dict[str, Callable[[], Drafter]] = {
    "tables": ValueDrafter,
    "head": lambda: HeadedDrafter(StoreDrafter(), head()),
    "head, tables": lambda: PriorityDrafter([head(), tables()]),
    "tables, head": lambda: PriorityDrafter([tables(), head()]),
    "both": lambda: HeadedDrafter(ValueDrafter(SOURCES), head()),
}


def run(arguments: argparse.Namespace) -> int:
    traces = read_traces(arguments.traces)[: arguments.count]
    if any(trace.top_tokens is None for trace in traces):
        model = load(None, "float32").model
        for at, each in enumerate(traces):
            prompt, output = each.prompt.tolist()[-CONTEXT:], each.output.tolist()
            traces[at] = replace(each, top_tokens=top_tokens(model, prompt, output, TOP))
    plans = {True: ReplayPlan(cost_curve(arguments.curve, 64))}
    plans[False] = replace(plans[True], gamma="heuristic")
    groups = list(dict.fromkeys(trace.group for trace in traces))
    found: list[dict[str, Any]] = []
    for cost in arguments.costs:
        figures: dict[str, dict[str, float]] = {}
        for name, make in CONTENDERS.items():
            plan = plans[name not in CHAINS]
            if name == "tables":
                player = Player(make(), plan).play(traces)
            else:
                rows = (SyntheticRows(each, arguments.seed) for each in traces)
                heads = [RecordedHead(*each, cost) for each in zip(traces, rows, strict=True)]
                player = play_with(heads, make(), plan, traces)
            figures[name] = {
                each: player.groups[each].to_dict()["tokens_per_cost"] for each in groups
            }
        found.append({"cost": cost, "tokens_per_cost": figures, "ratios": compared(figures)})
    print(renderers.heads({"results": found}))
    settings = {"traces": len(traces), "head": "synthetic"}
    settings |= {"seed": arguments.seed, "curve": arguments.curve}
    write(arguments, {"settings": settings, "results": found})
    return 0


def play_with(
    heads: Sequence[RecordedHead], drafter: Drafter, plan: ReplayPlan, traces: Sequence[Trace]
) -> Player:
    """Replay traces, each with its head, whose rows are part of the cost."""
    following = iter(heads)
    player = Player(drafter, plan, head=lambda _: next(following)).play(traces)
    for trace, head in zip(traces, heads, strict=True):
        player.groups[trace.group].cost += head.paid
    return player


def compared(figures: dict[str, dict[str, float]]) -> dict[str, dict[str, float]]:
    """The arbiter relative to the better one alone, by group."""
    alone = {
        group: max(figures[each][group] for each in ("tables", "head")) for group in figures["both"]
    }
    return {"/ better alone": {name: each / alone[name] for name, each in figures["both"].items()}}
