"""Traces: what models generated after prompts, as token ids; recorded, written and read."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ngramspec.draft import Float32, Int32
from ngramspec.files import written

MAX_ID = 2**31 - 1


@dataclass(frozen=True, slots=True, eq=False)
class RecordedTopTokens:
    """The target's k most probable tokens at the positions of an output's n tokens."""

    ids: Int32  # (n, k), the most probable first; -1 where they were not recorded
    log_probs: Float32  # (n, k), their natural logarithms of probability, to three decimals


@dataclass(frozen=True, slots=True, eq=False)
class Trace:
    """One recorded generation."""

    group: str  # the kind of text, for which figures are given
    id: str
    prompt: Int32  # token ids (n,)
    output: Int32  # token ids (n,), at least two
    repo: str = ""  # the repository it was taken from, if any
    top_tokens: RecordedTopTokens | None = None
    session: str = ""  # the conversation of which it is a turn, if any


def read_traces(path: Path) -> list[Trace]:
    """Read a JSON-lines file of objects with ``group``, ``id``, ``prompt`` and ``output``.

    Outputs of fewer than two tokens are left out: the prefill emits the first. A ValueError names
    the first line that is no such object, or says that there is no trace.
    """
    traces = [_trace(each, f"{path}, line {number}") for number, each in json_lines(path)]
    traces = [trace for trace in traces if len(trace.output) >= 2]
    if not traces:
        raise ValueError(f"{path} holds no trace with an output of two tokens or more")
    return traces


def json_lines(path: Path) -> Iterator[tuple[int, Any]]:
    """The number and the value of each line that is not blank; a ValueError names a bad line."""
    with open(path, "rb") as lines:
        for number, line in enumerate(lines, 1):
            if line.strip():
                try:
                    value = json.loads(line.decode("utf-8"))
                except (ValueError, RecursionError) as error:
                    raise ValueError(f"{path}, line {number}: not JSON: {error}") from error
                yield number, value


def write_traces(path: Path, traces: Iterable[Trace]) -> int:
    """Write traces, for ``read_traces``, one at a time as in ``written``; return their number."""
    count = 0
    with written(path) as lines:
        for trace in traces:
            ids = {"prompt": trace.prompt.tolist(), "output": trace.output.tolist()}
            line: dict[str, Any] = {"group": trace.group, "id": trace.id, **ids}
            if trace.session:
                line["session"] = trace.session
            if trace.top_tokens is not None:
                line["top_ids"] = trace.top_tokens.ids.tolist()
                rounded = trace.top_tokens.log_probs.astype(np.float64).round(3)
                line["top_log_probs"] = rounded.tolist()
            lines.write(json.dumps(line, separators=(",", ":")).encode() + b"\n")
            lines.flush()
            count += 1
    return count


def by_group(traces: Iterable[Trace]) -> dict[str, list[Trace]]:
    """The traces of each group; groups are in the order of their first traces."""
    groups: dict[str, list[Trace]] = {}
    for trace in traces:
        groups.setdefault(trace.group, []).append(trace)
    return groups


def _trace(fields: Any, where: str) -> Trace:
    if not isinstance(fields, dict):
        raise ValueError(f"{where}: must be an object, got {type(fields).__name__}")
    for name in ("group", "id", "prompt", "output"):
        if name not in fields:
            raise ValueError(f"{where}: {name!r} is missing")
    prompt, output = (_ids(fields[name], f"{where}: {name}") for name in ("prompt", "output"))
    return Trace(
        str(fields["group"]),
        str(fields["id"]),
        prompt,
        output,
        str(fields.get("repo", "")),
        _top_tokens(fields, len(output), where),
        str(fields.get("session", "")),
    )


def _top_tokens(fields: dict[str, Any], length: int, where: str) -> RecordedTopTokens | None:
    """The optional ``top_ids`` and ``top_log_probs`` of a line."""
    if "top_ids" not in fields:
        return None
    try:
        ids = np.array(fields["top_ids"])
        log_probs = np.array(fields.get("top_log_probs"), np.float32)
        sound = ids.ndim == 2 and ids.dtype.kind == "i" and ids.shape == log_probs.shape
    except (TypeError, ValueError):  # rows of different lengths, or no numbers
        sound = False
    if not sound or len(ids) != length or ids.min() < -1 or ids.max() > MAX_ID:
        raise ValueError(
            f"{where}: top_ids and top_log_probs must be lists of {length} equally long lists of"
            " token ids and of numbers"
        )
    return RecordedTopTokens(ids.astype(np.int32), log_probs)


def _ids(value: Any, where: str) -> Int32:
    if not isinstance(value, list) or not all(type(each) is int for each in value):
        raise ValueError(f"{where} must be a list of token ids")
    if value and not (min(value) >= 0 and max(value) <= MAX_ID):
        raise ValueError(f"{where}: token ids must lie in 0..{MAX_ID}")
    return np.array(value, np.int32)
