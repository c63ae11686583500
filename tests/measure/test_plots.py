"""The frame that all plots with panels share."""

from __future__ import annotations

import pytest

pytest.importorskip("matplotlib")

from matplotlib import pyplot as plt

from ngramspec.measure.plots import GREY, plot_panels


def test_panels_share_one_axis_one_legend_and_one_colour_per_name():
    panels = {"chat": {"plain": [(1, 2.0), (10, 3.0)]}, "code": {"auto": [(1, 4.0)], "plain": []}}
    figure = plot_panels(panels, 3.0, xlabel="tokens", ylabel="speed", yscale="log")
    first, second = figure.axes
    assert [axes.get_title() for axes in figure.axes] == ["chat", "code"]
    assert (first.get_ylabel(), second.get_ylabel()) == ("speed", "")
    assert first.get_xlabel() == second.get_xlabel() == "tokens"
    assert {axes.get_xscale() for axes in figure.axes} == {"log"}
    assert first.get_shared_y_axes().joined(first, second)
    assert [each.get_text() for each in figure.legends[0].get_texts()] == ["plain", "auto"]
    lines = {line.get_label(): line for line in first.lines}
    assert lines["plain"].get_ydata().tolist() == [2.0, 3.0]
    assert lines["plain"].get_color() == GREY
    assert lines["auto"].get_color() == {x.get_label(): x for x in second.lines}["auto"].get_color()
    plt.close(figure)


def test_one_panel():
    figure = plot_panels({"chat": {"auto": [(1, 2.0)]}}, 3.0, xlabel="tokens", ylabel="speed")
    assert len(figure.axes) == 1
    plt.close(figure)
