"""Next edits: windows of files that a model returns changed, replayed from a repository's commits.

    python -m benchmarks next_edit FOLDER --json next_edit.json

FOLDER is a clone with its history. Each commit that changes a few lines of a Python file gives a
trace: the prompt has the lines before a window and the window as it was, in the form of Zed's Zeta
or of Sweep's models, and the answer is the window as the commit left it. Each is replayed with the
costs of a CPU and of a GPU: with the usual drafts, as the server drafts, which predicts the window
("predicted"), and by an oracle that drafts from the place in the window that agrees longest,
wherever it is.
"""

from __future__ import annotations

import argparse
import subprocess
from collections.abc import Callable, Iterator, Sequence
from difflib import SequenceMatcher
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.harness import show_and_write
from benchmarks.rollouts import CURVES, TREE, Place, ideal, ratios
from ngramspec.cli.options import CommandOptions
from ngramspec.draft import Int32
from ngramspec.drafters import build_drafter
from ngramspec.measure.models import load
from ngramspec.measure.replay import Player, ReplayPlan, cost_curve
from ngramspec.measure.traces import Trace
from ngramspec.server.prompts import next_edit
from ngramspec.server.service import JOINED_TOKENS

FORMS = {  # the prompt around {window}, and what precedes the answer
    # zed-industries/zed, crates/zeta_prompt, the first version of the model
    "zeta": (
        "### User Excerpt:\n\n```{path}\n{before}<|editable_region_start|>\n{window}"
        "<|editable_region_end|>\n```\n\n### Response:\n",
        "<|editable_region_start|>\n",
    ),
    # huggingface.co/sweepai/sweep-next-edit-v2-7B, inference.py
    "sweep": (
        "<|file_sep|>{path}\n{before}\n<|file_sep|>original/{path}\n{window}\n"
        "<|file_sep|>current/{path}\n{window}\n<|file_sep|>updated/{path}\n",
        "",
    ),
}
BEFORE, AROUND = 40, 8  # lines before a window, and around its changes
MOST_LINES = 40  # of a window
WINDOW = range(100, 600)  # tokens of a window


def add_arguments(options: CommandOptions) -> None:
    options.path("repository", "FOLDER", "a clone with its history")
    options.count("--most", 100, "traces of each form")
    options.json()


def windows(repository: Path) -> Iterator[tuple[str, str, str, str]]:
    """Path, lines before, and the window before and after each small change, newest first."""

    def git(*words: str) -> str:
        command = ["git", "-C", str(repository), *words]
        return subprocess.run(command, capture_output=True, text=True, errors="replace").stdout

    for commit in git("log", "--no-merges", "--format=%H").split():
        changed = git("diff-tree", "--no-commit-id", "--name-only", "--diff-filter=M", "-r", commit)
        for path in changed.splitlines():
            if path.endswith(".py"):
                old, new = (git("show", f"{each}:{path}") for each in (f"{commit}~", commit))
                yield from ((path, *found) for found in window(old, new))


def window(old: str, new: str) -> Iterator[tuple[str, str, str]]:
    """The lines before the window around the first changes, and the window before and after."""
    before, after = old.splitlines(keepends=True), new.splitlines(keepends=True)
    found = SequenceMatcher(None, before, after, autojunk=False).get_opcodes()
    changes = [each[1:] for each in found if each[0] != "equal"]
    if not changes:
        return
    begin, end = max(changes[0][0] - AROUND, 0), changes[0][1] + AROUND
    inside = [each for each in changes if each[1] <= end]
    outside = [each[0] for each in changes if each[1] > end]
    if not inside:
        return
    end = min([inside[-1][1] + AROUND, len(before), *outside])
    if end - begin <= MOST_LINES:
        shift = inside[-1][3] - inside[-1][1]
        parts = (
            before[max(begin - BEFORE, 0) : begin],
            before[begin:end],
            after[begin : end + shift],
        )
        yield "".join(parts[0]), "".join(parts[1]), "".join(parts[2])


def traces(repository: Path, most: int) -> Iterator[tuple[Trace, Int32]]:
    """Traces of each form, and the answers that the server predicts."""
    loaded = load(None, "bfloat16")
    counts = dict.fromkeys(FORMS, 0)
    for path, before, old, new in windows(repository):
        if min(counts.values()) >= most:
            return
        ids = loaded.encode(old, chat=False)
        if len(ids) not in WINDOW:
            continue
        for name, (form, start) in FORMS.items():
            prompt = form.format(path=path, before=before, window=old)
            given, answer, predicted = (
                int32(loaded.encode(each, chat=False))
                for each in (prompt, start + new, next_edit(prompt))
            )
            answer = np.append(answer, np.int32(loaded.eos_ids[0]))
            yield Trace(name, str(counts[name]), given, answer), predicted
            counts[name] += 1


def int32(ids: list[int]) -> Int32:
    return np.array(ids, np.int32)


def rows(found: list[tuple[Trace, Int32]]) -> Iterator[dict[str, Any]]:
    """Tokens per call and per cost, by cost curve and form."""
    for curve in CURVES:
        cost = cost_curve(curve, TREE)
        for form in FORMS:
            own = [each for each in found if each[0].group == form]
            kinds = {"usual": [trace for trace, _ in own]}
            kinds["predicted"] = [
                Trace(form, trace.id, joined(trace.prompt, ids), trace.output) for trace, ids in own
            ]
            row: dict[str, Any] = {"curve": curve, "form": form, "windows": len(own)}
            for name, given in kinds.items():
                plan = ReplayPlan(cost, gamma_max=TREE, tree=True)
                (tally,) = Player(build_drafter("auto"), plan).play(given).groups.values()
                row |= ratios(name, [(tally.emitted, tally.target_calls, tally.cost)])
            oracle = [ideal(trace, anywhere(ids.tolist()), cost) for trace, ids in own]
            yield row | ratios("oracle", oracle)


def anywhere(ids: list[int]) -> Callable[[int], Sequence[Place]]:
    """All places of a text, after any token."""
    places = [(ids, at) for at in range(len(ids))]
    return lambda _: places


def joined(prompt: Int32, predicted: Int32) -> Int32:
    """A prompt after a text that its answer will resemble, as the server puts them together."""
    return np.concatenate((prompt[-JOINED_TOKENS:], predicted, prompt))


def run(arguments: argparse.Namespace) -> int:
    found = list(traces(arguments.repository, arguments.most))
    return show_and_write(arguments, rows(found))
