"""Plots of benchmarks; matplotlib is imported with this module."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from matplotlib import pyplot as plt

from ngramspec.measure.plots import HEIGHT, WIDTH, colours, save


def plot_structures(readings: Sequence[dict[str, Any]], folder: Path) -> list[Path]:
    """Median time of a step against the length of the context, one panel per text."""
    texts = list(dict.fromkeys(each["text"] for each in readings))
    names = list(dict.fromkeys(each["drafter"] for each in readings))
    colour = colours(names)
    figure, panels = plt.subplots(
        1, len(texts), figsize=(3.2 * len(texts) + 1, HEIGHT), sharey=True, layout="constrained"
    )
    for axes, text in zip([panels] if len(texts) == 1 else panels, texts, strict=True):
        for name in names:
            points = [each for each in readings if (each["drafter"], each["text"]) == (name, text)]
            axes.plot(
                [each["tokens"] for each in points],
                [each["step_us"] for each in points],
                marker="o",
                color=colour[name],
                label=name,
            )
        axes.set(title=text, xscale="log", yscale="log", xlabel="tokens of context")
        axes.grid(alpha=0.3)
    first = figure.axes[0]
    first.set_ylabel("a step: propose, observe, extend (µs, median)")
    figure.legend(*first.get_legend_handles_labels(), loc="outside lower center", ncols=4)
    return save(figure, folder, "drafters-latency")


def plot_costs(costs: dict[int, dict[int, float]], folder: Path, name: str) -> list[Path]:
    """The relative cost of a forward of n positions: a line for each context."""
    figure, axes = plt.subplots(figsize=(WIDTH, HEIGHT), layout="constrained")
    for context, seconds in costs.items():
        relative = [each / seconds[1] for each in seconds.values()]
        axes.plot(list(seconds), relative, marker=".", label=f"{context} tokens of context")
    axes.set(xlabel="positions n", ylabel="cost(n)", title="Cost of a forward of n positions")
    axes.set_ylim(bottom=0)
    axes.grid(alpha=0.3)
    axes.legend(fontsize="small")
    return save(figure, folder, name)
