"""Parts of a measurement that share a budget of seconds."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable, Iterator, Mapping
from time import perf_counter
from typing import Any


class Parts:
    """Runs parts one after another, each within its share of the seconds that are left.

    A part is an iterator. Each unit of its work yields everything that the part has found so far,
    which is saved. A unit begins only if one of average length would end in time. Parts that were
    not done in their shares go on at the end, in their order, if seconds are left. The error of a
    part that fails is kept, and the others go on.

    Attributes:
        report: by part: what it has found; "seconds", "failed" and "unfinished" of all parts.
    """

    def __init__(
        self,
        budget: float,
        save: Callable[[dict[str, Any]], None],
        clock: Callable[[], float] = perf_counter,
    ) -> None:
        self._save, self._clock = save, clock
        self._end = clock() + budget
        self._units: dict[str, int] = {}
        self.report: dict[str, Any] = {"seconds": {}, "failed": {}, "unfinished": []}

    def run(self, parts: Mapping[str, tuple[float, Iterator[Any]]]) -> None:
        """Run parts, given with the sizes of their shares."""
        shares = sum(share for share, _ in parts.values())
        unfinished: list[str] = self.report["unfinished"]
        for name, (share, units) in parts.items():
            now = self._clock()
            if not self._advance(name, units, now + (self._end - now) * share / shares):
                unfinished.append(name)
            shares -= share
        for name in unfinished[:]:
            if self._advance(name, parts[name][1], self._end):
                unfinished.remove(name)
        self._save(self.report)

    def _advance(self, name: str, units: Iterator[Any], until: float) -> bool:
        """Run units of a part until a time; whether it is done."""
        seconds = self.report["seconds"]
        begin, before, done = self._clock(), seconds.get(name, 0.0), False
        while not done:
            count, spent = self._units.get(name, 0), seconds.get(name, 0.0)
            if self._clock() + (spent / count if count else 0.0) > until:
                break
            try:
                self.report[name] = next(units)
            except StopIteration:
                done = True
            except Exception as error:
                self.report["failed"][name] = traceback.format_exc()
                print(f"failed: {name}: {type(error).__name__}: {error}", file=sys.stderr)
                done = True
            self._units[name] = count + 1
            seconds[name] = before + self._clock() - begin
            self._save(self.report)
        print(f"{name}: {seconds.get(name, 0.0):.0f} s{'' if done else ', unfinished'}", flush=True)
        return done
