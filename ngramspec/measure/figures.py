"""Figures 1 to 5 of Leviathan et al. 2023, by the closed forms and from measured runs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np

matplotlib.use("Agg")
from matplotlib import pyplot as plt
from matplotlib.ticker import MaxNLocator

from ngramspec.measure.plots import OTHERS, OURS, WIDTH, finish, new_plot, save
from ngramspec.theory.operations import operations_factor
from ngramspec.theory.walltime import expected_tokens, improvement, optimal_gamma

ACCEPTED, REJECTED, CORRECTED, PLAIN = OURS[0], "#57606a", OTHERS[1], "#8c959f"
DRAFTING, FORWARD = "#54aeff", "#8250df"
GAMMAS = (1, 3, 5, 7, 10)
COSTS = (0.01, 0.02, 0.05, 0.1)
FONT, FONT_WIDTH = 9, 0.602  # points, and a monospace letter's share of them
COLUMNS = int(13 * 72 / (FONT * FONT_WIDTH))  # letters of a line of Figure 1, 13 inches wide
MAX_EARLIER_CHARACTERS = 80  # of the text so far that a line of Figure 1 shows
MAX_LINES = 24  # steps in Figure 1
TRACE_ALPHA, TRACE_C, TRACE_TOKENS, TRACE_GAMMAS = 0.75, 0.05, 24, (7, 3)

Step = Mapping[str, Any]  # one of the ``steps`` that ``ngramspec explain --json`` writes


def figure_2(folder: Path) -> list[Path]:
    """Expected tokens of a step by alpha (Equation 1)."""
    alphas = np.linspace(0, 1, 201)
    figure, axes = new_plot()
    for gamma in GAMMAS:
        axes.plot(alphas, expected_tokens(alphas, gamma), label=f"gamma {gamma}")
    endless = alphas[alphas < 0.91]
    axes.plot(endless, expected_tokens(endless, np.inf), "k--", label="gamma without end")
    _baseline(axes)
    finish(axes, xlabel="alpha", ylabel="expected tokens per step", title="Figure 2: Equation 1")
    return save(figure, folder, "figure-2")


def figure_3(folder: Path) -> list[Path]:
    """The optimal gamma by alpha, for several c (Theorem 3.8)."""
    alphas = np.linspace(0.3, 0.95, 400)
    figure, axes = new_plot()
    for c in COSTS:
        axes.plot(alphas, optimal_gamma(alphas, c), label=f"c = {c:g}")
    title = "Figure 3: the best gamma of Theorem 3.8"
    finish(axes, xlabel="alpha", ylabel="optimal gamma", title=title)
    return save(figure, folder, "figure-3")


def figure_4(folder: Path) -> list[Path]:
    """Speed and operations by alpha at c = c_hat = 0 (Theorems 3.8 and 3.11)."""
    alphas = np.linspace(0.3, 1, 201)
    figure, axes = new_plot()
    for number, gamma in enumerate(GAMMAS[1:]):
        colour = f"C{number}"
        axes.plot(alphas, improvement(alphas, gamma), colour, label=f"speed, gamma {gamma}")
        operations = operations_factor(alphas, gamma)
        axes.plot(alphas, operations, colour, linestyle="--", label=f"operations, gamma {gamma}")
    title = "Figure 4: speed and operations"
    _baseline(axes)
    finish(axes, xlabel="alpha", ylabel="relative to the baseline", title=title)
    return save(figure, folder, "figure-4")


def figure_1(folder: Path, run: Mapping[str, Any]) -> list[Path]:
    """The text of a run's first prompt, a line for each step: accepted, rejected, corrected.

    The run is what ``ngramspec explain --json`` wrote. Only the first lines are drawn.
    """
    shown = [step for step in run["steps"] if step["prompt"] == 0][:MAX_LINES]
    figure = plt.figure(figsize=(13, 0.27 * len(shown) + 0.7))
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set(xlim=(0, COLUMNS), ylim=(len(shown) + 0.2, -1.2))
    axes.axis("off")
    legend = (("accepted", ACCEPTED), ("rejected", REJECTED), ("the target's own", CORRECTED))
    _write(axes, -0.7, [(f"{word}  ", colour) for word, colour in legend])
    text = ""
    for line, step in enumerate(shown):
        parts = [(text[-MAX_EARLIER_CHARACTERS:], PLAIN), *step_parts(step)]
        _write(axes, line, parts)
        text += "".join(step["emitted"])
    return save(figure, folder, "figure-1")


def step_parts(step: Step) -> list[tuple[str, str]]:
    """(text, colour) of the accepted, rejected and target's own tokens of a step.

    Of a tree's rejected nodes only the first that was verified is shown.
    """
    accepted = len(step["accepted"])
    parts = [(piece, ACCEPTED) for piece in step["emitted"][:accepted]]
    wrong = [node for node in range(len(step["drafted"])) if node not in step["accepted"]]
    parents = step["parents"] or range(-1, len(step["drafted"]) - 1)
    last = step["accepted"][-1] if accepted else -1
    parts += [(step["drafted"][node], REJECTED) for node in wrong if parents[node] == last][:1]
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


def figure_5(folder: Path, run: Mapping[str, Any] | None = None) -> list[Path]:
    """Traces: drafting and the target's forwards over time, of a run as in ``figure_1``.

    None: the paper's diagram, simulated with alpha 0.75 and c 0.05.
    """
    rows = _measured_rows(run) if run is not None else _simulated_rows()
    figure, axes = plt.subplots(figsize=(WIDTH, 0.8 * len(rows) + 1), layout="constrained")
    for number, bars in enumerate(rows.values()):
        for kind, colour in (("draft", DRAFTING), ("forward", FORWARD)):
            spans = [(begin, length) for what, begin, length in bars if what == kind]
            axes.broken_barh(
                spans, (number - 0.35, 0.7), facecolors=colour, edgecolor="white", linewidth=0.4
            )
    axes.set_yticks(range(len(rows)), list(rows))
    axes.invert_yaxis()
    unit = "seconds" if run is not None else "forwards of the target"
    axes.set(xlabel=unit, title="Figure 5: drafting (blue) and the target (purple)")
    return save(figure, folder, "figure-5")


Bars = list[tuple[str, float, float]]  # (what, begin, length)


def _bars(parts: Iterable[tuple[str, float]]) -> Bars:
    """Parts (what, length) one after another; "other" is a gap."""
    bars: Bars = []
    at = 0.0
    for what, length in parts:
        bars.append((what, at, length))
        at += length
    return bars


def _simulated_rows() -> dict[str, Bars]:
    hits = np.random.default_rng(0).random(4 * TRACE_TOKENS) < TRACE_ALPHA
    rows: dict[str, Bars] = {}
    for gamma in TRACE_GAMMAS:
        parts: list[tuple[str, float]] = []
        tokens = 0
        while tokens < TRACE_TOKENS:
            parts += [("draft", TRACE_C)] * gamma + [("forward", 1.0)]
            run = hits[tokens : tokens + gamma]
            tokens += 1 + (gamma if run.all() else int(run.argmin()))
        rows[f"gamma {gamma}"] = _bars(parts)
    rows["baseline"] = _bars([("forward", 1.0)] * TRACE_TOKENS)
    return rows


def _measured_rows(run: Mapping[str, Any]) -> dict[str, Bars]:
    steps = [step for step in run["steps"] if step["prompt"] == 0 and step["index"]]
    kinds = ("draft", "forward", "other")
    ours = _bars((kind, step[f"{kind}_seconds"]) for step in steps for kind in kinds)
    tokens = sum(len(step["emitted"]) for step in steps)
    return {
        "speculative": ours,
        "baseline": _bars([("forward", run["plain_token_seconds"])] * tokens),
    }


def plot_alpha(rows: Sequence[Mapping[str, Any]], folder: Path) -> list[Path]:
    """Alpha by position in the draft, with standard errors; a figure for each temperature.

    The rows are those of ``ngramspec alpha --json``.
    """
    written = []
    for temperature in dict.fromkeys(row["temperature"] for row in rows):
        figure, axes = new_plot()
        for row in rows:
            if row["temperature"] == temperature and row["group"] == "all":
                means, errors, _ = zip(*(row["alpha"]["by_depth"] or [(0, 0, 0)]), strict=True)
                at = range(1, len(means) + 1)
                axes.errorbar(at, means, errors, marker="o", capsize=2, label=row["drafter"])
        title = f"Temperature {temperature:g}"
        finish(axes, xlabel="position in the draft", ylabel="alpha", ylim=(0, 1), title=title)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        written += save(figure, folder, f"alpha-temperature-{temperature:g}")
    return written


def _baseline(axes: Any) -> None:
    axes.axhline(1, color="grey", linewidth=1, label="baseline")
