"""What drafting forced continuations gains on a JSON schema task, with the embedded model.

    python -m benchmarks forced --json forced.json

Short reports are to be put into JSON of a schema, greedily. Plain ``generate``, the default
Speculator with forced continuations, and without them (the processor is wrapped, so that its
grammar is not known) take turns, for each grammar. It needs xgrammar, outlines and llguidance.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from statistics import geometric_mean, median
from time import perf_counter
from typing import Any

import torch
from transformers import LogitsProcessor, LogitsProcessorList

from ngramspec import Speculator
from ngramspec.measure.machine import machine
from ngramspec.measure.models import LoadedModel, load

TEXT = {"type": "string", "maxLength": 40}
FIELDS = {
    "patient_name": TEXT,
    "date_of_birth": TEXT,
    "main_symptom": TEXT,
    "duration_in_days": {"type": "integer", "maximum": 999},
    "has_fever": {"type": "boolean"},
    "recommended_treatment": TEXT,
}
SCHEMA = json.dumps(
    {
        "type": "object",
        "properties": FIELDS,
        "required": list(FIELDS),
        "additionalProperties": False,
    }
)
REPORTS = (
    "Anna Berg, born on 3 May 1981, has had a dry cough for nine days, no fever. Syrup.",
    "Since Monday, four days ago, Omar Haddad (12.1.1990) has had a headache with fever; rest.",
    "Li Wei, born in June 1975, complains of back pain for 30 days, no fever. Physiotherapy.",
    "Two days of sore throat and fever: Maria Souza, 1 April 2001. Antibiotics were given.",
)
TASK = "Write this report as JSON with the fields {}:\n\n{}"
NEW = 128


class Hidden(LogitsProcessor):  # type: ignore[misc]
    """A processor of which nothing is known."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.inner(input_ids, scores)
        return found


def grammars(loaded: LoadedModel) -> Iterator[tuple[str, Callable[[], Any]]]:
    """(name, what makes a processor for one call)."""
    import outlines
    import xgrammar
    from outlines import backends

    info = xgrammar.TokenizerInfo.from_huggingface(
        loaded.tokenizer, vocab_size=loaded.model.config.vocab_size
    )
    compiler = xgrammar.GrammarCompiler(info, max_threads=1)
    for name, space in (("xgrammar, fixed spaces", False), ("xgrammar, any spaces", True)):
        compiled = compiler.compile_json_schema(SCHEMA, any_whitespace=space)
        yield name, partial(xgrammar.contrib.hf.LogitsProcessor, compiled)
    model = outlines.from_transformers(loaded.model, loaded.tokenizer)
    made = backends.get_json_schema_logits_processor("llguidance", model, SCHEMA)

    def again() -> Any:
        made.reset()
        return made

    yield "llguidance through outlines", again


def measure(loaded: LoadedModel, make: Callable[[], Any], repeats: int) -> dict[str, Any]:
    """Seconds of each way by prompt and repeat; statistics; whether the texts are plain's."""
    ways: dict[str, tuple[bool, bool]] = {  # speculative, grammar known
        "plain": (False, True),
        "hidden": (True, False),
        "forced": (True, True),
    }
    seconds: dict[str, list[list[float]]] = {way: [] for way in ways}
    stats = {way: Speculator() for way in ways}
    tokens, same = [], True
    for report in REPORTS:
        ids = loaded.encode(TASK.format(", ".join(FIELDS), report), chat=True)
        inputs = torch.tensor([ids])
        texts: dict[str, list[int]] = {}
        for way in ways:
            seconds[way].append([])
        for turn in range(repeats + 1):
            for way, (speculative, known) in ways.items():
                processor = make() if known else Hidden(make())
                more = {}
                if speculative:
                    speculator = Speculator()
                    more = {"custom_generate": speculator}
                began = perf_counter()
                out = loaded.model.generate(
                    input_ids=inputs,
                    attention_mask=torch.ones_like(inputs),
                    do_sample=False,
                    max_new_tokens=NEW,
                    logits_processor=LogitsProcessorList([processor]),
                    **more,
                )
                took = perf_counter() - began
                texts[way] = out[0, len(ids) :].tolist()
                if turn:
                    seconds[way][-1].append(took)
                elif speculative:
                    stats[way].stats.add(speculator.stats)
        tokens.append(len(texts["plain"]))
        same = same and all(text == texts["plain"] for text in texts.values())
    rows = {}
    for way in ways:
        ratios = [
            median(a / b for a, b in zip(plain, mine, strict=True))
            for plain, mine in zip(seconds["plain"], seconds[way], strict=True)
        ]
        found = stats[way].stats
        rows[way] = {
            "to_plain": geometric_mean(ratios),
            "tokens_per_call": found.tokens_per_call,
            "tiers": {name: [each.tested, each.accepted] for name, each in found.tiers.items()},
            "seconds": seconds[way],
        }
    return {"tokens": tokens, "same_text": same, "ways": rows}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--repeats", type=int, default=2)
    known = ["xgrammar", "llguidance"]
    parser.add_argument("--libraries", nargs="+", default=known, choices=known)
    parser.add_argument("--json", type=Path)


def run(arguments: argparse.Namespace) -> int:
    """Measure, print, write the JSON."""
    loaded = load(None, arguments.dtype)
    torch.compiler.set_stance("force_eager")  # llguidance compiles its mask's kernel for minutes
    found = {}
    for name, make in grammars(loaded):
        if not any(name.startswith(library) for library in arguments.libraries):
            continue
        found[name] = measure(loaded, make, arguments.repeats)
        print(name, found[name]["tokens"], "same text:", found[name]["same_text"])
        for way, row in found[name]["ways"].items():
            figures = f"{row['to_plain']:.2f} to plain, {row['tokens_per_call']:.2f} tokens a call"
            print(f"  {way:<8} {figures} {row['tiers']}", flush=True)
    if arguments.json:
        given = {"dtype": arguments.dtype, "repeats": arguments.repeats, "new": NEW}
        report = {"settings": given, "where": machine(), "grammars": found}
        arguments.json.write_text(json.dumps(report, indent=1) + "\n")
    return 0
