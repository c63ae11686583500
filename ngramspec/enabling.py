"""``enabled``, and what replaces a model's ``generate`` until the last block has ended."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import update_wrapper
from typing import Any

from ngramspec.hf import checked, speculate
from ngramspec.speculator import Speculator

_lock = threading.RLock()  # the garbage collector may end a block while another begins


@dataclass(frozen=True, slots=True, eq=False)
class Block:
    """One ``with enabled(...)`` that has not ended."""

    speculator: Speculator


class StandIn:
    """A model's ``generate`` during blocks: the newest block decides how it speculates.

    After the last block it is plain ``generate``, for code that still refers to it, such as a
    wrapper. Threads may share it: the tuple of blocks is replaced under the
    module's lock, and never changed.

    Args:
        model: the model object that has it as an attribute.
        plain: the model's ``generate`` before.
        own: whether that was an attribute of the object, not of its class.
    """

    def __init__(self, model: Any, plain: Callable[..., Any], *, own: bool) -> None:
        update_wrapper(self, plain, updated=())  # its name, documentation and signature
        self.model = model
        self.plain = plain
        self.own = own
        self._blocks: tuple[Block, ...] = ()

    def begin(self, block: Block) -> None:
        """Let a block decide."""
        self._blocks = (*self._blocks, block)

    def end(self, block: Block) -> bool:
        """Forget a block; whether it was the last one."""
        self._blocks = tuple(each for each in self._blocks if each is not block)
        return not self._blocks

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        blocks = self._blocks
        if not blocks:
            return self.plain(*args, **kwargs)
        return speculate(self.model, self.plain, blocks[-1].speculator, args, kwargs)

    def __reduce__(self) -> tuple[Any, ...]:
        """A deep copy of the model, or a pickled one, has its own plain ``generate`` here."""
        return _plain, (self.plain,)


def _plain(plain: Callable[..., Any]) -> Callable[..., Any]:
    return plain


@contextmanager
def enabled(model: Any, speculator: Speculator | None = None) -> Iterator[Speculator]:
    """Make every ``model.generate`` inside the block speculative, pipelines' calls included.

    It replaces the ``generate`` of this one model object, for all threads. Blocks of one model may
    overlap, for instance in threads, and end in any order: the newest decides, and the last one
    restores the original. A call with a ``custom_generate`` of its own is not changed, nor is a
    ``generate`` that other code sets on the model inside the block. A deep copy of the model, or a
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
    """Begin a block."""
    with _lock:
        there = vars(model).get("generate")
        if isinstance(there, StandIn) and there.model is model:
            there.begin(block)
            return there
        stand_in = StandIn(model, model.generate, own="generate" in vars(model))
        stand_in.begin(block)
        model.generate = stand_in
        return stand_in


def _leave(stand_in: StandIn, block: Block) -> None:
    """End a block; the last one restores ``generate``, unless other code has replaced it."""
    model = stand_in.model
    with _lock:
        if not stand_in.end(block) or vars(model).get("generate") is not stand_in:
            return
        if stand_in.own:
            model.generate = stand_in.plain
        else:
            del model.generate
