"""Counting where the host waits for the device; a step promises one such wait."""

from __future__ import annotations

import sys
import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import wraps
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

import torch

from ngramspec import Speculator, generate
from ngramspec.decoding.observer import PREFILL, STEP, Observer, no_section

# Methods of a tensor that need its values on the host.
READS = ["cpu", "item", "nonzero", "numpy", "tolist"]
READS += [f"__{name}__" for name in ("array", "bool", "contains", "float", "index", "int")]


@contextmanager
def host_syncs(device: torch.device) -> Iterator[list[str]]:
    """Every wait of the host inside the block, as ``file:line``; process-wide.

    On a GPU CUDA's own debug mode reports them, copies to the device that are waited for included.
    On a CPU, where nothing waits, calls that read a tensor's values are counted instead.
    """
    with _warnings() if device.type == "cuda" else _reads() as places:
        yield places


@contextmanager
def _warnings() -> Iterator[list[str]]:
    places: list[str] = []

    def note(
        message: Any, category: Any, filename: str, lineno: int, file: Any = None, line: Any = None
    ) -> None:
        if "synchroniz" in str(message) and "prototype" not in str(message):  # the mode's own
            places.append(f"{Path(filename).name}:{lineno}")

    before = torch.cuda.get_sync_debug_mode()
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.showwarning = note
        torch.cuda.set_sync_debug_mode("warn")
        try:
            yield places
        finally:
            torch.cuda.set_sync_debug_mode(before)


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

    with ExitStack() as restore:
        for name in READS:
            own = vars(torch.Tensor).get(name)
            setattr(torch.Tensor, name, counted(name))
            if own is None:
                restore.callback(delattr, torch.Tensor, name)
            else:
                restore.callback(setattr, torch.Tensor, name, own)
        yield places


class _Marks(Observer):
    """Counts the waits until the end of the prefill and of each step; a CPU reads as a GPU does."""

    one_transfer = True

    def __init__(self, places: Sequence[str]) -> None:
        self.counts: list[int] = []
        self._places = places

    def section(self, name: str) -> AbstractContextManager[None]:
        """See Observer."""
        return self._marked() if name in (PREFILL, STEP) else no_section

    @contextmanager
    def _marked(self) -> Iterator[None]:
        yield
        self.counts.append(len(self._places))


def syncs_per_step(
    model: Any,
    ids: Sequence[int],
    new: int,
    speculator: Speculator | None = None,
    rows: int = 1,
    **arguments: Any,
) -> dict[str, Any]:
    """Host synchronisations of each step of one speculative generation, after the prefill."""
    speculator = Speculator() if speculator is None else speculator
    prompt = torch.tensor([list(ids)] * rows, device=model.device)
    own = {"do_sample": False, "attention_mask": torch.ones_like(prompt)} | arguments
    before = speculator.observer
    with host_syncs(model.device) as places:
        marks = speculator.observer = _Marks(places)
        try:
            generate(model, prompt, speculator=speculator, max_new_tokens=new, **own)
        finally:
            speculator.observer = before
        seen = list(places)
    counts = [later - earlier for earlier, later in pairwise(marks.counts)]
    if not counts:
        raise ValueError("the generation ended with its prefill; give it more new tokens")
    return {
        "steps": len(counts),
        "median": median(counts),
        "most": max(counts),
        "counts": counts,
        "places": dict(Counter(seen[marks.counts[0] : marks.counts[-1]])),
    }
