"""Plots of what was measured; matplotlib is imported here, and nowhere else."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot as plt

WIDTH, HEIGHT = 9.0, 4.8  # inches
MOST_POSITIONS = 32
LEAST_TESTED = 30  # a share of fewer is noise


def plot_replay(results: Sequence[dict[str, Any]], folder: Path) -> list[Path]:
    """Acceptance by position, tokens per call by group, and reliability, of one curve's results.

    Args:
        results: what ``bench replay`` writes as ``results``.
        folder: where the PNG files go; made if need be.

    Returns:
        The files written, named after the curve.
    """
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for curve in dict.fromkeys(result["curve"] for result in results):
        mine = [result for result in results if result["curve"] == curve]
        for name, draw in (
            ("groups", _groups),
            ("positions", _positions),
            ("reliability", _reliability),
        ):
            figure, axes = plt.subplots(figsize=(WIDTH, HEIGHT), layout="constrained")
            draw(axes, mine, curve)
            path = folder / f"replay-{curve}-{name}.png"
            figure.savefig(path, dpi=110)
            plt.close(figure)
            written.append(path)
    return written


def plot_structures(readings: Sequence[dict[str, Any]], folder: Path) -> Path:
    """Median time of a step against the length of the context, one panel per text."""
    folder.mkdir(parents=True, exist_ok=True)
    texts = list(dict.fromkeys(each["text"] for each in readings))
    names = list(dict.fromkeys(each["drafter"] for each in readings))
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
                label=name,
            )
        axes.set(title=text, xscale="log", yscale="log", xlabel="tokens of context")
        axes.grid(alpha=0.3)
    first = figure.axes[0]
    first.set_ylabel("a step: propose, observe, extend (µs, median)")
    figure.legend(*first.get_legend_handles_labels(), loc="outside lower center", ncols=4)
    path = folder / "drafters-latency.png"
    figure.savefig(path, dpi=110)
    plt.close(figure)
    return path


def _groups(axes: Any, results: Sequence[dict[str, Any]], curve: str) -> None:
    groups = [*results[0]["groups"], "geometric mean"]
    width = 0.8 / len(results)
    for which, result in enumerate(results):
        values = [each["tokens_per_call"] for each in result["groups"].values()]
        values.append(result["mean"]["tokens_per_call"])
        at = [group + (which - (len(results) - 1) / 2) * width for group in range(len(groups))]
        axes.bar(at, values, width, label=result["drafter"])
    axes.set_xticks(range(len(groups)), [re.sub("[ _]", "\n", name) for name in groups])
    axes.set(ylabel="tokens per call", yscale="log", title=f"Tokens per call, {curve} curve")
    axes.set_yticks([1, 1.5, 2, 3, 5, 10, 20], ["1", "1.5", "2", "3", "5", "10", "20"])
    axes.set_ylim(bottom=1)
    axes.minorticks_off()
    axes.grid(axis="y", alpha=0.3)
    axes.legend(fontsize="small")


def _positions(axes: Any, results: Sequence[dict[str, Any]], curve: str) -> None:
    for result in results:
        shares = {
            int(at) + 1: share["accepted"] / share["tested"]
            for at, share in result["positions"].items()
            if share["tested"] >= LEAST_TESTED and int(at) < MOST_POSITIONS
        }
        axes.plot(list(shares), list(shares.values()), marker=".", label=result["drafter"])
    axes.set(
        xlabel="position in the draft",
        ylabel="accepted / tested",
        ylim=(0, 1),
        title=f"Acceptance by position, {curve} curve, all groups together",
    )
    axes.grid(alpha=0.3)
    axes.legend(fontsize="small")


def _reliability(axes: Any, results: Sequence[dict[str, Any]], curve: str) -> None:
    axes.plot([0, 1], [0, 1], color="grey", linewidth=1, label="what it should be")
    for result in results:
        shares = [s for s in result["confidence"].values() if s["tested"] >= LEAST_TESTED]
        if shares:
            axes.plot(
                [share["expected"] / share["tested"] for share in shares],
                [share["accepted"] / share["tested"] for share in shares],
                marker="o",
                label=result["drafter"],
            )
    axes.set(
        xlabel="confidence (mean of the bin)",
        ylabel="accepted / tested",
        xlim=(0, 1),
        ylim=(0, 1),
        title=f"Reliability, {curve} curve",
    )
    axes.grid(alpha=0.3)
    axes.legend(fontsize="small")
