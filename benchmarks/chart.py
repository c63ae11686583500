"""The charts of speedups by model and task, as SVG. ``make figures`` draws them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from statistics import geometric_mean
from typing import Any

from benchmarks.renderers import MODELS, TASKS, Raw, Speedups, speedups

OURS, LOOKUP, INK, FAINT = "#0072b2", "#b4bbc3", "#24292f", "#6e7781"
GRID, PAGE = "#e6e9ed", "#ffffff"
DARK = {OURS: "#58a6ff", LOOKUP: "#6e7681", INK: "#e6edf3", FAINT: "#9198a1"}
DARK |= {GRID: "#30363d", PAGE: "#0d1117"}  # for readers who prefer dark pages
WIDTH, ROW, TOP, GAP, BOTTOM = 8.7, 0.26, 0.62, 0.42, 0.36  # inches
BAR = 0.34  # of a row
DOTS = {"s": 9, "color": PAGE, "edgecolors": INK, "linewidths": 0.6, "zorder": 3}
TICKS = (0.5, 1, 2, 4, 8)
FONTS = ("'DejaVu Sans'", "Helvetica, Arial, 'DejaVu Sans', sans-serif")  # drawn, shown


def draw(path: Path, version: str, *files: Raw, greedy: bool = False) -> None:
    """Write the chart of ``benchmarks models``: a column for each model, a band for each dtype and
    mode; with ``greedy`` that of greedy decoding in float32. ``version`` identifies the data."""
    import matplotlib
    from matplotlib.figure import Figure

    cells = speedups(*files)
    if greedy:
        cells = {cell: each for cell, each in cells.items() if cell[1:3] == ("float32", "greedy")}
    bands: dict[tuple[bool, bool, str, str], list[str]] = {}  # their tasks; sorted: their order
    for _, dtype, mode, task in cells:
        tasks = bands.setdefault((" " in task, dtype != "float32", mode, dtype), [])
        tasks += [task] * (task not in tasks)
    models = list(dict.fromkeys(cell[0] for cell in cells))
    values = [value for each in cells.values() for value in (*each.ours, *each.lookup)]
    rows = [len(bands[band]) for band in sorted(bands)]
    height = TOP + BOTTOM + ROW * sum(rows) + GAP * (len(rows) - 1)
    shape: Any = {"height_ratios": rows, "hspace": GAP * len(rows) / ROW / sum(rows)}
    shape |= {"wspace": 0.06, "left": 0.165, "right": 0.985}
    shape |= {"bottom": BOTTOM / height, "top": 1 - TOP / height}
    settings: Any = {"svg.fonttype": "none", "svg.hashsalt": "chart", "font.family": "DejaVu Sans"}
    with matplotlib.rc_context(settings | {"font.size": 9, "text.color": INK}):
        figure = Figure(figsize=(WIDTH, height), facecolor=PAGE)
        grid = figure.subplots(
            len(rows), len(models), sharex=True, squeeze=False, gridspec_kw=shape
        )
        for band, line in zip(sorted(bands), grid, strict=True):
            long, _, mode, dtype = band
            for model, axes in zip(models, line, strict=True):
                column = [cells.get((model, dtype, mode, task)) for task in bands[band]]
                frame(axes, column, min(values), max(values))
                for row, each in enumerate(column):
                    if each is not None:
                        prompts(axes, row, each)
            title = f"{mode}, {dtype}{', long documents (tokens)' * long}"
            labels(line[0], bands[band], title if len(bands) > 1 else "")
        for model, axes in zip(models, grid[0], strict=True):
            axes.set_title(MODELS[model], loc="left", fontsize=9.5, fontweight="bold", pad=6)
        legend(figure, height)
        figure.savefig(path, metadata={"Date": None, "Title": "Speedup", "Description": version})
    path.write_text(with_dark_colours(path.read_text("utf-8")).replace(*FONTS), "utf-8")


def with_dark_colours(svg: str) -> str:
    """A chart whose colours depend on the reader's preference."""
    rules = "".join(
        f'[style*="{part}: {light}"] {{{part}: {dark} !important}}\n'
        for light, dark in DARK.items()
        for part in ("fill", "stroke")
    )
    style = f"@media (prefers-color-scheme: dark) {{\n{rules}}}\n</style>"
    return svg.replace("</style>", style, 1)


def frame(axes: Any, column: Sequence[Speedups | None], least: float, most: float) -> None:
    """Axes with a logarithmic scale whose line at 1 is the baseline; none without a cell."""
    axes.set_xscale("log")
    axes.set_xlim(min(least, 0.75) / 1.08, most * 2.8)  # with room for the means
    axes.set_ylim(len(column) - 0.4, -0.6)
    shown = [tick for tick in TICKS if least / 1.05 < tick < most * 1.05 or tick == 1]
    axes.set_xticks(shown, [f"{tick:g}x" for tick in shown])
    axes.set_xticks([], minor=True)
    axes.set_yticks([])
    axes.tick_params(length=0, labelcolor=FAINT)
    axes.set_frame_on(False)
    if any(column):
        axes.grid(axis="x", color=GRID, linewidth=0.7)
        axes.axvline(1, color=INK, linewidth=0.9)
        axes.set_axisbelow(True)


def prompts(axes: Any, row: int, each: Speedups) -> None:
    """A bar from the baseline to the mean for lookup and one for ours, with a dot per prompt."""
    for place, speeds, colour in ((-0.2, each.lookup, LOOKUP), (0.2, each.ours, OURS)):
        mean = geometric_mean(speeds)
        axes.barh(row + place, mean - 1, BAR, left=1, color=colour, zorder=1)
        axes.scatter(speeds, [row + place] * len(speeds), **DOTS)
    text = f"{geometric_mean(each.ours):.2f}"
    axes.text(1, row, text, ha="right", va="center", color=OURS, fontweight="bold",
              transform=axes.get_yaxis_transform())  # fmt: skip


def labels(axes: Any, tasks: Iterable[str], title: str) -> None:
    """The tasks at the left of a band's first panel, and its title above them."""
    from matplotlib.transforms import blended_transform_factory

    left = blended_transform_factory(axes.figure.transFigure, axes.transData)
    axes.text(0.008, -0.95, title, va="center", fontweight="bold", transform=left)
    for row, task in enumerate(tasks):
        name, _, tokens = task.partition(" ")
        text = f"{name} ({int(tokens):,})" if tokens else TASKS[name]
        axes.text(0.158, row, text, ha="right", va="center", transform=left)


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
