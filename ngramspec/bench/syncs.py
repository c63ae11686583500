"""Counting where the host waits for the device: once a step is what is promised."""

from __future__ import annotations

import sys
import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import wraps
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

import torch

from ngramspec import Speculator, StepEvent, generate
from ngramspec.decoding import setup

# Methods of a tensor that need its values on the host.
READS = (
    "__array__",
    "__bool__",
    "__contains__",
    "__float__",
    "__index__",
    "__int__",
    "cpu",
    "item",
    "nonzero",
    "numpy",
    "tolist",
)


@contextmanager
def host_syncs(device: torch.device) -> Iterator[list[str]]:
    """Every wait of the host inside the block, as ``file:line``; process-wide.

    On a GPU CUDA's own debug mode reports them, copies to the device that are waited for included.
    On a CPU, where nothing waits, calls that read a tensor's values are counted instead, of steps
    as they would be on a GPU.
    """
    with _warnings() if device.type == "cuda" else _reads() as places:
        yield places


@contextmanager
def _warnings() -> Iterator[Any]:
    before = torch.cuda.get_sync_debug_mode()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        torch.cuda.set_sync_debug_mode("warn")
        try:
            yield _Places(caught)
        finally:
            torch.cuda.set_sync_debug_mode(before)


class _Places(Sequence[str]):
    """The synchronisations among caught warnings, as they come."""

    def __init__(self, caught: list[warnings.WarningMessage]) -> None:
        self.caught = caught

    def _all(self) -> list[str]:
        return [
            f"{Path(each.filename).name}:{each.lineno}"
            for each in self.caught
            if "synchroniz" in str(each.message)
        ]

    def __len__(self) -> int:
        return len(self._all())

    def __getitem__(self, at: Any) -> Any:
        return self._all()[at]


@contextmanager
def _reads() -> Iterator[list[str]]:
    places: list[str] = []
    inside = [False]  # one read may call another

    def counted(name: str) -> Any:
        plain = getattr(torch.Tensor, name)

        @wraps(plain)
        def read(self: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
            if inside[0]:
                return plain(self, *args, **kwargs)
            frame = sys._getframe(1)
            places.append(f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}")
            inside[0] = True
            try:
                return plain(self, *args, **kwargs)
            finally:
                inside[0] = False

        return read

    far, setup.prefers_one_transfer = setup.prefers_one_transfer, lambda device: True
    with ExitStack() as restore:
        restore.callback(setattr, setup, "prefers_one_transfer", far)
        for name in READS:
            own = vars(torch.Tensor).get(name)
            setattr(torch.Tensor, name, counted(name))
            if own is None:
                restore.callback(delattr, torch.Tensor, name)
            else:
                restore.callback(setattr, torch.Tensor, name, own)
        yield places


def syncs_per_step(
    model: Any, ids: Sequence[int], new: int, speculator: Speculator | None = None, **arguments: Any
) -> dict[str, Any]:
    """Host synchronisations of each step of one speculative generation, after the prefill.

    Args:
        model: a causal language model of transformers.
        ids: the prompt's token ids.
        new: max_new_tokens.
        speculator: whose on_step is replaced; None: a new one.
        arguments: further ones of ``generate``.

    Returns:
        ``steps``, ``median`` and ``most`` syncs of a step, ``counts`` of each, and ``places``,
        how many there were in each line of code.
    """
    speculator = Speculator() if speculator is None else speculator
    marks: list[int] = []
    prompt = torch.tensor([list(ids)], device=model.device)
    mask = torch.ones_like(prompt)
    with host_syncs(model.device) as places:

        def mark(event: StepEvent) -> None:
            marks.append(len(places))

        speculator.on_step = mark
        own = {"do_sample": False} | arguments
        generate(
            model,
            input_ids=prompt,
            attention_mask=mask,
            max_new_tokens=new,
            speculator=speculator,
            **own,
        )
        seen = list(places)
    speculator.on_step = None
    counts = [after - before for before, after in pairwise(marks)]
    if not counts:
        raise ValueError("the generation ended with its prefill; give it more new tokens")
    return {
        "steps": len(counts),
        "median": median(counts),
        "most": max(counts),
        "counts": counts,
        "places": dict(Counter(seen[marks[0] : marks[-1]])),
    }
