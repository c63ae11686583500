"""Time per operation and bytes per token of drafters, on the source of Python's library."""

from __future__ import annotations

import argparse
import ctypes
import gc
import mmap
from dataclasses import asdict, dataclass
from itertools import product
from time import perf_counter, perf_counter_ns
from typing import Any, cast

import numpy as np

from benchmarks.harness import show, write
from benchmarks.peers import add_peers, installed, print_skipped
from benchmarks.texts import natural
from ngramspec.cli.options import CommandOptions, usable
from ngramspec.draft import Int32
from ngramspec.drafters import build_drafter
from ngramspec.drafters.base import Drafter
from ngramspec.drafters.value import Calibrations, ValueDrafter, ValueSession
from ngramspec.errors import check_int
from tests.twins.calibration import Calibration
from tests.twins.value import ValueEngine

SIZES = (1_000, 10_000, 100_000, 1_000_000)
TWIN_MOST, LOOKUP_MOST = 10_000, 100_000  # tokens: longer contexts would take minutes
CONTINUATION = 8192  # tokens after the context, for the steps
STEPS = 2000
SECONDS = 3.0  # for the steps of one measurement; a slow drafter takes fewer
LEAST_GROWN = 100_000
NATURAL = "natural"  # the text


@dataclass(frozen=True, slots=True)
class Reading:
    """One drafter on one text at one length."""

    drafter: str
    text: str
    tokens: int
    start_us: float
    propose_us: float
    step_us: float
    p99_us: float
    worst_us: float
    bytes_per_token: float | None
    drafted: float


def read(name: str, drafter: Drafter, tokens: Int32, n: int, gamma: int) -> Reading:
    """Start with the first ``n`` tokens, then take steps through the rest."""
    drafter.start(tokens[:16].copy()).propose(2)  # what is loaded once is not timed
    gc.collect()
    before = _resident()
    begin = perf_counter()
    session = drafter.start(tokens[:n].copy())
    started = perf_counter() - begin
    size = session.sizeof()
    if size is None and n >= LEAST_GROWN:
        size = _resident() - before
    said = tokens[n:].tolist()
    proposes: list[int] = []
    steps: list[int] = []
    drafted = at = 0
    end = perf_counter() + SECONDS
    while at < len(said) - gamma - 1 and len(steps) < STEPS and perf_counter() < end:
        begin_ns = perf_counter_ns()
        draft = session.propose(gamma)
        guessed = draft.tokens.tolist()
        proposes.append(perf_counter_ns() - begin_ns)
        path = draft.path_along(said[at : at + len(guessed)])
        new = tokens[n + at : n + at + len(path) + 1]
        begin_ns = perf_counter_ns()
        if guessed:
            session.observe(draft, path, None)
        session.extend(new)
        steps.append(proposes[-1] + perf_counter_ns() - begin_ns)
        drafted += len(guessed)
        at += len(new)
    session.close()
    return Reading(
        drafter=name,
        text=NATURAL,
        tokens=n,
        start_us=started / n * 1e6,
        propose_us=float(np.median(proposes)) / 1000,
        step_us=float(np.median(steps)) / 1000,
        p99_us=float(np.percentile(steps, 99)) / 1000,
        worst_us=max(steps) / 1000,
        bytes_per_token=None if size is None else size / n,
        drafted=drafted / len(steps),
    )


def _resident() -> int:
    """Bytes of the process in memory, after freed ones are given back; 0 if unknown."""
    try:
        ctypes.CDLL(None).malloc_trim(0)
        with open("/proc/self/statm", encoding="ascii") as fields:
            return int(fields.read().split()[1]) * mmap.PAGESIZE
    except (AttributeError, OSError, TypeError):
        return 0


class TwinSession(ValueSession):
    """One sequence of the value engine's twin, which does not report its size."""

    engine_type = ValueEngine

    def sizeof(self) -> None:
        return None


class TwinDrafter(ValueDrafter):
    """The ValueDrafter in plain Python."""

    def forget(self) -> None:
        self.calibrations = Calibrations(cast(Any, Calibration()))

    def start(self, tokens: Int32) -> ValueSession:
        return TwinSession(self, tokens)


def add_arguments(options: CommandOptions) -> None:
    options.drafters()
    add_peers(options)
    options.flag("--twin", "also the reference implementation in Python")
    options.numbers("--sizes", list(SIZES), "tokens of context")
    options.count("--gamma", 10, "tokens drafted in a step")
    options.json()


def run(arguments: argparse.Namespace) -> int:
    """Time drafters at every size; print and write the results."""
    sizes = sorted(arguments.sizes)
    with usable():
        for size in sizes:
            check_int("--sizes", size, 1, 2**29)
        gamma = check_int("--gamma", arguments.gamma, 1, 4096)
        drafters, skipped = contenders(arguments, sizes[-1])
    tokens, readings = natural(sizes[-1] + CONTINUATION), []
    for n, (name, (drafter, most)) in product(sizes, drafters.items()):
        if n <= most:
            readings.append(asdict(read(name, drafter, tokens, n, gamma)))
            show(**readings[-1])
    print_skipped(skipped)
    write(arguments, {"gamma": gamma, "readings": readings, "skipped": skipped})
    return 0


def contenders(
    arguments: argparse.Namespace, longest: int
) -> tuple[dict[str, tuple[Drafter, int]], dict[str, str]]:
    """The drafters, each with its longest context; and the peers that are not installed."""
    found: dict[str, tuple[Drafter, int]] = {
        spec: (build_drafter(spec, policy=arguments.policy), longest)
        for spec in arguments.drafter or ["auto"]
    }
    if arguments.twin:
        found["twin (Python)"] = (TwinDrafter(), TWIN_MOST)
    peers, skipped = installed() if arguments.peers else ({}, {})
    for name, (maker, _) in peers.items():
        if "tree" not in name:
            found[name] = (maker(), LOOKUP_MOST if "lookup" in name else longest)
    return found, skipped
