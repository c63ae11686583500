"""Telling the extensions which of their allocations are to fail; see allocation.h."""

from __future__ import annotations

import ctypes
import importlib
import random

NAMES = (
    "common",
    "copyindex",
    "ngram",
    "store_corpus",
    "store_ring",
    "store_source",
    "unigram",
    "value",
)
MODULES = [importlib.import_module(f"ngramspec._native.{name}") for name in NAMES]


class Failures:
    """The counters of all extensions; none in an ordinary build, where nothing fails."""

    def __init__(self) -> None:
        libraries = [ctypes.CDLL(module.__file__) for module in MODULES]
        self.here = all(hasattr(library, "ngramspec_fail_after") for library in libraries)
        if self.here:
            self._after, self._times, self._failed = (
                [ctypes.c_long.in_dll(library, name) for library in libraries]
                for name in ("ngramspec_fail_after", "ngramspec_fail_times", "ngramspec_failed")
            )

    def arm(self, rng: random.Random) -> None:
        """Let one of the next allocations fail, or several in a row."""
        if self.here:
            after, times = rng.choice((0, 0, 1, 2, rng.randrange(40))), rng.choice((1, 1, 3))
            for each, count in zip(self._after, self._times, strict=True):
                each.value, count.value = after, times

    def disarm(self) -> int:
        """Let all succeed again; how many failed since ``arm``."""
        if not self.here:
            return 0
        failed = sum(each.value for each in self._failed)
        for after, count in zip(self._after, self._failed, strict=True):
            after.value, count.value = -1, 0
        return failed
