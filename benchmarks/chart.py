"""README's chart: the speed of each prompt by model and task, as SVG. ``make figures`` draws it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from statistics import geometric_mean
from typing import Any

from benchmarks.renderers import MODELS, TASKS, Raw, Speedups, speedups

MODES = {"greedy": "greedy", "sampled": "sampled, with the model's own settings"}
OURS, LOOKUP, INK, FAINT = "#0072B2", "#B4BBC3", "#24292F", "#6E7781"
WIDTH, ROW, MARGIN = 8.7, 0.26, 0.95  # inches
BAR = 0.34  # of a row
DOTS = {"s": 11, "color": "white", "edgecolors": INK, "linewidths": 0.6, "zorder": 3}
TICKS = (0.5, 0.75, 1, 1.5, 2, 3, 4, 6, 8)
FONTS = ("'DejaVu Sans'", "Helvetica, Arial, 'DejaVu Sans', sans-serif")  # drawn, shown


def draw(path: Path, version: str, raw: Raw, *_others: Raw) -> None:
    """Write the chart of ``benchmarks models`` in float32; ``version`` identifies the data."""
    import matplotlib
    from matplotlib.figure import Figure

    cells = {cell: each for cell, each in speedups(raw).items() if cell[1] == "float32"}
    models = list(dict.fromkeys(cell[0] for cell in cells))
    tasks = [task for task in TASKS if any(cell[3] == task for cell in cells)]
    settings: Any = {"svg.fonttype": "none", "svg.hashsalt": "chart", "font.family": "DejaVu Sans"}
    with matplotlib.rc_context(settings | {"font.size": 9, "text.color": INK}):
        rows = len(models) * (len(tasks) + 1)
        height = rows * ROW + MARGIN
        figure = Figure(figsize=(WIDTH, height), facecolor="white")
        panels = figure.subplots(1, len(MODES), sharex=True, sharey=True)
        values = [value for each in cells.values() for value in (*each.ours, *each.lookup)]
        for axes, title in zip(panels, MODES.values(), strict=True):
            frame(axes, title, min(values), max(values))
        for (model, _, mode, task), each in cells.items():
            row = models.index(model) * (len(tasks) + 1) + tasks.index(task) + 1
            prompts(panels[list(MODES).index(mode)], row, each)
        panels[0].set_ylim(rows - 0.3, -0.55)
        labels(panels[0], models, tasks)
        legend(figure, height)
        figure.subplots_adjust(0.165, 0.36 / height, 0.985, 1 - 0.62 / height, wspace=0.05)
        figure.savefig(path, metadata={"Date": None, "Title": "Speedup", "Description": version})
    path.write_text(path.read_text("utf-8").replace(*FONTS), "utf-8")


def frame(axes: Any, title: str, least: float, most: float) -> None:
    """Axes with a logarithmic scale whose line at 1 is the baseline."""
    axes.set_xscale("log")
    axes.set_xlim(min(least, 0.75) / 1.08, most * 1.42)  # with room for the means
    shown = [tick for tick in TICKS if least / 1.05 < tick < most * 1.05 or tick == 1]
    axes.set_xticks(shown, [f"{tick:g}x" for tick in shown])
    axes.set_xticks([], minor=True)
    axes.tick_params(length=0, labelcolor=FAINT)
    axes.grid(axis="x", color="#E6E9ED", linewidth=0.7)
    axes.axvline(1, color=INK, linewidth=0.9)
    axes.set_axisbelow(True)
    axes.set_title(title, loc="left", fontsize=9.5, fontweight="bold", pad=6)
    axes.set_frame_on(False)


def prompts(axes: Any, row: int, each: Speedups) -> None:
    """A bar from the baseline to the mean for lookup and one for ours, with a dot per prompt."""
    for place, speeds, colour in ((-0.2, each.lookup, LOOKUP), (0.2, each.ours, OURS)):
        mean = geometric_mean(speeds)
        axes.barh(row + place, mean - 1, BAR, left=1, color=colour, zorder=1)
        axes.scatter(speeds, [row + place] * len(speeds), **DOTS)
    text = f"{geometric_mean(each.ours):.2f}"
    axes.text(1, row, text, ha="right", va="center", color=OURS, fontweight="bold",
              transform=axes.get_yaxis_transform())  # fmt: skip


def labels(axes: Any, models: Sequence[str], tasks: Sequence[str]) -> None:
    """The models and their tasks, at the left of the first panel."""
    from matplotlib.transforms import blended_transform_factory

    left = blended_transform_factory(axes.figure.transFigure, axes.transData)
    axes.set_yticks([])
    for at, model in enumerate(models):
        first = at * (len(tasks) + 1)
        axes.text(0.008, first + 0.1, MODELS[model], va="center", fontweight="bold", transform=left)
        for row, task in enumerate(tasks, first + 1):
            axes.text(0.158, row, TASKS[task], ha="right", va="center", transform=left)


def legend(figure: Any, height: float) -> None:
    """What the colours and dots mean, above the panels."""
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    shown = {
        "prompt lookup, the better of 3 and 10 tokens": Patch(color=LOOKUP),
        "ngramspec, with its mean": Patch(color=OURS),
        "a prompt": figure.axes[0].scatter([], [], **DOTS),
        "plain generate = 1x": Line2D([], [], color=INK, linewidth=0.9),
    }
    figure.legend(
        shown.values(), shown.keys(), ncols=4, frameon=False, loc="upper left",
        bbox_to_anchor=(0.005, 1 - 0.02 / height), handlelength=1.1, columnspacing=1.4,
        handletextpad=0.5,
    )  # fmt: skip
