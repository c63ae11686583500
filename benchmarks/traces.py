"""Records the public traces: SmolLM2's own outputs after prompts that this project may publish.

    python -m benchmarks traces        # an interrupted run is continued

The prompts are about passages of ``public/passages.txt``, which are out of copyright or written for
this project, and about functions of this package. Outputs are greedy, in float32, so they do not
depend on drafts. The sessions of agents are scripted (``agent_sessions.py``). The figures use the
set in ``public/traces.jsonl``.
"""

from __future__ import annotations

import argparse
import ast
import json
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import islice, zip_longest
from pathlib import Path

import numpy as np

from benchmarks import agent_sessions
from benchmarks.harness import ROOT
from ngramspec import Speculator
from ngramspec.cli.options import CommandOptions
from ngramspec.measure.calls import Configuration, ModelCaller
from ngramspec.measure.models import LoadedModel, load
from ngramspec.measure.traces import Trace, read_traces, write_traces

FOLDER = Path(__file__).parent / "public"
PUBLIC = FOLDER / "traces.jsonl"
FUNCTION_LINES = range(9, 30)  # lengths of functions that are used
PROMPT_TOKENS = range(100, 600)
CHARACTERS_BEFORE = 1200  # of a function that is continued
FILES = (  # whose functions are edited, and continued
    "ngramspec/costs/policies.py",
    "ngramspec/theory/walltime.py",
    "ngramspec/theory/acceptance.py",
    "ngramspec/measure/tasks.py",
    "ngramspec/measure/traces.py",
    "ngramspec/measure/bench.py",
)
EDITS = (
    "Return this Python code with the comments and the docstring removed, otherwise unchanged:",
    "Rename the function to `compute` in this Python code. Return the whole code:",
    "Add a type hint to every argument of this Python code. Return the whole code:",
)
TOOLS = (
    ("get_weather", "the current weather", {"city": "string", "unit": "celsius or fahrenheit"}),
    ("search_flights", "flights", {"origin": "string", "destination": "string", "date": "date"}),
    ("create_event", "a calendar entry", {"title": "string", "start": "time", "end": "time"}),
    ("convert", "an amount in another currency", {"amount": "number", "to": "currency"}),
)
REQUESTS = (
    "What is the weather in Lisbon and in Oslo, in celsius? Call the tool once for each city.",
    "Find flights from Oslo to Lisbon on 2026-03-04, and back on 2026-03-11.",
    "Create events for the committee: on 4 March from 19:00 to 20:30 and on 1 April, same hours.",
    "Convert 240, 300 and 1100 to crowns.",
    "Look up the weather in Harrow, then create an event 'ferry' from 06:00 to 06:35 tomorrow.",
    "Search for flights from Paris to Rome on 2026-05-01, 2026-05-02 and 2026-05-03.",
    "What is the weather in Rome, Paris, Madrid and Vienna, in fahrenheit?",
    "Convert 11 and 4 to euros, and create an event 'buy tickets' from 10:00 to 10:15.",
)
FIRST = "Explain in a few sentences what this text is about:\n\n{}"
SECOND = "Now write the same explanation as a list of points."


@dataclass(frozen=True, slots=True)
class Text:
    """A prompt: the user's messages in turn, or a text to continue."""

    group: str
    id: str
    messages: tuple[str, ...] = ()
    text: str = ""


