"""What the benchmarks share: their usual options, recorded prompts, and the JSON of the results."""

from __future__ import annotations

import argparse
import json
import subprocess
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import torch

from ngramspec import DecodeStats, Speculator, generate
from ngramspec.cli.options import CommandOptions, write_json

ROOT = Path(__file__).parents[1]
TRACES_HELP = "JSON lines with group, id, prompt and output, as ngramspec record writes them"


def add_run(options: CommandOptions, *, repeats: int, new: int) -> None:
    """Declare ``--dtype``, ``--repeats``, ``--max-new-tokens`` and ``--json``."""
    options.dtype()
    options.count("--repeats", repeats, "timed calls of each configuration")
    options.count("--max-new-tokens", new, "new tokens of each call")
    options.json()


def add_traces(options: CommandOptions, help: str = TRACES_HELP, default: Any = None) -> None:
    """Declare ``--traces``, which is required unless there is a default."""
    options.path("--traces", "FILE", help, default=default, required=default is None)


def write(arguments: argparse.Namespace, fields: dict[str, Any]) -> None:
    """Write the results, with what is needed to reproduce them; without a file, write nothing."""
    write_json(arguments, {"settings": settings(arguments), "commit": commit(), **fields})


def written(arguments: argparse.Namespace, name: str) -> list[dict[str, Any]]:
    """The list of that name in the results of an interrupted run; empty without a file."""
    path: Path | None = arguments.json
    text = "" if path is None or not path.exists() else path.read_text(encoding="utf-8")
    found: list[dict[str, Any]] = json.loads(text)[name] if text else []
    return found


def show(**cells: Any) -> None:
    """Print the cells of a row by name."""
    shown = (
        f"{name} {each:.3f}" if isinstance(each, float) else f"{name} {each}"
        for name, each in cells.items()
    )
    print("  ".join(shown), flush=True)


def show_and_write(
    arguments: argparse.Namespace, rows: Iterable[dict[str, Any]], *names: str
) -> int:
    """Show each row as it comes, or cells of it, and write all of them; returns the exit code."""
    found = []
    for row in rows:
        found.append(row)
        show(**{name: row[name] for name in names or row if name != "seconds"})
    write(arguments, {"rows": found})
    return 0


def settings(arguments: argparse.Namespace) -> dict[str, Any]:
    """The options as JSON values; of a path, the name."""
    return {
        name: value.name if isinstance(value, Path) else value
        for name, value in vars(arguments).items()
        if name not in ("run", "prog", "command_line")
    }


def commit() -> str | None:
    """The commit of this checkout, with "+" if files were changed; None: it is no checkout."""

    def git(*words: str) -> str:
        try:
            found = subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True)
        except OSError:  # it is not installed
            return ""
        return found.stdout.strip() if found.returncode == 0 else ""

    head = git("rev-parse", "--short=12", "HEAD")
    changed = git("status", "--porcelain", "--untracked-files=no")
    return f"{head}{'+' * bool(changed)}" if head else None


def prepared_call(
    model: Any, inputs: dict[str, torch.Tensor], new: int, **arguments: Any
) -> Callable[..., torch.Tensor]:
    """What calls plain ``generate``, or speculative if it is given a Speculator."""
    given: dict[str, Any] = {"do_sample": False, "max_new_tokens": new, "pad_token_id": 0}
    given |= {"eos_token_id": None, **inputs, **arguments}

    def call(speculator: Speculator | None = None) -> torch.Tensor:
        if speculator is None:
            output: torch.Tensor = model.generate(**given)
        else:
            output = generate(model, speculator=speculator, **given)
        return output

    return call


def counted(
    call: Callable[..., torch.Tensor], speculator: Speculator | None = None
) -> tuple[torch.Tensor, DecodeStats]:
    """The output of a prepared call, and its Speculator's counts."""
    output = call(speculator)
    return output, DecodeStats() if speculator is None else speculator.stats


def padded(prompts: Sequence[Sequence[int]], pad: int = 0) -> dict[str, torch.Tensor]:
    """Prompts as ``input_ids`` and ``attention_mask``, int64 (rows, longest), left-padded."""
    longest = max(map(len, prompts))
    ids = [[pad] * (longest - len(each)) + list(each) for each in prompts]
    mask = [[0] * (longest - len(each)) + [1] * len(each) for each in prompts]
    return {"input_ids": torch.tensor(ids), "attention_mask": torch.tensor(mask)}
