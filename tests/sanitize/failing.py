"""Native structures whose allocations fail now and then, which their tests need not know."""

from __future__ import annotations

import ctypes
import functools
import importlib
import pkgutil
import random
import threading
from collections import Counter
from collections.abc import Callable
from typing import Any

from ngramspec import _native

MODULES = [
    importlib.import_module(f"{_native.__name__}.{each.name}")
    for each in pkgutil.iter_modules(_native.__path__)
]
FAILING = 0.1  # share of the calls in which allocations may fail
LARGEST = 3000  # tokens of an engine that runs short of memory in place of another
UNCHANGED = ("check_integrity", "sizeof")  # which allocate nothing
# What they have done when memory ends cannot be done again: they learn from a draft once.
LEARNING = ("ValueEngine.extend", "ValueEngine.rehearse")


class Failures:
    """The counters in all extensions, see allocation.h."""

    def __init__(self) -> None:
        libraries = [ctypes.CDLL(module.__file__) for module in MODULES]
        self._after, self._times, self._failed = (
            [ctypes.c_long.in_dll(library, name) for library in libraries]
            for name in ("ngramspec_fail_after", "ngramspec_fail_times", "ngramspec_failed")
        )

    def arm(self, rng: random.Random) -> None:
        """Let one of the next allocations fail, or several in a row."""
        after, times = rng.choice((0, 0, 1, 2, rng.randrange(40))), rng.choice((1, 1, 3))
        for each, count in zip(self._after, self._times, strict=True):
            each.value, count.value = after, times

    def disarm(self) -> int:
        """Let all succeed again; how many failed since ``arm``."""
        failed = sum(each.value for each in self._failed)
        for after, count in zip(self._after, self._failed, strict=True):
            after.value, count.value = -1, 0
        return failed


class FailingCalls:
    """Calls methods, in some of them without memory; then the rest of the call is made up for.

    ``counts`` has the number of calls by name, and of those that were short of memory.
    """

    def __init__(self, failures: Any, rng: random.Random) -> None:
        self.failures, self.rng, self.spare = failures, rng, None
        self.counts: Counter[str] = Counter()

    def wrap(self, base: type) -> type:
        """A subclass whose public methods, and whose making, run short of memory."""

        def make(cls: type, *arguments: Any, **named: Any) -> Any:
            return self.call(f"{base.__name__}()", base.__new__, cls, *arguments, **named)

        names = {"__new__": make}
        for name in dir(base):
            method = getattr(base, name)
            if callable(method) and name[0] != "_" and name not in UNCHANGED:
                names[name] = self._wrapped(f"{base.__name__}.{name}", method)
        return type(base.__name__, (base,), names)

    def _wrapped(self, name: str, method: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(method)
        def call(*arguments: Any, **named: Any) -> Any:
            if name == "ValueEngine.extend":
                self.extend_spare(type(arguments[0]).__base__, arguments[1])
            return self.call(name, method, *arguments, **named)

        return call

    def call(self, name: str, method: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
        """The result of a call, however often it must be made."""
        self.counts[name] += 1
        alone = threading.active_count() == 1  # the allocations of other threads succeed
        if alone and name not in LEARNING and self.rng.random() < FAILING:
            self.failures.arm(self.rng)
        before = len(arguments[0]) if name.endswith(".extend") else 0
        try:
            result = method(*arguments, **named)
        except MemoryError:
            assert self.failures.disarm() > 0, "out of memory, though no allocation failed"
            self.counts[f"{name}, out of memory"] += 1
            structure = arguments[0]
            if not isinstance(structure, type) and hasattr(structure, "check_integrity"):
                structure.check_integrity()
            if name.endswith(".extend"):  # the tokens before the failure were taken
                arguments = (structure, arguments[1][len(structure) - before :])
            return method(*arguments, **named)
        except BaseException:
            self.failures.disarm()
            raise
        assert self.failures.disarm() == 0, f"{name} did not report a failed allocation"
        return result

    def extend_spare(self, engine: type, tokens: Any) -> None:
        """Let another engine run short of memory."""
        if self.spare is None or len(self.spare) > LARGEST:
            self.spare = engine(_native.Calibration())
        if threading.active_count() == 1:
            self.failures.arm(self.rng)
        try:
            self.spare.extend(tokens)
        except MemoryError:
            self.counts["ValueEngine.extend, out of memory"] += 1
            self.spare.check_integrity()
        except (TypeError, ValueError):
            pass  # the engine itself is to refuse them
        finally:
            self.failures.disarm()


def install(seed: int) -> FailingCalls:
    """Replace the structures in their modules, before the tests import them."""
    calls = FailingCalls(Failures(), random.Random(seed))
    for module in MODULES:
        for name, each in list(vars(module).items()):
            if isinstance(each, type) and each.__module__ == module.__name__:
                setattr(module, name, calls.wrap(each))
    return calls
