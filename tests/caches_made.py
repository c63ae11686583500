"""The caches of transformers that a block makes, and whether they die without the collector."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from transformers.cache_utils import Cache


class MadeCaches:
    """Weak references to the caches that a block made.

    Attributes:
        made: how many were made.
    """

    def __init__(self) -> None:
        self.made = 0
        self._alive: list[weakref.ref[Any]] = []

    def add(self, cache: Any) -> None:
        self.made += 1
        self._alive.append(weakref.ref(cache))

    @property
    def alive(self) -> int:
        """How many of them are alive."""
        return sum(each() is not None for each in self._alive)

    def freed_by_the_collector(self) -> int:
        """How many of them only a garbage collection frees: they are in reference cycles."""
        before = self.alive
        if before:
            gc.collect()
        return before - self.alive


@contextmanager
def made_caches() -> Iterator[MadeCaches]:
    """Record the caches that the block makes. The garbage collector does not run in it."""
    found, original, running = MadeCaches(), Cache.__init__, gc.isenabled()

    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        found.add(self)

    gc.disable()
    Cache.__init__ = init
    try:
        yield found
    finally:
        Cache.__init__ = original
        if running:
            gc.enable()
