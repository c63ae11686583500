"""llama-cpp-python with and without drafts: plain, its own prompt lookup, and ngramspec.

    python -m benchmarks llama --gguf model.gguf --traces traces.jsonl --json llama.json

All configurations take turns in one process and generate the same recorded text: the model
evaluates and samples as usual, and then the recorded token replaces the sampled one. Traces
are JSON lines with ``group``, ``id``, and ``prompt`` and ``output`` as ids of the model's tokens.
Prompts stay in llama.cpp's cache between the turns of a text, so the prefill is timed in its first
turn only, and apart. In each turn another ngramspec drafter goes through all texts: none meets a
text twice. Configuration "logits" is plain with ``logits_all=True``, which drafts need.

``shuffled`` is the output of the group before it in random order: nothing can be guessed there.
"""

from __future__ import annotations

import argparse
import json
import random
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import geometric_mean, median
from typing import Any

import numpy as np

from ngramspec.cli.options import CommandOptions
from ngramspec.measure.machine import machine, versions
from ngramspec.measure.traces import Trace, read_traces

PLAIN, LOGITS, LOOKUP, OURS = "plain", "logits", "lookup", "ngramspec"
PACKAGES = ("ngramspec", "llama-cpp-python", "numpy")


@dataclass(frozen=True)
class Turn:
    """One generation of one text; times in seconds."""

    way: str
    group: str
    id: str
    turn: int
    prompt: int
    tokens: int
    prefill: float
    decode: float
    evals: int
    drafted: int


def add_arguments(options: CommandOptions) -> None:
    options.add("--gguf", type=Path, required=True)
    options.add("--traces", type=Path, required=True)
    options.add("--groups", nargs="+", default=["code_edit", "chat", "shuffled"])
    options.add("--texts", type=int, default=3, help="of each group")
    options.add("--most", type=int, default=600, help="tokens of a prompt")
    options.add("--tokens", type=int, default=96, help="generated after each prompt")
    options.add("--repeats", type=int, default=3)
    options.add("--seconds", type=float, default=1e9, help="after which no text is begun")
    options.add("--ways", nargs="+", default=[PLAIN, LOGITS, LOOKUP, OURS])
    options.add("--k", type=int, default=10, help="most tokens drafted, by both")
    options.add("--threads", type=int, default=1)
    options.add("--options", type=json.loads, default={}, help="of ngramspec, as JSON")
    options.add("--json", type=Path, required=True)


def run(arguments: argparse.Namespace) -> int:
    texts = list(read(arguments))
    models = {way: load(arguments, way) for way in arguments.ways}
    turns = play(arguments, texts, models)
    report(arguments, models, turns)
    return 0


def read(arguments: argparse.Namespace) -> Iterator[Trace]:
    """The texts, groups in turn."""
    groups: defaultdict[str, list[Trace]] = defaultdict(list)
    for one in read_traces(arguments.traces):
        if len(one.prompt) <= arguments.most and len(one.output) >= arguments.tokens:
            groups[one.group].append(one)
    rng = random.Random(0)
    for found in groups.values():
        rng.shuffle(found)
    for at in range(arguments.texts):
        for group in arguments.groups:
            if group != "shuffled":
                one = groups[group][at]
            output = one.output.tolist()
            if group == "shuffled":
                rng.shuffle(output)
            shown = np.array(output[: arguments.tokens], np.int32)
            yield replace(one, group=group, output=shown)


def load(arguments: argparse.Namespace, way: str) -> Any:
    """The model for a configuration; drafters are set later.

    It evaluates and samples as ``Llama`` does, but emits ``text``, the ids of prompt and output.
    ``evals`` has the positions of each evaluation.
    """
    from llama_cpp import Llama

    class Forced(Llama):  # type: ignore[misc]
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            self.text: Sequence[int] = ()
            self.evals: list[int] = []

        def eval(self, tokens: Sequence[int]) -> None:
            super().eval(tokens)
            self.evals.append(len(tokens))

        def sample(self, *args: Any, idx: int, **kwargs: Any) -> int:
            super().sample(*args, idx=idx, **kwargs)
            return self.text[idx + 1]

    return Forced(
        str(arguments.gguf),
        n_ctx=arguments.most + arguments.tokens + 32,
        n_threads=arguments.threads,
        n_threads_batch=arguments.threads,
        logits_all=way != PLAIN,
        verbose=False,
    )


