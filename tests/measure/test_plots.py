"""The colours of plots: ours in shades of one, and apart for readers who see no red or green."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest

pytest.importorskip("matplotlib")

from matplotlib import pyplot as plt
from matplotlib.colors import to_rgb

from ngramspec.measure import plots

# Machado, Oliveira and Fernandes 2009: what is left of linear RGB without red, or green, receptors
BLIND = {
    "protanopia": [
        [0.152286, 1.052583, -0.204868],
        [0.114503, 0.786281, 0.099216],
        [-0.003882, -0.048116, 1.051998],
    ],
    "deuteranopia": [
        [0.367322, 0.860646, -0.227968],
        [0.280085, 0.672501, 0.047413],
        [-0.011820, 0.042940, 0.968881],
    ],
}
APART = 0.18  # of RGB in 0..1


def distance(one: str, other: str, kind: str) -> float:
    """Between two colours as they are seen."""
    linear = np.array([to_rgb(one), to_rgb(other)]) ** 2.2
    seen = np.clip(linear @ np.array(BLIND[kind]).T, 0, 1) ** (1 / 2.2)
    return float(np.linalg.norm(seen[0] - seen[1]))


@pytest.mark.parametrize("kind", BLIND)
def test_colours_stay_apart(kind):
    used = (plots.GREY, *plots.OURS[:2], *plots.OTHERS)
    close = [pair for pair in combinations(used, 2) if distance(*pair, kind) < APART]
    assert close == []


def test_the_measure_finds_red_and_green_alike():
    assert distance("#2ca02c", "#d62728", "deuteranopia") < APART  # matplotlib's own


def test_ours_are_shades_of_blue_and_baselines_grey():
    names = ["plain", "prompt lookup 10", "ngramspec", "ngramspec, chains", "arctic, factor 4"]
    assert list(plots.colours(names).values()) == [
        plots.GREY,
        plots.OTHERS[0],
        plots.OURS[0],
        plots.OURS[1],
        plots.OTHERS[1],
    ]
    assert plots.colours(["auto", "none"]) == {"auto": plots.OURS[0], "none": plots.GREY}


def test_bars_have_these_colours():
    figure, axes = plt.subplots()
    rows = [{"task": "chat", "way": way, "ratio": 1.0} for way in ("plain", "ngramspec")]
    plots._bars(axes, rows, "ratio")
    drawn = [tuple(bar.get_facecolor()[:3]) for bar in axes.patches]
    assert drawn == [to_rgb(plots.GREY), to_rgb(plots.OURS[0])]
    plt.close(figure)
