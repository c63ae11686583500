"""Plots of what was measured; matplotlib is imported here and in figures, and nowhere else."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import cycle
from pathlib import Path
from typing import Any

import matplotlib
from cycler import cycler

matplotlib.use("Agg")
from matplotlib import pyplot as plt

WIDTH, HEIGHT = 9.0, 4.8  # inches
FORMATS = ("png", "svg")
DPI = 120  # at which letters of Figure 1 are whole pixels wide
MAX_DRAFT_POSITIONS = 32
MIN_VERIFIED_TOKENS = 30  # shares of fewer tokens are noise; not tuned
# Colours that differ with every kind of colour blindness (Okabe and Ito), without green. Ours are
# shades of blue, configurations without drafts are grey, and other projects have the rest.
OURS = ("#0072B2", "#56B4E9", "#003A5C", "#A6D8F5")
OTHERS = ("#E69F00", "#D55E00", "#CC79A7", "#000000")
GREY = "#B8BDC3"
BASELINES = ("plain", "none")
PEERS = ("prompt lookup", "arctic", "twin")  # prefixes of their names
Panels = dict[str, dict[str, list[tuple[float, float]]]]  # points by title and name
plt.rcParams["axes.prop_cycle"] = cycler(color=(OURS[0], *OTHERS, OURS[1]))
E2E = {  # column -> label of its axis
    "ratio": "speedup over the baseline",
    "tokens_per_second": "new tokens / s, prefill included",
    "tokens_per_call": "tokens per call",
    "limit_share": "share of the limit",
    "peak_bytes": "peak memory (MB)",
}


def save(figure: Any, folder: Path, name: str) -> list[Path]:
    """Write a figure as PNG and SVG. The folder is created if necessary."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / f"{name}.{kind}" for kind in FORMATS]
    for path in paths:
        figure.savefig(path, dpi=DPI, metadata={"Date": None} if path.suffix == ".svg" else None)
    plt.close(figure)
    return paths


def colours(names: Sequence[str]) -> dict[str, str]:
    """The colour of each configuration or drafter of a plot, by its name.

    Only the first four of ours, and the first four others, have different colours.
    """
    ours, others = cycle(OURS), cycle(OTHERS)
    return {
        name: GREY if name in BASELINES else next(others if name.startswith(PEERS) else ours)
        for name in names
    }


def new_plot() -> tuple[Any, Any]:
    """A figure and its axes, of the size of all plots without panels."""
    return plt.subplots(figsize=(WIDTH, HEIGHT), layout="constrained")


def finish(axes: Any, **settings: Any) -> None:
    """Set labels, title and limits by name, and add a grid and a legend."""
    axes.set(**settings)
    axes.grid(alpha=0.3)
    axes.legend(fontsize="small")


def plot_panels(
    panels: Panels, width: float, *, xlabel: str, ylabel: str, yscale: str = "linear"
) -> Any:
    """A figure of lines in one panel per title over a logarithmic x axis, with one legend.

    ``width`` is that of a panel, in inches.
    """
    names = list(dict.fromkeys(name for lines in panels.values() for name in lines))
    colour = colours(names)
    size = (width * len(panels) + 1, HEIGHT)
    figure, row = plt.subplots(
        1, len(panels), figsize=size, sharey=True, squeeze=False, layout="constrained"
    )
    for axes, (title, lines) in zip(row[0], panels.items(), strict=True):
        for name in names:  # also one without points, for the legend and the colours
            points = lines.get(name, [])
            x, y = [x for x, _ in points], [y for _, y in points]
            axes.plot(x, y, marker="o", color=colour[name], label=name)
        axes.set(title=title, xscale="log", yscale=yscale, xlabel=xlabel)
        axes.grid(alpha=0.3)
    figure.axes[0].set_ylabel(ylabel)
    _legend_below(figure)
    return figure


def _legend_below(figure: Any) -> None:
    handles = figure.axes[0].get_legend_handles_labels()
    figure.legend(*handles, loc="outside lower center", ncols=4)


def plot_replay(results: Sequence[dict[str, Any]], folder: Path) -> list[Path]:
    """Plot tokens per call by group, acceptance by position and reliability for each cost curve.

    The results are those of ``ngramspec replay``. Returns the files written.
    """
    written = []
    plots = {"groups": _groups, "positions": _positions, "reliability": _reliability}
    for curve in dict.fromkeys(result["curve"] for result in results):
        mine = [result for result in results if result["curve"] == curve]
        for name, draw in plots.items():
            figure, axes = new_plot()
            draw(axes, mine, curve)
            written += save(figure, folder, f"replay-{curve}-{name}")
    return written


