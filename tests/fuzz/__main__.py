"""``python -m fuzz``: many cases, in a few processes; a table at the end, and 1 if one failed."""

from __future__ import annotations

import argparse
import json
import multiprocessing
import sys
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fuzz.work import begin, one_case, some_cases

REPORT_EVERY = 30.0  # seconds
WITHIN = 20  # cases that a process is given at once


@dataclass
class Counts:
    """What came of many cases."""

    families: dict[str, Counter[str]] = field(default_factory=dict)
    details: dict[str, Counter[str]] = field(default_factory=dict)  # by outcome
    findings: list[dict[str, Any]] = field(default_factory=list)

    def add(self, done: dict[str, Any]) -> None:
        outcome = done["outcome"]
        self.families.setdefault(done["family"], Counter())[outcome] += 1
        self.details.setdefault(outcome, Counter())[done["detail"]] += 1
        if outcome == "finding":
            self.findings.append(done)

    @property
    def outcomes(self) -> dict[str, int]:
        return {outcome: details.total() for outcome, details in self.details.items()}

    def __str__(self) -> str:
        outcomes = self.outcomes
        return f"{sum(outcomes.values())} cases, {outcomes}"


def main() -> int:
    given = _arguments()
    if given.one is not None:
        return _one(given.one)
    started = time.monotonic()
    counts, told = Counts(), started
    for done in _all(given, started):
        counts.add(done)
        if done["outcome"] == "finding":
            _tell(done)
        if time.monotonic() - told > REPORT_EVERY:
            told = time.monotonic()
            print(f"{told - started:.0f} s: {counts}", flush=True)
    seconds = round(time.monotonic() - started)
    _table(counts)
    print(f"\n{seconds} s: {counts}")
    if given.json:
        found = {"seed": given.seed, "seconds": seconds, "outcomes": counts.outcomes}
        text = json.dumps(found | vars(counts), indent=1)
        Path(given.json).write_text(text + "\n")
    return 1 if counts.findings else 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m fuzz", description=__doc__)
    parser.add_argument("--minutes", type=float, default=5.0, help="when to stop")
    parser.add_argument("--cases", type=int, help="how many, in place of the minutes")
    parser.add_argument("--seed", type=int, default=0, help="of the first case; one more each")
    parser.add_argument("--workers", type=int, default=2, help="processes, of one thread each")
    parser.add_argument("--json", help="a file for the counts")
    parser.add_argument("--one", type=int, metavar="SEED", help="run a single seed, and tell of it")
    return parser.parse_args()


def _all(given: argparse.Namespace, started: float) -> Iterator[dict[str, Any]]:
    """What came of the cases, as the processes have done them."""
    end = None if given.cases is not None else started + 60 * given.minutes

    def work() -> Iterator[range]:
        at = 0
        while given.cases is None or at < given.cases:
            if end is not None and time.monotonic() > end:
                return
            more = WITHIN if given.cases is None else min(WITHIN, given.cases - at)
            yield range(given.seed + at, given.seed + at + more)
            at += more

    context = multiprocessing.get_context("spawn")
    with context.Pool(given.workers, begin, maxtasksperchild=50) as pool:
        waiting: list[Any] = []
        for each in work():
            waiting.append(pool.apply_async(some_cases, (each,)))
            while len(waiting) > 2 * given.workers:
                yield from waiting.pop(0).get()
        for each in waiting:
            yield from each.get()


def _one(seed: int) -> int:
    begin()
    done = one_case(seed)
    print(done["case"])
    if done["outcome"] == "finding":
        _tell(done)
        return 1
    print(f"{done['outcome']} {done['detail']}")
    return 0


def _tell(done: dict[str, Any]) -> None:
    print(f"\nseed {done['seed']}: {done['kind']}: {done['detail']}", flush=True)
    print(f"    {done['smallest']}", flush=True)


def _table(counts: Counts) -> None:
    for name, outcomes in sorted(counts.families.items()):
        print(f"{name:50}", *(f"{each} {count}" for each, count in outcomes.items()))
    for outcome in ("refused", "equal exception", "not run"):
        print(f"\n{outcome}")
        for reason, count in counts.details.get(outcome, Counter()).most_common(25):
            print(f"{count:6} {reason}")


if __name__ == "__main__":
    sys.exit(main())
