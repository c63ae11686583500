"""Host time of a step: everything outside the model's forward, the baseline and ngramspec in turn.

    OMP_NUM_THREADS=1 python -m benchmarks host_time --json host_time.json

A Llama of one layer (hidden size 64, vocabulary 32000) continues 200 random tokens with one thread.
All configurations run in turn in one process. Each forward is timed by a wrapper, the same for all.
The host time is the rest of the time from the end of the prefill to the end of the last forward. It
is given per forward and per token (of one row), as medians of the repeats. The host time of a step
without a draft is the median time between two consecutive forwards of one position. The texts are:

own     the model's own, without processors
random  random tokens, which a logits processor forces, so that nothing can be predicted
copy    the prompt again and again, which a logits processor forces, so that drafts are accepted

Prompt lookup drafts 10 tokens. In the copies, ngramspec's chains have 10 or 32 tokens, and its
trees 32 nodes.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from statistics import median
from typing import Any

import torch

from benchmarks.harness import prepared_call, show, write
from benchmarks.profile import Span, timed_forwards
from ngramspec import Speculator
from ngramspec.cli.options import CommandOptions
from ngramspec.measure.calls import take_turns

OWN, RANDOM, COPY = "own", "random", "copy"
BASELINE, LOOKUP = "baseline", "prompt lookup (10)"
PROMPT_TOKENS, VOCAB = 200, 32000
LOOKUP_TOKENS = 10
TREE_NODES = 32
BATCH = 8
CHAIN: dict[str, Any] = {"gamma": LOOKUP_TOKENS, "tree": None}
LONG_CHAIN: dict[str, Any] = {"gamma": TREE_NODES, "tree": None}
TREE: dict[str, Any] = {"gamma": TREE_NODES, "tree": TREE_NODES}
# Assumed, not measured: milliseconds of a forward on a GPU, which the host time is compared with.
ASSUMED_FORWARDS = (3, 6, 12, 25)


@dataclass(frozen=True, slots=True)
class Cell:
    """What one row of the table measures."""

    who: str
    text: str
    rows: int = 1
    settings: dict[str, Any] | None = None

    @property
    def name(self) -> str:
        """The row's name in the table."""
        batch = f", batch of {self.rows}" if self.rows > 1 else ""
        return f"{self.who}, {self.text}{batch}"


def ours(name: str, text: str, rows: int = 1, **settings: Any) -> Cell:
    """A configuration of ngramspec."""
    return Cell(f"ngramspec {name}", text, rows, settings)


def usual(text: str, rows: int = 1) -> list[Cell]:
    """The baseline, prompt lookup of a single row, and ngramspec without and with drafts."""
    lookup = [Cell(LOOKUP, text)] if rows == 1 else []
    own = ours("none", text, rows, drafter="none"), ours("auto", text, rows)
    return [Cell(BASELINE, text, rows), *lookup, *own]


CELLS = (
    *usual(OWN),
    *usual(RANDOM),
    Cell(BASELINE, COPY),
    Cell(LOOKUP, COPY),
    ours("chain of 10", COPY, **CHAIN),
    ours("chain of 32", COPY, **LONG_CHAIN),
    ours("tree of 32", COPY, **TREE),
    *usual(OWN, BATCH),
    *usual(RANDOM, BATCH),
)


class ForcedProcessor:
    """A logits processor that allows one token only: the text's at this place in the sequence.

    The text begins after ``prompt_length`` tokens. After its end its last token is repeated.
    """

    def __init__(self, prompt_length: int, tokens: Sequence[int]) -> None:
        self.prompt_length = prompt_length
        self.tokens = tokens

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        at = min(input_ids.shape[1] - self.prompt_length, len(self.tokens) - 1)
        forced = torch.full_like(scores, -torch.inf)
        forced[:, self.tokens[at]] = 0.0
        return forced


@dataclass(frozen=True, slots=True)
class Host:
    """What one call took outside the model's forwards, after its prefill."""

    seconds: float
    forwards: int
    tokens: int
    drafted: float
    undrafted: float | None


def add_arguments(options: CommandOptions) -> None:
    options.count("--repeats", 5, "timed calls of each configuration")
    options.count("--max-new-tokens", 400, "new tokens of each call")
    options.add("--only", nargs="+", metavar="TEXT", help="only cells with these texts")
    options.json()