def _bars(axes: Any, groups: Sequence[str], values: dict[str, list[float]]) -> None:
    """Bars of each configuration's or drafter's values, side by side in every group."""
    width = 0.8 / len(values)
    colour = colours(list(values))
    for which, (name, heights) in enumerate(values.items()):
        at = [group + (which - (len(values) - 1) / 2) * width for group in range(len(groups))]
        axes.bar(at, heights, width, color=colour[name], label=name)
    axes.grid(axis="y", alpha=0.3)


def _groups(axes: Any, results: Sequence[dict[str, Any]], curve: str) -> None:
    groups = [*results[0]["groups"], "geometric mean"]
    values = {
        result["drafter"]: [
            each["tokens_per_call"] for each in (*result["groups"].values(), result["mean"])
        ]
        for result in results
    }
    _bars(axes, groups, values)
    axes.set_xticks(range(len(groups)), [re.sub("[ _]", "\n", name) for name in groups])
    axes.set(ylabel="tokens per call", yscale="log", title=f"Tokens per call, {curve} curve")
    axes.set_yticks([1, 1.5, 2, 3, 5, 10, 20], ["1", "1.5", "2", "3", "5", "10", "20"])
    axes.set_ylim(bottom=1)
    axes.minorticks_off()
    axes.legend(fontsize="small")


def _positions(axes: Any, results: Sequence[dict[str, Any]], curve: str) -> None:
    colour = colours([result["drafter"] for result in results])
    for result in results:
        shares = {
            int(at) + 1: share["accepted"] / share["verified"]
            for at, share in result["positions"].items()
            if share["verified"] >= MIN_VERIFIED_TOKENS and int(at) < MAX_DRAFT_POSITIONS
        }
        name = result["drafter"]
        axes.plot(list(shares), list(shares.values()), marker=".", color=colour[name], label=name)
    finish(
        axes,
        xlabel="position in the draft",
        ylabel="accepted / verified",
        ylim=(0, 1),
        title=f"Acceptance by position, {curve} curve, all groups together",
    )


def _reliability(axes: Any, results: Sequence[dict[str, Any]], curve: str) -> None:
    axes.plot([0, 1], [0, 1], color="grey", linewidth=1, label="ideal")
    colour = colours([result["drafter"] for result in results])
    for result in results:
        shares = [s for s in result["confidence"].values() if s["verified"] >= MIN_VERIFIED_TOKENS]
        if shares:
            axes.plot(
                [share["expected"] / share["verified"] for share in shares],
                [share["accepted"] / share["verified"] for share in shares],
                marker="o",
                color=colour[result["drafter"]],
                label=result["drafter"],
            )
    finish(
        axes,
        xlabel="confidence (mean of the bin)",
        ylabel="accepted / verified",
        xlim=(0, 1),
        ylim=(0, 1),
        title=f"Reliability, {curve} curve",
    )


def plot_e2e(rows: Sequence[dict[str, Any]], folder: Path) -> list[Path]:
    """Bars of all figures by task and configuration, and the ratio by prompt length if set.

    The rows are the ``summary`` of ``ngramspec bench``. Returns the files written.
    """
    written = []
    for length in dict.fromkeys(row["length"] for row in rows):
        mine = [row for row in rows if row["length"] == length]
        for column, label in E2E.items():
            figure, axes = new_plot()
            _bars_by_task(axes, mine, column)
            axes.set(ylabel=label, title="" if length is None else f"prompts of {length} tokens")
            _legend_below(figure)
            suffix = "" if length is None else f"-{length}"
            written += save(figure, folder, f"e2e-{column.replace('_', '-')}{suffix}")
    lengths = {row["length"] for row in rows} - {None}
    if len(lengths) > 1:
        written += _by_length(rows, folder)
    return written


def _bars_by_task(axes: Any, rows: Sequence[dict[str, Any]], column: str) -> None:
    tasks = list(dict.fromkeys(row["task"] for row in rows))
    scale = 1e6 if column == "peak_bytes" else 1.0
    values: dict[str, list[float]] = {}
    for way in dict.fromkeys(row["way"] for row in rows):
        found = {row["task"]: row[column] for row in rows if row["way"] == way}
        values[way] = [(found.get(task) or 0.0) / scale for task in tasks]
    _bars(axes, tasks, values)
    axes.set_xticks(range(len(tasks)), [re.sub("[ _]", "\n", task, count=1) for task in tasks])
    axes.set_axisbelow(True)
    if column in ("ratio", "limit_share"):
        axes.axhline(1, color="grey", linewidth=1)


def _by_length(rows: Sequence[dict[str, Any]], folder: Path) -> list[Path]:
    panels: Panels = {row["task"]: {} for row in rows}
    for row in rows:
        panels[row["task"]].setdefault(row["way"], []).append((row["length"], row["ratio"]))
    figure = plot_panels(panels, 2.6, xlabel="tokens of prompt", ylabel=E2E["ratio"])
    for axes in figure.axes:
        axes.axhline(1, color="grey", linewidth=1)
    return save(figure, folder, "e2e-ratio-by-length")
