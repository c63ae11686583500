"""Microbenchmarks of the native operations, by the length of the context.

    python -m pytest benchmarks/test_native_ops.py --benchmark-columns=median,iqr,ops

Natural text is the source of Python's own library. Each round starts where the last one ended, so
that a structure grows by a few tokens a round, as in use.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import count
from typing import Any

import numpy as np
import pytest

from benchmarks.texts import natural
from ngramspec._native import Calibration, CopyIndex, NGramTable, ValueEngine

SIZES = (1_000, 100_000, 1_000_000)
MORE = 200_000  # tokens after the context, for the rounds
GAMMA = 10
STRUCTURES: dict[str, Callable[[], Any]] = {
    "value engine": lambda: ValueEngine(Calibration()),
    "n-gram table": lambda: NGramTable(4),
    "copy index": CopyIndex,
    "unigram counts": lambda: NGramTable(1),
}


@pytest.fixture(scope="module")
def text() -> np.ndarray:
    return natural(SIZES[-1] + MORE)


@pytest.fixture(params=SIZES, ids=lambda n: f"{n:,}")
def size(request: pytest.FixtureRequest) -> int:
    return int(request.param)


def filled(name: str, text: np.ndarray, size: int) -> Any:
    structure = STRUCTURES[name]()
    structure.extend(text[:size])
    return structure


def chunks(text: np.ndarray, size: int, n: int) -> Iterator[np.ndarray]:
    """The text after the context, ``n`` tokens at a time, again and again."""
    return (text[size + at % (MORE - n) :][:n] for at in count(0, n))


@pytest.mark.parametrize("name", ["value engine", "n-gram table", "copy index"])
def test_draft(benchmark: Any, text: np.ndarray, size: int, name: str) -> None:
    """Ten tokens from wherever the text now ends; extending is not timed."""
    structure, following = filled(name, text, size), chunks(text, size, 3)

    def extended() -> tuple[tuple[int], dict[str, Any]]:
        structure.extend(next(following))
        return (GAMMA,), {}

    benchmark.group = "draft of 10 tokens"
    benchmark.pedantic(structure.draft, setup=extended, rounds=3000)


@pytest.mark.parametrize("name", STRUCTURES)
def test_extend(benchmark: Any, text: np.ndarray, size: int, name: str) -> None:
    """Three tokens, without a draft before them."""
    structure, following = filled(name, text, size), chunks(text, size, 3)
    benchmark.group = "extend by 3 tokens"
    benchmark.pedantic(
        structure.extend, setup=lambda: ((next(following),), {}), rounds=3000, warmup_rounds=10
    )


@pytest.mark.parametrize("name", STRUCTURES)
def test_fill(benchmark: Any, text: np.ndarray, name: str) -> None:
    """A prompt of 100,000 tokens."""
    benchmark.group = "fill with 100,000 tokens"
    benchmark.pedantic(filled, args=(name, text, 100_000), rounds=5)
