"""The tests of the native structures, under sanitizers and with allocations that fail.

    python -m sanitize [--operations N] [--seed S]

Run by ``make sanitize``. The sanitizers end the process at their first finding. The tests, most of
which compare a structure with its twin, are repeated with other random inputs until the structures'
methods were called ``--operations`` times.
"""

from __future__ import annotations

import argparse
import os
import sys

import pytest
from hypothesis import HealthCheck, settings

from sanitize import failing

TESTS = ("_native", "stores/test_corpus.py", "stores/test_hostile_files.py")
# They limit the process's memory or need its garbage collector for themselves, or compile.
EXCLUDED = "not lack_of_memory and not lets_nobody_in and not test_symbols"


def main() -> None:
    parser = argparse.ArgumentParser(description="native structures under sanitizers")
    parser.add_argument("--operations", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    calls = failing.install(given.seed)
    checks = {"deadline": None, "suppress_health_check": list(HealthCheck)}
    settings.register_profile("sanitize", database=None, **checks)
    settings.load_profile("sanitize")
    import native_strategies  # after the profile, which its settings are based on

    native_strategies.QUICK = settings(native_strategies.QUICK, derandomize=False)
    tests = [os.path.join("tests", each) for each in TESTS]
    options = ["-x", "--noconftest", "-p", "no:cacheprovider", "-k", EXCLUDED]
    options.append("--capture=sys")  # the sanitizers' reports go straight to the terminal
    seed, done = given.seed, 0
    while done < given.operations:
        ended = pytest.main([*options, f"--hypothesis-seed={seed}", *tests])
        if ended != 0:
            sys.exit(f"seed {seed} ended with {ended}")
        seed += 1
        done = sum(n for name, n in calls.counts.items() if not name.endswith("out of memory"))
    for name, times in sorted(calls.counts.items()):
        print(f"{times:10,} {name}")
    print(f"{done:10,} operations, {calls.counts.total() - done:,} out of memory")


if __name__ == "__main__":
    main()