def run(arguments: argparse.Namespace) -> int:
    torch.set_num_threads(1)
    rows = measure(arguments.max_new_tokens, arguments.repeats, chosen(arguments.only))
    for row in rows:
        show(**row)
    write(arguments, {"rows": rows, "assumed_forwards_ms": ASSUMED_FORWARDS})
    return 0


def chosen(words: Sequence[str] | None) -> list[Cell]:
    """The cells whose names contain one of the words; None: all."""
    return [each for each in CELLS if words is None or any(word in each.name for word in words)]


def measure(new: int, repeats: int, cells: Sequence[Cell]) -> list[dict[str, Any]]:
    """The host time of each cell, in microseconds."""
    model = small_llama()
    prompt = random_tokens(PROMPT_TOKENS, seed=1)
    turns = take_turns(
        {cell.name: partial(host_time, model, prompt, new, cell) for cell in cells}, repeats
    )
    rows = {cell.name: row_of(cell, turns.results[cell.name]) for cell in cells}
    for cell in cells:
        baseline = rows.get(Cell(BASELINE, cell.text, cell.rows).name)
        hosts = (baseline["undrafted"], rows[cell.name]["undrafted"]) if baseline else (None, None)
        known = cell.settings is not None and None not in hosts
        rows[cell.name]["assumed"] = speeds(*hosts) if known else []
    return list(rows.values())


def speeds(baseline: float, ours: float) -> list[float]:
    """An undrafted step's speed over the baseline's at ``ASSUMED_FORWARDS``, for host times in µs.

    The host works while the device waits, so a step takes the sum of both times.
    """
    return [(1000 * each + baseline) / (1000 * each + ours) for each in ASSUMED_FORWARDS]


def row_of(cell: Cell, calls: Sequence[Host]) -> dict[str, Any]:
    """A row of the results: medians over the calls, in microseconds."""
    per_forward = [1e6 * each.seconds / each.forwards for each in calls]
    alone = [1e6 * each.undrafted for each in calls if each.undrafted is not None]
    return {
        "name": cell.name,
        "per_forward": median(per_forward),
        "spread": max(per_forward) - min(per_forward),
        "undrafted": median(alone) if alone else None,
        "per_token": median(1e6 * each.seconds / each.tokens for each in calls),
        "drafted": median(each.drafted for each in calls),
        "forwards": median(each.forwards for each in calls),
    }


def small_llama() -> Any:
    """A random Llama whose forward is short, with the vocabulary of a real one."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=VOCAB,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=1,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=4096,
    )
    return LlamaForCausalLM(config).eval()


def random_tokens(count: int, seed: int) -> list[int]:
    """Random tokens of the vocabulary, without the special ones."""
    make = torch.Generator().manual_seed(seed)
    found: list[int] = torch.randint(3, VOCAB, (count,), generator=make).tolist()
    return found


def host_time(model: Any, prompt: list[int], new: int, cell: Cell) -> Host:
    """Run one call of a cell."""
    ids = torch.tensor([prompt] * cell.rows)
    arguments: dict[str, Any] = {}
    if cell.text != OWN:
        text = random_tokens(new, seed=2) if cell.text == RANDOM else prompt * (new // len(prompt))
        arguments["logits_processor"] = [ForcedProcessor(len(prompt), text)]
    if cell.who == LOOKUP:
        arguments["prompt_lookup_num_tokens"] = LOOKUP_TOKENS
    inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    call = prepared_call(model, inputs, new, **arguments)
    speculator = None if cell.settings is None else Speculator(**cell.settings)
    with timed_forwards(model) as spans:
        call(speculator)
    forwards = len(spans) - 1
    whole = spans[-1][1] - spans[0][1]
    inside = sum(end - begin for begin, end, _ in spans[1:])
    wide = sum(positions > 1 for *_, positions in spans[1:])
    return Host(whole - inside, forwards, new - 1, wide / forwards, undrafted(spans[1:]))


def undrafted(spans: Sequence[Span]) -> float | None:
    """The median seconds between two consecutive forwards of one position; None: there are none.

    ``spans`` are of ``timed_forwards``, without the prefill.
    """
    gaps = [
        begin - end
        for (_, end, before), (begin, _, positions) in pairwise(spans)
        if before == positions == 1
    ]
    return median(gaps) if gaps else None
