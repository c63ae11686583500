"""Time per operation and bytes per token of drafters, by the length of the context."""

from __future__ import annotations

import ctypes
import gc
import mmap
from collections.abc import Iterator
from dataclasses import dataclass
from time import perf_counter, perf_counter_ns

import numpy as np

from ngramspec.bench.replay import accepted_path
from ngramspec.draft import Int32
from ngramspec.drafters.base import Drafter

STEPS = 2000
SECONDS = 3.0  # for the steps of one measurement; a slow drafter takes fewer
LEAST_GROWN = 100_000


@dataclass(frozen=True, slots=True)
class Reading:
    """One drafter on one text at one length.

    Attributes:
        start_us: of ``start``, per token of the context.
        propose_us, step_us: medians of a step's propose and conversion to a list; and of the whole
            step with observe and extend.
        p99_us, worst_us: of the whole step.
        bytes_per_token: of the session's structures; where it does not say, by how much the
            process grew, from ``LEAST_GROWN`` tokens on, below which that is noise.
        drafted: tokens per step.
    """

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


def read(name: str, drafter: Drafter, text: str, tokens: Int32, n: int, gamma: int) -> Reading:
    """Start with the first ``n`` tokens, then take steps through the rest.

    Args:
        name, text: the drafter and the text, as they are reported.
        drafter: its calibration is used as it is; a warm one drafts as in a long run.
        tokens: int32, more than ``n``.
        n: length of the context.
        gamma: most tokens drafted in a step.
    """
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
        path = accepted_path(guessed, draft, said, at)
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
        text=text,
        tokens=n,
        start_us=started / n * 1e6,
        propose_us=float(np.median(proposes)) / 1000,
        step_us=float(np.median(steps)) / 1000,
        p99_us=float(np.percentile(steps, 99)) / 1000,
        worst_us=max(steps) / 1000,
        bytes_per_token=None if size is None else size / n,
        drafted=drafted / len(steps),
    )


def sweep(
    drafters: dict[str, tuple[Drafter, int]], texts: dict[str, Int32], sizes: list[int], gamma: int
) -> Iterator[Reading]:
    """Readings of every drafter, up to the length given with it, on every text and size."""
    for n in sizes:
        for text, tokens in texts.items():
            for name, (drafter, most) in drafters.items():
                if n <= most:
                    yield read(name, drafter, text, tokens, n, gamma)


def _resident() -> int:
    """Bytes of the process in memory, after freed ones are given back; 0 if unknown."""
    try:
        ctypes.CDLL(None).malloc_trim(0)
        with open("/proc/self/statm", encoding="ascii") as fields:
            return int(fields.read().split()[1]) * mmap.PAGESIZE
    except (AttributeError, OSError, TypeError):
        return 0
