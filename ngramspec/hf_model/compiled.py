"""Compiled forwards: one graph for each of a few widths, and no other shape.

A draft of any length is padded to the next of these widths, rollback changes a tensor in place, and
the mask is an input. So one graph serves all steps of all calls whose static caches have the same
size. For that reason a call's cache is made a little larger than it needs.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

from ngramspec.hf_model.compat.hf_private import compile_settings

CACHE_SIZE_MULTIPLE = 256  # a cache's size is rounded up to it: fewer sizes, fewer graphs
SIZES = 8  # sizes of caches that graphs are kept for; dynamo's own limit for a single width


def bucket_sizes(widest: int) -> tuple[int, ...]:
    """The widths to compile for: powers of two, then ``widest``.

    Powers above three quarters of ``widest`` are left out.

    Args:
        widest: positions of the widest forward, >= 1.

    Example:
        >>> bucket_sizes(65), bucket_sizes(11), bucket_sizes(1)
        ((1, 2, 4, 8, 16, 32, 65), (1, 2, 4, 8, 11), (1,))
    """
    powers = [1 << i for i in range(widest.bit_length()) if 4 << i <= 3 * widest]
    return (*powers, widest)


def compilations() -> int:
    """How many times torch began to compile, or to record a CUDA graph, in this process.

    It counts from the first call of this function on.
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
        config: the GenerationConfig, with the ``compile_config``; shapes are static unless that
            says otherwise.
        widths: how many different widths there will be.
    """

    def __init__(self, model: Any, config: Any, widths: int) -> None:
        settings = compile_settings(model, config)
        if settings.dynamic is None:
            settings.dynamic = False
        self._call: Callable[..., Any] = model.get_compiled_call(settings)
        self._limit = SIZES * widths
        self.compiled = False

    def __call__(self, **inputs: Any) -> Any:
        before = compilations()
        with self._allowing():
            outputs = self._call(**inputs)
        self.compiled = compilations() != before
        return outputs

    def _allowing(self) -> AbstractContextManager[Any]:
        """The context in which dynamo keeps a graph for every width; by default it keeps eight."""
        import torch._dynamo.config as dynamo

        known = max(self._limit, dynamo.recompile_limit)
        patch: AbstractContextManager[Any] = dynamo.patch(recompile_limit=known)
        return patch
