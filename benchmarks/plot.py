"""Figures 1 to 5 of Leviathan et al. 2023 as PNG and SVG.

python -m benchmarks plot --plots FOLDER         # Figures 2 to 5, by the closed forms
python -m benchmarks plot FILE --plots FOLDER    # Figures 1 and 5 of ngramspec explain --json
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ngramspec.cli.options import CommandOptions, UsageError, usable, writable
from ngramspec.measure.explain import first_rejected
from ngramspec.theory.walltime import expected_tokens, improvement, optimal_gamma

WIDTH, HEIGHT, DPI = 9.0, 4.8, 120  # inches; letters of Figure 1 are whole pixels wide
FORMATS = ("png", "svg")
# They differ with every kind of colour blindness (Okabe and Ito).
ACCEPTED, REJECTED, CORRECTED, PLAIN = "#0072B2", "#57606a", "#D55E00", "#8c959f"
DRAFT, FORWARD = "#56B4E9", "#8250df"
GAMMAS, COSTS = (1, 3, 5, 7, 10), (0.01, 0.02, 0.05, 0.1)
FONT, FONT_WIDTH = 9, 0.602  # points, and a monospace letter's share of them
COLUMNS = int(13 * 72 / (FONT * FONT_WIDTH))  # letters of a line of Figure 1, 13 inches wide
MAX_EARLIER_CHARACTERS = 80  # of the text so far that a line of Figure 1 shows
MAX_LINES = 24  # steps in Figure 1
TRACE_ALPHA, TRACE_C, TRACE_TOKENS, TRACE_GAMMAS = 0.75, 0.05, 24, (7, 3)

Raw = Mapping[str, Any]
Figures = dict[str, Any]  # by the names of their files


def add_arguments(options: CommandOptions) -> None:
    options.path("file", "FILE", "results of a measurement", nargs="?")
    help = "where the files go (default: figures)"
    options.path("--plots", "FOLDER", help, default=Path("figures"))


def run(arguments: argparse.Namespace) -> int:
    """Draw the figures; print the names of the files."""
    figures = {} if arguments.file is not None else paper()
    if arguments.file is not None:
        with usable():
            raw = json.loads(arguments.file.read_text(encoding="utf-8"))
        if "steps" not in raw:
            raise UsageError(f"{arguments.file} has no steps; pass a file of ngramspec explain")
        figures = explained(raw)
    for name, figure in figures.items():
        for kind in FORMATS:
            path = arguments.plots / f"{name}.{kind}"
            with writable("--plots", path):
                path.parent.mkdir(parents=True, exist_ok=True)
                metadata = {"Date": None} if kind == "svg" else None
                figure.savefig(path, dpi=DPI, metadata=metadata)
            print(path)
    return 0


def new_plot(rows: float = HEIGHT) -> tuple[Any, Any]:
    """A figure and its axes."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(WIDTH, rows), layout="constrained")
    return figure, figure.subplots()


def finish(axes: Any, **settings: Any) -> None:
    """Set labels, title and limits by name, and add a grid and a legend."""
    axes.set(**settings)
    axes.grid(alpha=0.3)
    axes.legend(fontsize="small")


def paper() -> Figures:
    """Figures 2 to 5 by the closed forms: Equation 1, Theorems 3.8 and 3.11."""
    two, axes = new_plot()
    alphas = np.linspace(0, 1, 201)
    for gamma in GAMMAS:
        axes.plot(alphas, expected_tokens(alphas, gamma), label=f"gamma {gamma}")
    endless = alphas[alphas < 0.91]
    axes.plot(endless, expected_tokens(endless, np.inf), "k--", label="gamma without end")
    finish(axes, xlabel="alpha", ylabel="expected tokens per step", title="Figure 2: Equation 1")
    three, axes = new_plot()
    alphas = np.linspace(0.3, 0.95, 400)
    for c in COSTS:
        axes.plot(alphas, optimal_gamma(alphas, c), label=f"c = {c:g}")
    title = "Figure 3: the best gamma of Theorem 3.8"
    finish(axes, xlabel="alpha", ylabel="optimal gamma", title=title)
    four, axes = new_plot()
    alphas = np.linspace(0.3, 1, 201)
    for number, gamma in enumerate(GAMMAS[1:]):
        colour, tokens = f"C{number}", expected_tokens(alphas, gamma)
        axes.plot(alphas, improvement(alphas, gamma), colour, label=f"speed, gamma {gamma}")
        work = (gamma + 1) / tokens
        axes.plot(alphas, work, colour, linestyle="--", label=f"operations, gamma {gamma}")
    title = "Figure 4: speed and operations"
    finish(axes, xlabel="alpha", ylabel="relative to the baseline", title=title)
    five = figure_5(simulated(), "forwards of the target")
    return {"figure-2": two, "figure-3": three, "figure-4": four, "figure-5": five}


