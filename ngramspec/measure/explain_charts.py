"""Small charts as SVG text, for a page that needs no network and no script."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from ngramspec.measure.wording import counted

WIDTH, HEIGHT, MARGIN = 640, 220, 42
PARTS = ("draft", "forward", "other")
MAX_TIMELINE_STEPS = 400  # later steps are left out


def bars(
    values: Sequence[tuple[str, float, str]], *, top: float = 0.0, mark: float | None = None
) -> str:
    """Bars of (label, height, text on hover) with their values above them.

    The axis ends at ``top`` or higher. ``mark`` is the height of a horizontal line, or None.
    """
    if not values:
        return "<p>Nothing was measured.</p>"
    highest = max(top, *(value for _, value, _ in values), 1e-9)
    step = (WIDTH - MARGIN) / len(values)
    parts = []
    for number, (label, value, hint) in enumerate(values):
        x, height = MARGIN + number * step, value / highest * (HEIGHT - 60)
        middle = x + step * 0.4
        parts.append(
            f'<rect class="bar" x="{x:.1f}" y="{HEIGHT - 30 - height:.1f}" width="{step * 0.8:.1f}"'
            f' height="{height:.1f}"><title>{escape(hint)}</title></rect>'
            + _text(middle, HEIGHT - 34 - height, f"{value:.2f}")
            + _text(middle, HEIGHT - 14, label)
        )
    if mark is not None:
        y = HEIGHT - 30 - mark / highest * (HEIGHT - 60)
        parts.append(f'<line class="mark" x1="{MARGIN}" x2="{WIDTH}" y1="{y:.1f}" y2="{y:.1f}"/>')
    return _svg("".join(parts), HEIGHT)


def points(values: Sequence[tuple[float, float, str]]) -> str:
    """Points (x, y, text on hover) in the unit square, and its diagonal."""
    size = HEIGHT - 60

    def place(x: float, y: float) -> tuple[float, float]:
        return MARGIN + x * size, 20 + (1 - y) * size

    (x0, y0), (x1, y1) = place(0, 0), place(1, 1)
    parts = [
        f'<rect class="frame" x="{x0:.1f}" y="{y1:.1f}" width="{size}" height="{size}"/>',
        f'<line class="mark" x1="{x0:.1f}" y1="{y0:.1f}" x2="{x1:.1f}" y2="{y1:.1f}"/>',
    ]
    for x, y, hint in values:
        at, up = place(x, y)
        title = f"<title>{escape(hint)}</title>"
        parts.append(f'<circle class="bar" cx="{at:.1f}" cy="{up:.1f}" r="4">{title}</circle>')
    parts.append(_text(MARGIN + size / 2, HEIGHT - 14, "expected by the drafter"))
    parts.append(_text(MARGIN + size / 2, 12, "accepted / verified"))
    return _svg("".join(parts), HEIGHT)


def timeline(steps: Sequence[Mapping[str, Any]]) -> str:
    """Steps over time as blocks; length is the duration, height the width of the forward."""
    shown = steps[:MAX_TIMELINE_STEPS]
    total = sum(step[f"{part}_seconds"] for step in shown for part in PARTS)
    if not total:
        return "<p>Nothing was measured.</p>"
    widest = max(step["width"] for step in shown)
    scale, at, parts = (WIDTH - MARGIN) / total, 0.0, []
    for step in shown:
        height = step["width"] / widest * 80
        spent = ", ".join(f"{part} {1000 * step[f'{part}_seconds']:.1f} ms" for part in PARTS)
        hint = (
            f"step {step['index']}: {counted(step['width'], 'position')},"
            f" {counted(len(step['emitted']), 'token')}, {spent}"
        )
        for part in PARTS:
            length = step[f"{part}_seconds"]
            parts.append(
                f'<rect class="{part}" x="{MARGIN + at * scale:.2f}" y="{90 - height:.1f}"'
                f' width="{length * scale:.2f}" height="{height:.1f}">'
                f"<title>{escape(hint)}</title></rect>"
            )
            at += length
    parts.append(_text(MARGIN, 108, "0 s") + _text(WIDTH - 20, 108, f"{total:.2f} s"))
    parts.append(_text(MARGIN / 2, 14, str(widest)) + _text(MARGIN / 2, 90, "0"))
    return _svg("".join(parts), 115)


def _text(x: float, y: float, words: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}">{escape(words)}</text>'


def _svg(inside: str, height: int) -> str:
    return f'<svg viewBox="0 0 {WIDTH} {height}" role="img">{inside}</svg>'
