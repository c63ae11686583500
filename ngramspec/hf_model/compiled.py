"""Compiled forwards: one graph for each of a few widths.

A draft of any length is padded to the next of these widths, rollback changes a tensor in place, and
the mask is an input. So one graph serves all steps of all calls whose static caches have the same
size. To make equal sizes likely, cache sizes are rounded up.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ngramspec.hf_model.compat.hf_private import compile_settings

MAX_CACHE_SIZES = 8  # cache sizes that graphs are kept for; dynamo's default recompile limit


def bucket_sizes(widest: int) -> tuple[int, ...]:
    """Return the widths to compile for, given the positions of the widest forward.

    These are powers of two up to three quarters of ``widest``, and ``widest``.

    Example:
        >>> bucket_sizes(65), bucket_sizes(11), bucket_sizes(1)
        ((1, 2, 4, 8, 16, 32, 65), (1, 2, 4, 8, 11), (1,))
    """
    powers = [1 << i for i in range(widest.bit_length()) if 4 << i <= 3 * widest]
    return (*powers, widest)


def compilations() -> int:
    """Return how many times torch began to compile or to record a CUDA graph in this process.

    The count starts at the first call of this function.
    """
    from torch._dynamo.callback import callback_handler

    started = callback_handler.start_callbacks
    if _begun not in started:
        started.append(_begun)
    return _beginnings


_beginnings = 0


def _begun(*_: Any) -> None:
    global _beginnings
    _beginnings += 1


class Graphs:
    """A model's compiled forward.

    Attributes:
        compiled: whether the last call compiled something, or recorded a CUDA graph.

    Args:
        model: a transformers model.
        config: the GenerationConfig; shapes are static unless its ``compile_config`` says
            otherwise.
        widths: number of different widths.
    """

    def __init__(self, model: Any, config: Any, widths: int) -> None:
        settings = compile_settings(model, config)
        if settings.dynamic is None:
            settings.dynamic = False
        self._call: Callable[..., Any] = model.get_compiled_call(settings)
        self._limit = MAX_CACHE_SIZES * widths
        self.compiled = False

    def __call__(self, **inputs: Any) -> Any:
        import torch._dynamo.config as dynamo

        before = compilations()
        limit = max(self._limit, dynamo.recompile_limit)  # a graph for every width and cache size
        with dynamo.patch(recompile_limit=limit):
            outputs = self._call(**inputs)
        self.compiled = compilations() != before
        return outputs