Bars = list[tuple[str, float, float]]  # (what, begin, length)


def figure_5(rows: Mapping[str, Bars], unit: str) -> Any:
    """Traces: drafting and the target's forwards over time."""
    figure, axes = new_plot(0.8 * len(rows) + 1)
    for number, bars in enumerate(rows.values()):
        for kind, colour in (("draft", DRAFT), ("forward", FORWARD)):
            spans = [(begin, length) for what, begin, length in bars if what == kind]
            place = (number - 0.35, 0.7)
            axes.broken_barh(spans, place, facecolors=colour, edgecolor="white", linewidth=0.4)
    axes.set_yticks(range(len(rows)), list(rows))
    axes.invert_yaxis()
    axes.set(xlabel=unit, title="Figure 5: drafting (blue) and the target (purple)")
    return figure


def in_a_row(parts: Iterable[tuple[str, float]]) -> Bars:
    """Parts (what, length) one after another; "other" is a gap."""
    bars: Bars = []
    at = 0.0
    for what, length in parts:
        bars.append((what, at, length))
        at += length
    return bars


def simulated() -> dict[str, Bars]:
    """The paper's diagram, with alpha 0.75 and c 0.05."""
    hits = np.random.default_rng(0).random(4 * TRACE_TOKENS) < TRACE_ALPHA
    rows: dict[str, Bars] = {}
    for gamma in TRACE_GAMMAS:
        parts: list[tuple[str, float]] = []
        tokens = 0
        while tokens < TRACE_TOKENS:
            parts += [("draft", TRACE_C)] * gamma + [("forward", 1.0)]
            run = hits[tokens : tokens + gamma]
            tokens += 1 + (gamma if run.all() else int(run.argmin()))
        rows[f"gamma {gamma}"] = in_a_row(parts)
    rows["baseline"] = in_a_row([("forward", 1.0)] * TRACE_TOKENS)
    return rows


def explained(raw: Raw) -> Figures:
    """Figures 1 and 5 of a run's first prompt."""
    steps = [step for step in raw["steps"] if step["prompt"] == 0]
    later = [step for step in steps if step["index"]]
    kinds = ("draft", "forward", "other")
    ours = in_a_row((kind, step[f"{kind}_seconds"]) for step in later for kind in kinds)
    tokens = sum(len(step["emitted"]) for step in later)
    baseline = in_a_row([("forward", raw["plain_token_seconds"])] * tokens)
    five = figure_5({"speculative": ours, "baseline": baseline}, "seconds")
    return {"figure-1": figure_1(steps[:MAX_LINES]), "figure-5": five}


def figure_1(steps: Sequence[Raw]) -> Any:
    """The text of a prompt, a line for each step: accepted, rejected, corrected."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(13, 0.27 * len(steps) + 0.7))
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set(xlim=(0, COLUMNS), ylim=(len(steps) + 0.2, -1.2))
    axes.axis("off")
    legend = (("accepted", ACCEPTED), ("rejected", REJECTED), ("the target's own", CORRECTED))
    _write(axes, -0.7, [(f"{word}  ", colour) for word, colour in legend])
    text = ""
    for line, step in enumerate(steps):
        _write(axes, line, [(text[-MAX_EARLIER_CHARACTERS:], PLAIN), *step_parts(step)])
        text += "".join(step["emitted"])
    return figure


def step_parts(step: Raw) -> list[tuple[str, str]]:
    """(text, colour) of the accepted, the rejected and the target's own tokens of a step."""
    accepted, wrong = len(step["accepted"]), first_rejected(step)
    parts = [(piece, ACCEPTED) for piece in step["emitted"][:accepted]]
    parts += [(step["drafted"][wrong], REJECTED)] if wrong is not None else []
    return parts + [(piece, CORRECTED) for piece in step["emitted"][accepted:]]


def _write(axes: Any, line: float, parts: Sequence[tuple[str, str]]) -> None:
    at = 0
    for piece, colour in parts:
        shown = piece.replace("\n", "⏎").replace("\t", " ").replace("$", r"\$")[: COLUMNS - at]
        axes.text(at, line, shown, color=colour, family="monospace", fontsize=FONT)
        if colour == REJECTED and shown.strip():
            axes.plot([at, at + len(shown)], [line - 0.2] * 2, color=colour, linewidth=0.8)
        at += len(piece)
        if at >= COLUMNS:
            break
