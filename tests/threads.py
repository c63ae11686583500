"""The same work in several threads at once."""

from __future__ import annotations

import threading
from collections.abc import Callable

import torch

PROMPTS = [
    torch.randint(1, 97, (1, 12), generator=torch.Generator().manual_seed(seed))
    for seed in range(4)
]


def in_threads(generate: Callable[[torch.Tensor], torch.Tensor], times: int) -> list[list]:
    """Each prompt's outputs, ``times`` of them, from a thread of its own."""
    outputs: list[list[torch.Tensor]] = [[] for _ in PROMPTS]

    def work(own: int) -> None:
        for _ in range(times):
            outputs[own].append(generate(PROMPTS[own]))

    threads = [threading.Thread(target=work, args=(own,)) for own in range(len(PROMPTS))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return outputs


def assert_each_is(expected: list[torch.Tensor], outputs: list[list], times: int) -> None:
    for one, many in zip(expected, outputs, strict=True):
        assert len(many) == times
        assert all(torch.equal(one, out) for out in many)
