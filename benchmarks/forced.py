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
from statistics import geometric_mean
from typing import Any

import torch
from transformers import LogitsProcessor, LogitsProcessorList

from benchmarks.harness import add_json, write
from ngramspec import DecodeStats
from ngramspec.cli.options import add_count, add_dtype
from ngramspec.measure.configurations import Caller, Configuration, Outcome
from ngramspec.measure.models import LoadedModel, load
from ngramspec.measure.turns import PLAIN, take_turns

HIDDEN, FORCED = "hidden", "forced"
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
    """Seconds of each configuration by prompt and repeat; counts; whether the texts are equal."""
    caller = Caller(loaded.model)
    seconds: dict[str, list[list[float]]] = {name: [] for name in (PLAIN, HIDDEN, FORCED)}
    speedups: dict[str, list[float]] = {name: [] for name in seconds}
    stats = {name: DecodeStats() for name in seconds}
    tokens, same = [], True

    def call(configuration: Configuration, ids: list[int], wrap: Callable[[Any], Any]) -> Outcome:
        processors = LogitsProcessorList([wrap(make())])
        return caller.call(configuration, ids, NEW, logits_processor=processors)

    for report in REPORTS:
        ids = loaded.encode(TASK.format(", ".join(FIELDS), report), chat=True)
        calls = {
            PLAIN: partial(call, Configuration(PLAIN), ids, lambda each: each),
            HIDDEN: partial(call, Configuration(HIDDEN, speculator={}), ids, Hidden),
            FORCED: partial(call, Configuration(FORCED, speculator={}), ids, lambda each: each),
        }
        turns = take_turns(calls, repeats)
        for name in calls:
            outcome = turns.last(name)
            seconds[name].append(turns.seconds[name])
            speedups[name].append(turns.speedup(name))
            same = same and outcome.tokens == turns.last(PLAIN).tokens
            if outcome.stats is not None:
                stats[name].add(outcome.stats)
        tokens.append(len(turns.last(PLAIN).tokens))
    rows = {
        name: {
            "to_plain": geometric_mean(speedups[name]),
            "tokens_per_call": found.tokens_per_call,
            "sources": {
                source: [each.verified, each.accepted] for source, each in found.sources.items()
            },
            "seconds": seconds[name],
        }
        for name, found in stats.items()
    }
    return {"tokens": tokens, "same_text": same, "ways": rows}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    add_dtype(parser, dtype="float32")
    add_count(parser, "--repeats", 2, "timed calls of each configuration")
    known = ["xgrammar", "llguidance"]
    parser.add_argument("--libraries", nargs="+", default=known, choices=known)
    add_json(parser)


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
            speed = f"speedup over baseline {row['to_plain']:.2f}"
            print(
                f"  {way:<8} {speed}, {row['tokens_per_call']:.2f} tokens per call {row['sources']}"
            )
    write(arguments, {"grammars": found})
    return 0
