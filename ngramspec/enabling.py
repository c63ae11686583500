"""``enabled``, and the replacement of a model's ``generate`` inside its blocks."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import update_wrapper
from typing import Any

from ngramspec.hf import checked, speculate
from ngramspec.speculator import Speculator

_lock = threading.RLock()  # the garbage collector may end a block while another begins


class StandIn:
    """Replaces a model's ``generate`` during blocks; the newest block's Speculator is used.

    After the last block it calls the original ``generate``, here ``plain``, for code that still
    refers to it, such as a wrapper. It is thread-safe: the dict of blocks is replaced under the
    module's lock, and is never modified. ``own``: the original was an attribute of the object
    rather than of its class.
    """

    def __init__(self, model: Any, plain: Callable[..., Any], *, own: bool) -> None:
        update_wrapper(self, plain, updated=())  # its name, documentation and signature
        self.model, self.plain, self.own = model, plain, own
        self.blocks: dict[object, Speculator] = {}  # of the active blocks, the newest last

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        blocks = self.blocks
        if not blocks:
            return self.plain(*args, **kwargs)
        newest = next(reversed(blocks.values()))
        return speculate(self.model, self.plain, newest, args, kwargs)

    def __reduce__(self) -> tuple[Any, ...]:
        """Deep copies and pickles of the model have the original ``generate`` instead."""
        return _plain, (self.plain,)


def _plain(plain: Callable[..., Any]) -> Callable[..., Any]:
    return plain


@contextmanager
def enabled(model: Any, speculator: Speculator | None = None) -> Iterator[Speculator]:
    """Make every ``model.generate`` inside the block speculative, pipelines' calls included.

    It replaces the ``generate`` of this one model object for all threads. Blocks of one model may
    overlap, for example in threads, and end in any order. The newest block's Speculator is used,
    and the last block to end restores the original. A call that has a ``custom_generate`` argument
    is not changed, nor is a ``generate`` that other code sets on the model inside the block. A deep
    copy or a pickle of the model is independent and has the original ``generate``. A shallow copy
    (``copy.copy``) shares the replaced ``generate``, as it shares the weights.

    Args:
        model: a transformers model.
        speculator: how to speculate; None: a new Speculator().

    Yields:
        The Speculator, for example to read its ``stats`` or replace its drafter.

    Example:
        ``with ngramspec.enabled(pipe.model): pipe("Once upon a time")``
    """
    speculator = checked(speculator)
    model = getattr(model, "_orig_mod", model)  # the model inside torch.compile's wrapper
    block = object()  # identifies this block, as others may have the same Speculator
    stand_in = _enter(model, block, speculator)
    try:
        yield speculator
    finally:
        _leave(stand_in, block)


def _enter(model: Any, block: object, speculator: Speculator) -> StandIn:
    """Begin a block, and replace ``generate`` if it is the first."""
    with _lock:
        stand_in = vars(model).get("generate")
        if not (isinstance(stand_in, StandIn) and stand_in.model is model):
            stand_in = StandIn(model, model.generate, own="generate" in vars(model))
        stand_in.blocks = {**stand_in.blocks, block: speculator}
        model.generate = stand_in
        return stand_in


def _leave(stand_in: StandIn, block: object) -> None:
    """End a block; the last one restores ``generate``, unless other code has replaced it."""
    model = stand_in.model
    with _lock:
        stand_in.blocks = {key: each for key, each in stand_in.blocks.items() if key is not block}
        if stand_in.blocks or vars(model).get("generate") is not stand_in:
            return
        if stand_in.own:
            model.generate = stand_in.plain
        else:
            del model.generate
