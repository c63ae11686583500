"""Agent sessions of the public traces, from a script: a turn's prompt is its whole history.

SmolLM2 is too small to call tools, so the sessions are written by hand, in ``public/agents.txt``.
The ids of their traces end with "scripted". The agent's wording varies: of "[one|another]" each
trial of a task takes one at random.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ngramspec.measure.traces import Trace

SCRIPT = Path(__file__).parent / "public" / "agents.txt"
FIRST, AGAIN = "agents_first", "agents_again"
TRIALS = 3  # the first one of each task is in FIRST
CHOICE = re.compile(r"\[([^][|]*(?:\|[^][|]*)+)\]")
LINE = re.compile(r"^(user|call|tool|agent): ", re.MULTILINE)
WORD = {"type": "string"}
SCHEMAS: Mapping[str, tuple[str, dict[str, Any]]] = {  # description and parameters of each tool
    "get_weather": (
        "The current weather of a city.",
        {"city": WORD, "unit": {"type": "string", "enum": ["celsius", "fahrenheit"]}},
    ),
    "search_flights": (
        "The flights between two cities on a day.",
        {"origin": WORD, "destination": WORD, "date": WORD},
    ),
    "book_flight": ("Books a seat.", {"flight": WORD, "date": WORD, "passenger": WORD}),
    "create_event": (
        "Adds an entry to the calendar.",
        {"title": WORD, "date": WORD, "start": WORD, "end": WORD},
    ),
    "read_text": ("A text of the library.", {"name": WORD}),
}


def tools() -> list[dict[str, Any]]:
    """The agent's tools, in OpenAI's form."""
    found = []
    for name, (description, properties) in SCHEMAS.items():
        parameters = {"type": "object", "properties": properties, "required": list(properties)}
        function = {"name": name, "description": description, "parameters": parameters}
        found.append({"type": "function", "function": function})
    return found


def system() -> str:
    """The first message of every session."""
    schemas = "\n".join(map(json.dumps, tools()))
    form = '<tool_call>\n{"name": ..., "arguments": ...}\n</tool_call>'
    return f"You call these tools:\n<tools>\n{schemas}\n</tools>\nWrite a call as {form}"


@dataclass(frozen=True, slots=True)
class Message:
    """A message of a session."""

    role: str
    text: str


def sessions(passages: Mapping[str, str]) -> Iterator[tuple[str, list[Message]]]:
    """The name, TASK.TRIAL, and the messages of each session: first trials of all tasks first."""
    tasks = [part.partition("\n") for part in SCRIPT.read_text("utf-8").split("# ")[1:]]
    for trial in range(TRIALS):
        for task, _, script in tasks:
            chance = random.Random(f"{task}.{trial}")
            yield f"{task}.{trial}", list(messages(script, passages, chance))


def messages(script: str, passages: Mapping[str, str], chance: random.Random) -> Iterator[Message]:
    """The messages of one session."""
    yield Message("system", system())
    _, *parts = LINE.split(script.strip())
    for kind, text in zip(parts[::2], map(str.strip, parts[1::2]), strict=True):
        if kind == "call":
            name, _, arguments = text.partition(" ")
            call = json.dumps({"name": name, "arguments": json.loads(arguments)})
            yield Message("assistant", f"<tool_call>\n{call}\n</tool_call>")
        elif kind == "tool" and text.startswith("@"):
            yield Message("tool", json.dumps({"name": text[1:], "text": passages[text[1:]]}))
        elif kind == "agent":
            worded = CHOICE.sub(lambda found: chance.choice(found[1].split("|")), text)
            yield Message("assistant", worded.strip())
        else:
            yield Message(kind, text)


def traces(encode: Callable[[str], list[int]], passages: Mapping[str, str]) -> Iterator[Trace]:
    """A trace for each turn of the agent."""
    for name, said in sessions(passages):
        group = FIRST if name.endswith(".0") else AGAIN
        history: list[int] = []
        for turn, message in enumerate(said):
            head = encode(f"<|im_start|>{message.role}\n")
            body = encode(message.text) + encode("<|im_end|>\n")
            if message.role == "assistant":
                prompt, output = (np.array(ids, np.int32) for ids in (history + head, body))
                yield Trace(group, f"{name}/{turn} scripted", prompt, output, session=name)
            history += head + body
