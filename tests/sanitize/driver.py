"""Random operations on the native structures, with allocations that fail.

    python -m sanitize.driver [--operations N] [--seed S]

Run by ``make sanitize`` under the sanitizers, which end the process at their first finding. An
operation may answer, refuse its arguments, or run out of memory where an allocation was made to
fail; whatever else happens is a finding. After a failure, and now and then, the structure's
invariants are checked; one that was short of memory answers like one that never was.
"""

from __future__ import annotations

import argparse
import random
import sys
from collections import Counter
from typing import Any

import numpy as np

from ngramspec._native import common
from sanitize.failures import Failures
from sanitize.operations import KINDS, MAY_BE_REFUSED, Kind, Source

RARELY = 0.02  # of the operations that are costly
FAILING = 0.1  # of the operations, in which an allocation may fail
CHECKED = 0.005  # of the operations, after which the invariants are checked
LARGEST = 2000  # tokens or contexts; then a new structure begins
REFUSED = (TypeError, ValueError, OverflowError, IndexError)


class Player:
    """Plays on one structure of a kind, and on a new one when that is large.

    Args:
        name, kind: the structure's.
        rng: of all that is drawn.
        failures: of allocations.
        counts: of operations, by their name and how they ended.
    """

    def __init__(
        self,
        name: str,
        kind: Kind,
        rng: random.Random,
        failures: Failures,
        counts: Counter[str],
    ) -> None:
        self.name, self.kind, self.rng = name, kind, rng
        self.failures, self.counts = failures, counts
        self.begin()

    def begin(self) -> None:
        """Make a structure; without memory, again."""
        self.source = Source(self.rng)
        self.arguments = self.kind.arguments(self.rng)
        self.structure = None
        while self.structure is None:
            try:
                with_memory = self.attempt("made", lambda: self.kind.make(*self.arguments))
            except ValueError:  # a window below the order
                self.arguments = self.kind.arguments(self.rng)
                continue
            self.structure = with_memory

    def attempt(self, what: str, operation: Any) -> Any:
        """The operation's result, or None when an allocation failed in it."""
        if self.rng.random() < FAILING:
            self.failures.arm(self.rng)
        try:
            result = operation()
        except MemoryError:
            failed = self.failures.disarm()
            assert failed > 0, "out of memory, though no allocation failed"
            self.counts[f"{self.name}: {what}, out of memory"] += 1
            return None
        except BaseException:
            self.failures.disarm()
            raise
        assert self.failures.disarm() == 0, f"an allocation failed in {what}, and nobody was told"
        self.counts[f"{self.name}: {what}"] += 1
        return result if result is not None else True

    def step(self) -> None:
        if len(self.structure) > LARGEST or self.source.lost:
            self.structure.check_integrity()
            self.begin()
        rare = self.rng.random() < RARELY
        operation = self.rng.choice(self.kind.rare if rare else self.kind.usual)
        what = operation.__name__
        try:
            went_well = self.attempt(what, lambda: operation(self.structure, self.source))
        except REFUSED:
            if operation not in MAY_BE_REFUSED:
                raise
            self.counts[f"{self.name}: {what}, refused"] += 1
            return
        if not went_well or self.rng.random() < CHECKED:
            self.structure.check_integrity()
            self.compare()

    def compare(self) -> None:
        """What the text alone decides is as in a structure that never lacked memory."""
        alone = ("value engine", "context table", "shared text", "corpora")
        if self.name in alone or self.source.lost:
            return
        fresh = self.kind.make(*self.arguments)
        fresh.extend(np.array(self.source.text, np.int32))
        assert len(self.structure) == len(fresh)
        ask = (lambda each: each.best()) if self.name == "unigram counts" else lambda e: e.draft(9)
        assert str(ask(self.structure)) == str(ask(fresh)), f"{self.name} answers otherwise"


def play(operations: int, seed: int, failures: Failures) -> Counter[str]:
    """Do so many operations, on all kinds of structures by turns; how many of each kind."""
    rng = random.Random(seed)
    common.set_salt(rng.getrandbits(64))  # the same run again for the same seed
    counts: Counter[str] = Counter()
    players = [Player(name, kind, rng, failures, counts) for name, kind in KINDS.items()]
    for _ in range(operations):
        rng.choice(players).step()
    for player in players:
        player.structure.check_integrity()
    return counts


def main() -> None:
    parser = argparse.ArgumentParser(description="random operations on the native structures")
    parser.add_argument("--operations", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    failures = Failures()
    if not failures.here:
        sys.exit(f"{common.__file__} was not built for this: run make sanitize")
    counts = play(arguments.operations, arguments.seed, failures)
    for what, times in sorted(counts.items()):
        print(f"{times:10,} {what}")
    short = sum(times for what, times in counts.items() if what.endswith("out of memory"))
    refused = sum(times for what, times in counts.items() if what.endswith("refused"))
    print(f"{arguments.operations:10,} operations, {refused:,} refused, {short:,} out of memory")


if __name__ == "__main__":
    main()
