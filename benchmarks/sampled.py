"""How much drafts can give for sampled texts, by the target's own probabilities.

    python -m benchmarks sampled FOLDER --model MODEL --json sampled.json

24 prompts are answered with a model's usual sampling settings ("own"), and at temperature 1 without
others ("one"). FOLDER keeps the texts, with the target's most probable tokens at each position,
unless they are there. They are replayed with the costs of a CPU and of a GPU, and without drafts:

- "chains", "trees": an oracle that knows the distribution at each position, but not the sample. Off
  the text, it uses those of the same depth on it.
- "copies": an oracle that copies from the best place in the text so far.
- the drafts of ngramspec: chains and trees of the text's tables, trees also of the target's tokens
  after each token ("recycled"), and of a store of the earlier texts ("stored").
- "last_1", "last_2", "last_3": only the target's tokens after the last ones, up to as many, of this
  text ("own") or of all texts so far ("all"). These are the rows of STAND (arXiv 2506.04708).
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import DynamicCache
from transformers.generation import (
    LogitsProcessorList,
    RepetitionPenaltyLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from benchmarks.harness import padded, show_and_write
from benchmarks.rollouts import CURVES, TREE, agreement, prompts, ratios
from ngramspec.cli.options import CommandOptions
from ngramspec.draft import Float32
from ngramspec.drafters import build_drafter
from ngramspec.measure.models import LoadedModel, load
from ngramspec.measure.replay import Earlier, Player, ReplayPlan, cost_curve
from ngramspec.measure.traces import RecordedTopTokens, Trace

SETTINGS = {  # those of Qwen2.5-Instruct's generation_config.json, and none
    "own": [
        RepetitionPenaltyLogitsProcessor(1.1),
        TemperatureLogitsWarper(0.7),
        TopKLogitsWarper(20),
        TopPLogitsWarper(0.8),
    ],
    "one": [],
}
TEMPERATURES = {"own": 0.7, "one": 1.0}
RANKS = 32  # of the processed probabilities that are kept
RAW = 8  # of the raw ones
TODAY = {  # drafter, whether it drafts trees, and whether from earlier texts
    "chain": ("copy+ngram+unigram", False, False),
    "tree": ("copy+ngram+unigram", True, False),
    "recycled": ("copy+ngram+unigram+recycle", True, False),
    "stored": ("copy+ngram+unigram+recycle", True, True),
}
ORDERS = (1, 2, 3)
Row = tuple[list[int], list[float]]  # tokens and their probabilities
Counts = tuple[int, int, float]  # tokens, calls, cost


@dataclass(frozen=True, slots=True)
class Sampled:
    """A sampled text, and what the target computed at its n tokens."""

    trace: Trace  # with the raw top tokens
    ids: list[list[int]]  # the processed distribution: RANKS tokens of each position
    probabilities: list[list[float]]


def add_arguments(options: CommandOptions) -> None:
    options.path("recorded", "FOLDER", "the recorded texts")
    options.path("--model", "MODEL", "another model than the embedded one")
    options.count("--max-new-tokens", 192, "most new tokens of each text")
    options.json()


def run(arguments: argparse.Namespace) -> int:
    arguments.recorded.mkdir(parents=True, exist_ok=True)
    loaded: LoadedModel | None = None
    for name in SETTINGS:
        if not (arguments.recorded / f"{name}.npz").exists():
            loaded = loaded or load(arguments.model, "float32")
            record(loaded, name, arguments.max_new_tokens, arguments.recorded / f"{name}.npz")
    return show_and_write(arguments, rows(arguments.recorded))


@torch.inference_mode()
def record(loaded: LoadedModel, name: str, new: int, path: Path) -> None:
    """Sample all texts in one batch, and write them."""
    known = [(group, loaded.encode(text, chat=True)) for group, text in prompts()]
    inputs = padded([ids for _, ids in known], loaded.eos_ids[0])
    ids, mask = inputs["input_ids"], inputs["attention_mask"]
    text = torch.where(mask == 0, ids[:, -1:], ids)  # the penalty must not see the padding
    processor, cache = LogitsProcessorList(SETTINGS[name]), DynamicCache(config=loaded.model.config)
    places = (mask.cumsum(1) - 1).clamp(min=0)
    kept: dict[str, list[Any]] = {each: [] for each in ("TI", "TP", "RI", "RL", "tokens")}
    torch.manual_seed(1)
    for _ in range(new):
        out = loaded.model(ids, mask, places, cache, logits_to_keep=1)
        scores = out.logits[:, -1].float()
        processed = processor(text, scores.clone()).softmax(-1)
        ids = torch.multinomial(processed, 1)
        pairs = processed.topk(RANKS), scores.log_softmax(-1).topk(RAW)
        values = (pairs[0][1].int(), pairs[0][0], pairs[1][1].int(), pairs[1][0], ids[:, 0])
        for values_so_far, each in zip(kept.values(), values, strict=True):
            values_so_far.append(each.numpy())
        text, mask = torch.cat((text, ids), 1), torch.cat((mask, mask.new_ones(len(ids), 1)), 1)
        places = mask.sum(1, keepdim=True) - 1
    arrays: dict[str, Any] = {each: np.stack(found, 1) for each, found in kept.items()}
    outs = [ended(tokens, loaded.eos_ids) for tokens in arrays.pop("tokens").tolist()]
    arrays["outs"], arrays["prompts"] = objects(outs), objects([ids for _, ids in known])
    arrays["groups"] = np.array([group for group, _ in known])
    np.savez_compressed(path, allow_pickle=True, **arrays)


def ended(tokens: list[int], eos: Sequence[int]) -> list[int]:
    ends = (at for at, token in enumerate(tokens) if token in eos)
    return tokens[: next(ends, len(tokens) - 1) + 1]


def objects(lists: Sequence[Sequence[int]]) -> Any:
    found = np.empty(len(lists), object)
    found[:] = [np.array(each, np.int32) for each in lists]
    return found


def texts_of(path: Path) -> list[Sampled]:
    kept = np.load(path, allow_pickle=True)
    found = []
    for at, output in enumerate(kept["outs"]):
        prompt, output = kept["prompts"][at].astype(np.int32), output.astype(np.int32)
        raw = RecordedTopTokens(*(kept[each][at, : len(output)] for each in ("RI", "RL")))
        trace = Trace(str(kept["groups"][at]), str(at), prompt, output, top_tokens=raw)
        processed = (kept[each][at, : len(output)].tolist() for each in ("TI", "TP"))
        found.append(Sampled(trace, *processed))
    return found


def rows(folder: Path) -> Iterator[dict[str, Any]]:
    """Tokens per call and per cost of each kind of draft, by settings and cost curve."""
    for name in SETTINGS:
        texts = texts_of(folder / f"{name}.npz")
        traces = [each.trace for each in texts]
        ranks = [rank for each in texts for rank in ranks_of(each)]
        for curve in CURVES:
            cost = cost_curve(curve, TREE)
            row: dict[str, Any] = {"settings": name, "curve": curve, "tokens": len(ranks)}
            row["most_probable"] = ranks.count(0) / len(ranks)
            for kind, width in (("chains", 1), ("trees", RANKS)):
                row |= ratios(kind, [knowing(each, cost, width) for each in texts])
            row |= ratios("copies", [copied(each, cost) for each in traces])
            for kind, (drafter, tree, stored) in TODAY.items():
                plan, known = ReplayPlan(cost, gamma_max=TREE, tree=tree), Earlier("outputs")
                player = Player(build_drafter(drafter), plan, known if stored else None)
                found = player.play(traces).groups
                counts = [(each.emitted, each.target_calls, each.cost) for each in found.values()]
                row |= ratios(kind, counts)
                for group, count in zip(found, counts, strict=True):
                    row |= ratios(f"{kind}_{group}", [count])
            for order in ORDERS:
                for share, kept in (("own", False), ("all", True)):
                    own = TargetRows(order, TEMPERATURES[name])
                    played = [own.play(each, cost, kept=kept) for each in traces]
                    row |= ratios(f"last_{order}_{share}", played)
            yield row


def ranks_of(text: Sampled) -> list[int]:
    """The rank of each token in its distribution; RANKS if it is not among the first."""
    pairs = zip(text.ids, text.trace.output.tolist(), strict=True)
    return [ids.index(token) if token in ids else RANKS for ids, token in pairs]


def knowing(text: Sampled, cost: Float32, width: int) -> Counts:
    """The counts of an oracle that knows the distributions, with up to ``width`` siblings."""
    ranks, at, calls, spent = ranks_of(text), 1, 0, 0.0
    while at < len(ranks):
        ahead = text.probabilities[at : at + min(TREE, len(ranks) - at - 1)]
        nodes = {path for _, path in best_nodes([row[:width] for row in ahead], cost)}
        accepted = 0
        while tuple(ranks[at : at + accepted + 1]) in nodes:
            accepted += 1
        calls, spent, at = calls + 1, spent + float(cost[len(nodes) + 1]), at + accepted + 1
    return len(ranks) - 1, calls, spent


def best_nodes(rows: Sequence[Sequence[float]], cost: Float32) -> list[tuple[float, Any]]:
    """The tree with the most expected tokens per cost: each node's probability and ranks."""
    heap: list[tuple[float, tuple[int, ...]]] = [(-rows[0][0], (0,))] if rows else []
    nodes: list[tuple[float, Any]] = []
    while heap and len(nodes) < TREE:
        reach, path = heappop(heap)
        nodes.append((-reach, path))
        row, rank = rows[len(path) - 1], path[-1]
        if rank + 1 < len(row) and row[rank + 1]:
            heappush(heap, (reach * row[rank + 1] / row[rank], (*path[:-1], rank + 1)))
        if len(path) < len(rows):
            heappush(heap, (reach * rows[len(path)][0], (*path, 0)))
    return nodes[: worthwhile([reach for reach, _ in nodes], cost)]


