"""Plots of benchmarks; matplotlib is imported with this module."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ngramspec.measure.plots import Panels, finish, new_plot, plot_panels, save


def plot_structures(readings: Sequence[dict[str, Any]], folder: Path) -> list[Path]:
    """Median time of a step against the length of the context, one panel per text."""
    panels: Panels = {each["text"]: {} for each in readings}
    for each in readings:
        line = panels[each["text"]].setdefault(each["drafter"], [])
        line.append((each["tokens"], each["step_us"]))
    label = "a step: propose, observe, extend (µs, median)"
    figure = plot_panels(panels, 3.2, xlabel="tokens of context", ylabel=label, yscale="log")
    return save(figure, folder, "drafters-latency")


def plot_costs(costs: dict[int, dict[int, float]], folder: Path, name: str) -> list[Path]:
    """The relative cost of a forward of n positions: a line for each context."""
    figure, axes = new_plot()
    for context, seconds in costs.items():
        relative = [each / seconds[1] for each in seconds.values()]
        axes.plot(list(seconds), relative, marker=".", label=f"{context} tokens of context")
    finish(axes, xlabel="positions n", ylabel="cost(n)", title="Cost of a forward of n positions")
    axes.set_ylim(bottom=0)
    return save(figure, folder, name)
