"""The harness of all comparisons: calls of several configurations in turn, in one process."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from statistics import median
from time import perf_counter
from typing import Generic, TypeVar

Result = TypeVar("Result")

PLAIN = "plain"  # the name of the baseline, ``generate`` without speculation


@dataclass(frozen=True, slots=True)
class Turns(Generic[Result]):
    """The seconds and the results of each configuration's calls, with an entry for each repeat."""

    seconds: dict[str, list[float]]
    results: dict[str, list[Result]]

    def last(self, name: str) -> Result:
        """The result of a configuration's last call."""
        return self.results[name][-1]

    def median(self, name: str) -> float:
        """The median of a configuration's seconds."""
        return median(self.seconds[name])

    def speedups(self, name: str) -> list[float]:
        """Seconds of the baseline / seconds of a configuration, for each repeat.

        A repeat in which the machine was slow affects both, so these ratios vary less than seconds.
        """
        pairs = zip(self.seconds[PLAIN], self.seconds[name], strict=True)
        return [theirs / own for theirs, own in pairs]

    def speedup(self, name: str) -> float:
        """The median of ``speedups``."""
        return median(self.speedups(name))


def take_turns(
    calls: Mapping[str, Callable[[], Result]],
    repeats: int,
    *,
    warm_up: int = 1,
    first: int | None = None,
) -> Turns[Result]:
    """Call every configuration once in each repeat, so that a slow machine slows all of them down.

    A call must end only when its work is done on the device, too. ``warm_up`` rounds precede the
    counted ones. ``first`` is the configuration that begins the first repeat, modulo their number;
    the next repeat begins with the next one. None: all repeats begin with the first.
    """
    names = list(calls)
    found: Turns[Result] = Turns({name: [] for name in names}, {name: [] for name in names})
    for repeat in range(-warm_up, repeats):
        start = 0 if first is None else (first + repeat) % len(names)
        for name in names[start:] + names[:start]:
            began = perf_counter()
            result = calls[name]()
            seconds = perf_counter() - began
            if repeat >= 0:
                found.seconds[name].append(seconds)
                found.results[name].append(result)
    return found
