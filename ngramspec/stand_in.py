"""``enabled``, and what stands in for a model's ``generate`` until the last block has ended."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import update_wrapper
from typing import Any

from ngramspec.hf import checked, speculate
from ngramspec.speculator import Speculator

_lock = threading.RLock()  # the collector may end a forgotten block while another is entered


@dataclass(frozen=True, slots=True, eq=False)
class Block:
    """One ``with enabled(...)`` that has not ended."""

    speculator: Speculator


class StandIn:
    """A model's ``generate`` while blocks last: the newest of them decides how it speculates.

    Whoever still holds it after the last block, a wrapper put around it for instance, gets plain
    ``generate``. Threads may share it: ``blocks`` is replaced, under the module's lock, and never
    changed.

    Args:
        model: the model object, as an attribute of which it stands.
        plain: what the model's ``generate`` was before.
        own: whether that was an attribute of the object, and not of its class.
    """

    def __init__(self, model: Any, plain: Callable[..., Any], *, own: bool) -> None:
        update_wrapper(self, plain, updated=())  # its name, documentation and signature
        self.model = model
        self.plain = plain
        self.own = own
        self.blocks: tuple[Block, ...] = ()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        blocks = self.blocks
        if not blocks:
            return self.plain(*args, **kwargs)
        return speculate(self.model, self.plain, blocks[-1].speculator, args, kwargs)

    def __reduce__(self) -> tuple[Any, ...]:
        """What a deep copy of the model, or a pickled one, has here: its own plain ``generate``."""
        return _plain, (self.plain,)


def _plain(plain: Callable[..., Any]) -> Callable[..., Any]:
    return plain


@contextmanager
def enabled(model: Any, speculator: Speculator | None = None) -> Iterator[Speculator]:
    """Make every ``model.generate`` inside the block speculative, pipelines' calls included.

    It replaces the ``generate`` of this one model object, for all threads. Blocks of one model may
    overlap, in threads for instance, and end in any order: the newest decides, and the last puts
    back what was there. A call that brings its own ``custom_generate`` is left alone, and so is a
    ``generate`` that somebody puts on the model inside the block. A deep copy of the model, or a
    pickled one, is plain and independent; a shallow copy (``copy.copy``) shares the original's
    ``generate``, as it shares its weights.

    Args:
        model: a transformers model.
        speculator: how to speculate; None: a new Speculator().

    Yields:
        The Speculator, for its ``stats`` and to swap its drafter.

    Example:
        ``with ngramspec.enabled(pipe.model): pipe("Once upon a time")``
    """
    block = Block(checked(speculator))
    model = getattr(model, "_orig_mod", model)  # where a compiled model keeps its attributes
    stand_in = _enter(model, block)
    try:
        yield block.speculator
    finally:
        _leave(stand_in, block)


def _enter(model: Any, block: Block) -> StandIn:
    """Let a block decide over a model's ``generate``."""
    with _lock:
        there = vars(model).get("generate")
        if isinstance(there, StandIn) and there.model is model:
            there.blocks = (*there.blocks, block)
            return there
        stand_in = StandIn(model, model.generate, own="generate" in vars(model))
        stand_in.blocks = (block,)
        model.generate = stand_in
        return stand_in


def _leave(stand_in: StandIn, block: Block) -> None:
    """End a block; the last one puts back what was there, unless that was replaced meanwhile."""
    model = stand_in.model
    with _lock:
        stand_in.blocks = tuple(each for each in stand_in.blocks if each is not block)
        if stand_in.blocks or vars(model).get("generate") is not stand_in:
            return
        if stand_in.own:
            model.generate = stand_in.plain
        else:
            del model.generate
