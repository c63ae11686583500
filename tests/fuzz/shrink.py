"""Finds the plainest case that still fails in the same way."""

from __future__ import annotations

import time
from collections.abc import Callable

from fuzz.case import Case, simpler
from fuzz.run import Result, run

SECONDS = 30.0


def shrink(
    case: Case, result: Result, runs: Callable[[Case], Result] = run, seconds: float = SECONDS
) -> tuple[Case, Result]:
    """Simplify a failing case, one thing after another, while the same kind of thing fails.

    Args:
        case: which failed.
        result: what came of it.
        runs: runs a case.
        seconds: after which the plainest one so far is good enough.
    """
    end = time.monotonic() + seconds
    going = True
    while going:
        going = False
        for plainer in simpler(case):
            if time.monotonic() > end:
                return case, result
            try:
                now = runs(plainer)
            except Exception as error:
                now = Result("finding", "harness", type(error).__name__)
            if now.outcome == "finding" and _alike(now, result):
                case, result, going = plainer, now, True
                break
    return case, result


def _alike(first: Result, second: Result) -> bool:
    """Whether two findings are of one kind; exceptions also by their beginning."""
    if first.kind != second.kind:
        return False
    return first.kind != "exception" or first.detail[:40] == second.detail[:40]
