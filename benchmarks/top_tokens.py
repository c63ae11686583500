"""Token Recycling in trees: the gain of the target's top-k candidates, live and in replay.

    python -m benchmarks top_tokens --prompts prompts.jsonl --json top_tokens.json

A live run has the candidates after rejected tokens, too. A recording has those of the text only.
Both draft trees as if forwards had the costs of ``--curve``. The result is tokens per call, not
time. Prompts are as of ``ngramspec record``. In bfloat16 the live texts may
diverge from the recorded ones; how many did not is in the JSON.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.harness import add_json, write
from ngramspec import Drafter, Speculator, build_drafter, generate
from ngramspec.draft import Draft, Float32, Int32
from ngramspec.drafters.base import DraftSession, ForwardingSession
from ngramspec.measure.costs import cost_curve
from ngramspec.measure.models import load
from ngramspec.measure.record import read_prompts
from ngramspec.measure.replay import Plan, Player
from ngramspec.measure.top_tokens import RecordingDrafter
from ngramspec.measure.traces import Trace, by_group

WITHOUT, WITH = "copy+ngram+unigram", "auto"
TOP_K = 8


class FixedSession(ForwardingSession):
    """Another session, told the same costs at every step."""

    def __init__(self, inner: DraftSession, cost: Float32) -> None:
        super().__init__(inner)
        self.cost = cost

    def propose(self, gamma: int, cost: Float32 | None = None, *, tree: bool = False) -> Draft:
        return self.inner.propose(gamma, self.cost, tree=tree)


class FixedCosts(Drafter):
    """Another drafter, whose sessions are told the same costs at every step."""

    def __init__(self, inner: Drafter, cost: Float32) -> None:
        self.inner, self.cost = inner, cost
        self.source_names, self.evidence = inner.source_names, inner.evidence

    def start(self, tokens: Int32) -> DraftSession:
        return FixedSession(self.inner.start(tokens), self.cost)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("--prompts", type=Path, required=True)
    parser.add_argument("--model", help="a folder or a hub id (default: the embedded one)")
    parser.add_argument("--dtype", default="bfloat16", choices=["bfloat16", "float32"])
    parser.add_argument("--count", type=int, default=40, help="most prompts of each group")
    parser.add_argument("--max-new-tokens", type=int, default=128)
    parser.add_argument("--nodes", type=int, default=64)
    parser.add_argument("--curve", default="gpu")
    add_json(parser)


def run(arguments: argparse.Namespace) -> int:
    """Generate, replay, print a table, write the JSON."""
    cost = cost_curve(arguments.curve, arguments.nodes)
    loaded = load(arguments.model, arguments.dtype)
    groups: dict[str, list[list[int]]] = {}
    for prompt in read_prompts(arguments.prompts):
        groups.setdefault(prompt.group, []).append(loaded.encode(prompt.text, chat=True))
    found = []
    print(f"{'group':<18}{'without':>9}{'replayed':>10}{'live':>9}   tokens per call")
    for group, prompts in groups.items():
        row = measure(loaded.model, group, prompts[: arguments.count], cost, arguments)
        found.append(row)
        more = "".join(f"{row[way] / row['without'] - 1:>+8.1%}" for way in ("replayed", "live"))
        print(
            f"{group:<18}{row['without']:>9.3f}{row['replayed']:>10.3f}{row['live']:>9.3f}{more}",
            flush=True,
        )
    write(arguments, {"rows": found})
    return 0


def measure(
    model: Any, group: str, prompts: list[list[int]], cost: Float32, arguments: argparse.Namespace
) -> dict[str, Any]:
    """Tokens per call of one group's prompts: without candidates, replayed with them, and live."""
    keeper = RecordingDrafter(build_drafter(WITHOUT), TOP_K)
    traces = []
    for at, prompt in enumerate(prompts):
        output = continued(model, FixedCosts(keeper, cost), prompt, arguments)
        tokens = np.array(prompt, np.int32), np.array(output, np.int32)
        traces.append(Trace(group, str(at), *tokens, top_tokens=keeper.take(len(output))))
    plan = Plan(cost, "auto", arguments.nodes, True)
    ways = {
        name: Player(build_drafter(spec), plan).play(traces).groups[group].tokens_per_call
        for name, spec in (("without", WITHOUT), ("replayed", WITH))
    }
    drafter = build_drafter(WITH)
    speculator = Speculator(FixedCosts(drafter, cost), arguments.nodes, tree=arguments.nodes)
    same = 0
    for trace in by_group(traces)[group]:
        text = continued(model, speculator, trace.prompt.tolist(), arguments)
        same += text == trace.output.tolist()
    live = speculator.stats.tokens_per_call
    return {"group": group, "prompts": len(prompts), "same_texts": same, **ways, "live": live}


def continued(
    model: Any, by: Speculator | Drafter, prompt: list[int], arguments: argparse.Namespace
) -> list[int]:
    """What the model says greedily after a prompt."""
    nodes = arguments.nodes
    speculator = by if isinstance(by, Speculator) else Speculator(by, nodes, tree=nodes)
    ids = torch.tensor([prompt])
    new = arguments.max_new_tokens
    out = generate(model, input_ids=ids, do_sample=False, max_new_tokens=new, speculator=speculator)
    text: list[int] = out[0, len(prompt) :].tolist()
    return text
