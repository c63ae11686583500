"""Records traces: the tokens that a model generates after the user's prompts."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ngramspec.measure.traces import TopTokens, Trace, json_lines


@dataclass(frozen=True, slots=True)
class Prompt:
    """A text to continue, and the group and name under which its trace is kept."""

    group: str
    id: str
    text: str


def read_prompts(path: Path) -> list[Prompt]:
    """Read prompts: JSON lines, each a string or an object with ``prompt``.

    An object may name its ``group`` (else the file's stem) and ``id`` (else the line's number).

    Raises:
        OSError: it cannot be read.
        ValueError: a line has no prompt, and the message gives its number; or there is no prompt.
    """
    prompts = []
    for number, fields in json_lines(path):
        fields = {"prompt": fields} if isinstance(fields, str) else fields
        text = fields.get("prompt") if isinstance(fields, dict) else None
        if not isinstance(text, str) or not text.strip():
            raise ValueError(f"{path}, line {number}: needs a text as 'prompt'")
        group, id = fields.get("group", path.stem), fields.get("id", number)
        prompts.append(Prompt(str(group), str(id), text))
    if not prompts:
        raise ValueError(f"{path} holds no prompt")
    return prompts


def record(
    prompts: Iterable[Prompt],
    encode: Callable[[str], list[int]],
    generate: Callable[[list[int]], list[int]],
    take: Callable[[int], TopTokens | None] = lambda length: None,
) -> Iterator[Trace]:
    """One trace for each prompt, as it is generated.

    ``generate`` returns the tokens that the model greedily generates after token ids. ``take`` is
    then called with their number, and returns the target's most probable tokens at them, or None.
    """
    for prompt in prompts:
        ids = encode(prompt.text)
        output = np.array(generate(ids), np.int32)
        top_tokens = take(len(output))
        yield Trace(prompt.group, prompt.id, np.array(ids, np.int32), output, top_tokens=top_tokens)