def texts() -> Iterator[Text]:
    """The prompts, about sixty."""
    for name, question, passage in passages():
        yield Text("summary", name, (f"Summarize this text in two sentences:\n\n{passage}",))
        yield Text("answer", name, (f"{passage}\n\n{question} Quote the text in your answer.",))
        yield Text("chat", name, (FIRST.format(passage), SECOND))
    for number, (name, code, before) in enumerate(islice(functions(), 24)):
        if number % 2:
            begun = before[-CHARACTERS_BEFORE:].partition("\n")[2] + code[: len(code) // 2]
            yield Text("code", name, text=begun)
        else:
            yield Text("edit", name, (f"{EDITS[number // 2 % 3]}\n\n```python\n{code}\n```",))
    schemas = "\n".join(
        json.dumps({"name": name, "description": f"Returns {what}.", "parameters": parameters})
        for name, what, parameters in TOOLS
    )
    for number, request in enumerate(REQUESTS):
        shape = '{"name": "...", "arguments": {...}}'
        ask = f"These tools exist:\n{schemas}\n\nAnswer with one JSON object a line, {shape}."
        yield Text("tools", str(number), (f"{ask}\n\n{request}",))


def passages() -> Iterator[tuple[str, str, str]]:
    """The name, the question and the text of each passage."""
    for part in (FOLDER / "passages.txt").read_text(encoding="utf-8").split("# ")[1:]:
        title, _, passage = part.partition("\n")
        name, _, question = title.partition(" | ")
        yield name, question, passage.strip()


def functions() -> Iterator[tuple[str, str, str]]:
    """The name and source of functions of the package, and the text before; each file in turn."""
    found: list[list[tuple[str, str, str]]] = [[] for _ in FILES]
    for file, of_file in zip(FILES, found, strict=True):
        source = (ROOT / file).read_text(encoding="utf-8")
        for each in ast.parse(source).body:
            code = ast.get_source_segment(source, each) or ""
            if isinstance(each, ast.FunctionDef) and code.count("\n") + 1 in FUNCTION_LINES:
                of_file.append((each.name, code, source[: source.index(code)]))
    return (each for turn in zip_longest(*found) for each in turn if each is not None)


def traces(
    loaded: LoadedModel, new: int, known: Mapping[tuple[str, str], Trace]
) -> Iterator[Trace]:
    """A trace for each prompt of a usable length, and one for each turn of a chat."""
    caller, ours = ModelCaller(loaded.model), Configuration("ngramspec", speculator=Speculator())

    def recorded(group: str, id: str, ids: list[int]) -> Trace:
        before = known.get((group, id))
        if before is not None and before.prompt.tolist() == ids:
            return before
        print(".", end="", flush=True, file=sys.stderr)
        output = caller.call(ours, ids, new).tokens
        return Trace(group, id, np.array(ids, np.int32), np.array(output, np.int32))

    for each in texts():
        if each.text:
            ids = list(loaded.tokenizer(each.text)["input_ids"])
            if len(ids) in PROMPT_TOKENS:
                yield recorded(each.group, each.id, ids)
        said: list[dict[str, str]] = []
        for turn, message in enumerate(each.messages):
            said.append({"role": "user", "content": message})
            ids = loaded.tokenizer.apply_chat_template(
                said, add_generation_prompt=True, return_dict=True
            )["input_ids"]
            if len(ids) not in PROMPT_TOKENS:
                break
            trace = recorded(each.group, f"{each.id} {turn + 1}" if turn else each.id, list(ids))
            answer = loaded.tokenizer.decode(trace.output, skip_special_tokens=True)
            said.append({"role": "assistant", "content": answer})
            if len(trace.output) >= 2:
                yield trace
    named = {name: passage for name, _, passage in passages()}
    yield from agent_sessions.traces(
        lambda text: list(loaded.tokenizer(text, add_special_tokens=False)["input_ids"]), named
    )


def add_arguments(options: CommandOptions) -> None:
    options.add("--out", type=Path, default=PUBLIC, metavar="FILE")
    options.count("--max-new-tokens", 80, "most new tokens of each trace")


def run(arguments: argparse.Namespace) -> int:
    """Record the traces."""
    loaded, out = load(None, "float32"), arguments.out
    known = {(each.group, each.id): each for each in read_traces(out)} if out.exists() else {}
    found: list[Trace] = []
    for trace in traces(loaded, arguments.max_new_tokens, known):
        found.append(trace)
        known[trace.group, trace.id] = trace
        write_traces(out, known.values())
    write_traces(out, found)
    print(f"\n{len(found)} traces in {out}")
    return 0