def play(
    arguments: argparse.Namespace, texts: Sequence[Trace], models: dict[str, Any]
) -> list[Turn]:
    """All texts, each in ``repeats`` turns of all configurations."""
    from llama_cpp.llama_speculative import LlamaPromptLookupDecoding

    from ngramspec.engines.llama_cpp import NgramspecDraft

    options, k = arguments.options, arguments.k
    n_ctx = arguments.most + arguments.tokens + 32
    ours = [NgramspecDraft(k, n_ctx=n_ctx, options=options) for _ in range(arguments.repeats)]
    turns = []
    began = time.monotonic()
    for text in texts:
        if time.monotonic() - began > arguments.seconds:
            break
        for turn in range(arguments.repeats):
            drafters = {OURS: ours[turn], LOOKUP: LlamaPromptLookupDecoding(num_pred_tokens=k)}
            ways = [way for way in models if not (way == LOGITS and turn)]  # its prefill counts
            for way in ways:
                models[way].draft_model = drafters.get(way)
            first = turn % len(ways)
            for way in ways[first:] + ways[:first]:
                turns.append(say(models[way], way, text, turn))
                print(json.dumps(asdict(turns[-1])), flush=True)
    return turns


def say(model: Any, way: str, text: Trace, turn: int) -> Turn:
    """Generate a text."""
    prompt: list[int] = text.prompt.tolist()
    model.text = [*prompt, *text.output.tolist()]
    first, said = len(model.evals), 0
    began = time.perf_counter()
    for said, _ in enumerate(model.generate(prompt, temp=0.0), 1):
        if said == 1:
            begun = time.perf_counter()
        if said == len(text.output):
            break
    ended = time.perf_counter()
    widths = model.evals[first + 1 :]
    drafted = sum(widths) - len(widths)
    return Turn(
        way=way,
        group=text.group,
        id=text.id,
        turn=turn,
        prompt=len(text.prompt),
        tokens=said,
        prefill=begun - began,
        decode=ended - begun,
        evals=len(widths),
        drafted=drafted,
    )


def report(arguments: argparse.Namespace, models: dict[str, Any], turns: list[Turn]) -> None:
    """Print and write ratios and every turn."""
    model = next(iter(models.values()))
    result = {
        "versions": versions(PACKAGES),
        "where": machine(),
        "arguments": {
            name: value.name if isinstance(value, Path) else value
            for name, value in vars(arguments).items()
            if name not in ("run", "prog")
        },
        "model": model.metadata.get("general.name"),
        "decode_to_plain": {
            way: {group: ratios(turns, way, group) for group in arguments.groups}
            for way in arguments.ways
        },
        "prefill_to_plain": {way: prefills(turns, way) for way in arguments.ways},
        "turns": [asdict(each) for each in turns],
    }
    text = json.dumps(result)
    arguments.json.write_text(text.replace('{"way"', '\n {"way"').replace("]}", "\n]}") + "\n")
    del result["turns"]
    print(json.dumps(result, indent=1))


def ratios(turns: Sequence[Turn], way: str, group: str) -> dict[str, float]:
    """A configuration's speedup over the baseline in decoding a group's texts: medians of turns."""
    found, evals = [], []
    for id in sorted({each.id for each in turns if each.group == group}):
        of_text = [each for each in turns if (each.group, each.id) == (group, id)]
        plain = {each.turn: each.decode for each in of_text if each.way == PLAIN}
        own = [each for each in of_text if each.way == way]
        found.append(median(plain[each.turn] / each.decode for each in own))
        evals.append(median((each.tokens - 1) / each.evals for each in own))
    return {
        "speed": round(geometric_mean(found), 3),
        "lowest": round(min(found), 3),
        "highest": round(max(found), 3),
        "tokens_per_eval": round(geometric_mean(evals), 2),
    }


def prefills(turns: Sequence[Turn], way: str) -> float:
    """A configuration's prefill time / the baseline's, for prompts of at least 100 tokens."""
    first = {
        (each.way, each.group, each.id): each.prefill
        for each in turns
        if not each.turn and each.prompt >= 100 and each.group != "shuffled"
    }
    found = [
        seconds / first[PLAIN, group, id]
        for (which, group, id), seconds in first.items()
        if which == way
    ]
    return round(geometric_mean(found), 3) if found else float("nan")
