"""The same work in several threads at once."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import torch

PROMPTS = [
    torch.randint(1, 97, (1, 12), generator=torch.Generator().manual_seed(seed))
    for seed in range(4)
]


def in_threads(generate: Callable[[torch.Tensor], torch.Tensor], times: int) -> list[list]:
    """Each prompt's outputs, ``times`` of them, from a thread of its own."""
    with ThreadPoolExecutor(len(PROMPTS)) as pool:
        return list(pool.map(lambda prompt: [generate(prompt) for _ in range(times)], PROMPTS))


def assert_each_is(expected: list[torch.Tensor], outputs: list[list], times: int) -> None:
    for one, many in zip(expected, outputs, strict=True):
        assert len(many) == times
        assert all(torch.equal(one, out) for out in many)
