"""The driver of ``make sanitize``, in an ordinary build: it must not rot between its runs."""

from __future__ import annotations

from native_strategies import salted
from sanitize import driver, failures, operations

from ngramspec._native import common


def test_some_thousand_random_operations_find_nothing():
    with salted(common.salt()):
        counts = driver.play(6000, seed=3, failures=failures.Failures())
    done = {what.split(",")[0] for what in counts}
    for name, kind in operations.KINDS.items():
        assert {f"{name}: {each.__name__}" for each in kind.usual} <= done
    assert sum(times for what, times in counts.items() if what.endswith("refused")) > 500
    assert not any(what.endswith("out of memory") for what in counts)  # nothing is made to fail