def worthwhile(reaches: Sequence[float], cost: Float32) -> int:
    """The number of nodes with the most expected tokens per cost."""
    expected = 1 + np.cumsum([0.0, *reaches])
    return int(np.argmax(expected / cost[1 : len(expected) + 1]))


def copied(trace: Trace, cost: Float32) -> Counts:
    """The counts of an oracle that copies from the best place in the text so far."""
    text = [*trace.prompt.tolist(), *trace.output.tolist()]
    at, calls, spent = len(trace.prompt) + 1, 0, 0.0
    while at < len(text):
        ahead = text[at : at + min(TREE, len(text) - at - 1)]
        places = (begin for begin in range(at) if text[begin] == text[at])
        longest = max((agreement(text[begin:at], ahead) for begin in places), default=0)
        copies = worthwhile([1.0] * longest, cost)
        calls, spent, at = calls + 1, spent + float(cost[copies + 1]), at + copies + 1
    return len(trace.output) - 1, calls, spent


@dataclass(slots=True)
class TargetRows:
    """The target's latest tokens after each ``order`` tokens or fewer, and drafts from them."""

    order: int
    temperature: float
    known: dict[tuple[int, ...], Row] = field(default_factory=dict)
    right: dict[tuple[int, int], float] = field(default_factory=dict)  # by length and probability
    seen: dict[tuple[int, int], float] = field(default_factory=dict)

    def row(self, text: Sequence[int]) -> tuple[int, Row]:
        for length in range(self.order, 0, -1):
            if row := self.known.get(tuple(text[-length:])):
                return length, row
        return 0, ([], [])

    def chance(self, length: int, share: float) -> float:
        """How often tokens of such a row and probability were right, with a prior."""
        key = length, min(int(share * 10), 9)
        return (self.right.get(key, 0.0) + 3 * share) / (self.seen.get(key, 0.0) + 4)

    def learn(self, text: Sequence[int], token: int, ids: list[int], raw: list[float]) -> None:
        length, row = self.row(text)
        for each, share in zip(*row, strict=True):
            key = length, min(int(share * 10), 9)
            self.seen[key] = self.seen.get(key, 0.0) + 1
            self.right[key] = self.right.get(key, 0.0) + (each == token)
        shares = [math.exp(each / self.temperature) for each in raw]
        total = sum(shares) if self.temperature < 1 else 1.0
        for n in range(1, self.order + 1):
            self.known[tuple(text[-n:])] = ids, [each / total for each in shares]

    def tree(self, text: Sequence[int], cost: Float32, most: int) -> dict[tuple[int, ...], float]:
        """The paths of the tree with the most expected tokens per cost."""
        heap: list[tuple[float, tuple[int, ...]]] = []
        paths: dict[tuple[int, ...], float] = {(): 1.0}
        path: tuple[int, ...] = ()
        while len(paths) <= most:
            length, row = self.row([*text[-self.order :], *path])
            for token, share in zip(*row, strict=True):
                reach = paths[path] * self.chance(length, share)
                if reach > 0.003:
                    heappush(heap, (-reach, (*path, token)))
            if not heap:
                break
            reach, path = heappop(heap)
            paths[path] = -reach
        best = worthwhile(list(paths.values())[1:], cost)
        return dict(list(paths.items())[1 : best + 1])

    def play(self, trace: Trace, cost: Float32, *, kept: bool) -> Counts:
        """The counts of a text; without ``kept``, rows of earlier texts are forgotten."""
        if not kept:
            self.known = {}
        assert trace.top_tokens is not None
        output, calls, spent, at = trace.output.tolist(), 0, 0.0, 1
        ids, log_probs = trace.top_tokens.ids.tolist(), trace.top_tokens.log_probs.tolist()
        text = [*trace.prompt.tolist(), output[0]]
        while at < len(output):
            paths = self.tree(text, cost, min(TREE, len(output) - at - 1))
            begin = at
            while tuple(output[begin : at + 1]) in paths:
                at += 1
            at += 1
            for place in range(begin, min(at, len(output))):
                self.learn(text, output[place], ids[place], log_probs[place])
                text.append(output[place])
            calls, spent = calls + 1, spent + float(cost[len(paths) + 1])
        return len(output) - 1, calls, spent
