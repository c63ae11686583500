"""The CUDA graphs that are captured, and the memory that they hold."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import torch
from torch._dynamo.utils import counters

from ngramspec.hf_model.compiled import compilations


@contextmanager
def captures() -> Iterator[list[int]]:
    """Counts the graphs that are captured inside the block; yields a list with the count."""
    count, capture = [0], torch.cuda.graph.__enter__

    def enter(self: Any) -> Any:
        count[0] += 1
        return capture(self)

    with patch.object(torch.cuda.graph, "__enter__", enter):
        yield count


@contextmanager
def counted_graphs(found: dict[str, Any]) -> Iterator[None]:
    """Add to ``found`` what is compiled and captured inside the block.

    ``pool_bytes`` and ``skips`` are of the whole process: what graphs hold after the block, and the
    reasons for which inductor captured none.
    """
    compiled = compilations()
    with captures() as count:
        yield
    found["compilations"] = found.get("compilations", 0) + compilations() - compiled
    found["captures"] = found.get("captures", 0) + count[0]
    found["pool_bytes"] = pool_bytes()
    found["skips"] = {
        name: each for name, each in counters["inductor"].items() if "cudagraph" in name
    }


def pool_bytes() -> int | None:
    """Bytes that graphs' own memory pools hold; None without CUDA."""
    if not torch.cuda.is_available():
        return None
    segments = torch.cuda.memory_snapshot()
    return sum(each["total_size"] for each in segments if any(each.get("segment_pool_id", (0, 0))))
