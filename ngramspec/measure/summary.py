"""Figures from timed calls: speed, speedup over the baseline, and share of the limit."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from statistics import geometric_mean, median
from typing import Any

from ngramspec.measure.turns import PLAIN
from ngramspec.measure.whole_calls import Call, Measured

MEANS = (  # fields of a row that are geometric means over prompts
    *("tokens_per_second", "ratio", "decode_ratio"),
    *("tokens_per_call", "mean_cost", "limit_share"),
)


def summarize(measured: Measured) -> list[dict[str, Any]]:
    """A row for each task, length and configuration, the baseline included.

    Rows have geometric means over prompts of ``tokens_per_second``, ``ratio``, ``decode_ratio``,
    ``tokens_per_call``, ``mean_cost`` and ``limit_share``; ``ratio_median`` and ``ratio_worst``;
    ``peak_bytes``, the most; the number of ``prompts``, and of those with the ``same`` text as the
    baseline; ``first_differences`` of the others by prompt.
    """
    rows = []
    for task, length in dict.fromkeys((each.task, each.length) for each in measured.calls):
        calls = [each for each in measured.calls if (each.task, each.length) == (task, length)]
        _, seconds = measured.costs.get((task, length), (0, {}))
        for way in dict.fromkeys(each.way for each in calls):
            figures = {
                prompt: _figures(
                    [each for each in calls if each.prompt == prompt and each.way == way],
                    [each for each in calls if each.prompt == prompt and each.way == PLAIN],
                    median(measured.prefills[task, length, prompt]),
                    {} if way in measured.static else seconds,
                )
                for prompt in dict.fromkeys(each.prompt for each in calls)
            }
            rows.append({"task": task, "length": length, "way": way, **_row(figures)})
    return rows


def _figures(
    calls: Sequence[Call], plain: Sequence[Call], prefill: float, costs: dict[int, float]
) -> dict[str, Any]:
    """The figures of one configuration for one prompt: medians over repeats.

    Rates are new tokens / s of a whole call, and ``ratio`` is to the baseline's rate in the same
    repeat, so that a slow moment affects both. ``decode_ratio`` is that without the prefill.
    ``mean_cost`` is the mean of cost(n) = seconds of an n-position forward / of a one-position
    forward over the widths that were run. The limit is ``tokens_per_call`` / ``mean_cost``, the
    speed of baseline steps that each emit this number of tokens at this cost. What was not measured
    is None. ``first_difference`` is the earliest of any repeat.
    """
    widths: Counter[int] = Counter()
    for call in calls:
        widths.update(call.widths)
    forwards = widths.total()
    tokens_per_call = sum(call.emitted for call in calls) / forwards if forwards else None
    mean_cost = limit_share = None
    if forwards and all(width in costs for width in (1, *widths)):
        spent = sum(count * costs[width] for width, count in widths.items())
        mean_cost = spent / forwards / costs[1]
    decode_ratio = _decode_ratio(calls, plain, prefill)
    if decode_ratio is not None and tokens_per_call and mean_cost is not None:
        limit_share = decode_ratio * mean_cost / tokens_per_call
    differences = [each for call in calls if (each := call.first_difference) is not None]
    return {
        "tokens_per_second": median(_rate(call) for call in calls),
        "ratio": _ratio(calls, plain, _rate),
        "decode_ratio": decode_ratio,
        "tokens_per_call": tokens_per_call,
        "mean_cost": mean_cost,
        "limit_share": limit_share,
        "peak": max((call.peak for call in calls if call.peak is not None), default=None),
        "first_difference": min(differences, default=None),
    }


def _rate(call: Call) -> float:
    return call.new_tokens / call.seconds


def _ratio(calls: Sequence[Call], plain: Sequence[Call], rate: Callable[[Call], float]) -> float:
    """Median over repeats of a configuration's rate / the baseline's."""
    plain_rates = {call.repeat: rate(call) for call in plain}
    return median(rate(call) / plain_rates[call.repeat] for call in calls)


def _decode_ratio(calls: Sequence[Call], plain: Sequence[Call], prefill: float) -> float | None:
    """The ratio of tokens emitted after the prefill / (seconds - prefill)."""
    if any(call.seconds <= prefill or call.emitted < 1 for call in (*calls, *plain)):
        return None
    return _ratio(calls, plain, lambda call: call.emitted / (call.seconds - prefill))


def _row(figures: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """A row from the figures of each prompt."""
    means = {name: _mean([each[name] for each in figures.values()]) for name in MEANS}
    ratios = [each["ratio"] for each in figures.values()]
    peaks = [each["peak"] for each in figures.values() if each["peak"] is not None]
    different = {
        prompt: each["first_difference"]
        for prompt, each in figures.items()
        if each["first_difference"] is not None
    }
    return {
        "prompts": len(figures),
        **means,
        "ratio_median": median(ratios),
        "ratio_worst": min(ratios),
        "peak_bytes": max(peaks, default=None),
        "same": len(figures) - len(different),
        "first_differences": different,
    }


def _mean(values: Sequence[float | None]) -> float | None:
    """Geometric mean; None if one is missing."""
    numbers = [each for each in values if each]
    return geometric_mean(numbers) if numbers and len(numbers) == len(values) else None
