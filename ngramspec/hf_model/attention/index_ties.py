"""Indexed attention that breaks ties between keys as a forward of one token does.

Indexed attention (DeepSeek-V3.2, GLM-DSA, Dots3) attends to the ``index_topk`` keys of the highest
index scores. Scores can be exactly equal: they are zero for a key at which no head of the index has
a positive score, and for all keys of a query token with a zero embedding, such as a padding token.
Which of several equal scores ``torch.topk`` returns depends on the number of scores, including
masked ones. So a forward over several tokens could select other keys than forwards of single
tokens, and its output would differ. In a forward over a draft, each position therefore selects only
among the keys up to its own.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch.overrides import TorchFunctionMode

from ngramspec.hf_model.cache.kv_cache import KVCache
from ngramspec.hf_model.compat.classes import indexers_of

TOPK_FUNCTIONS = (torch.topk, torch.Tensor.topk)
_indexers: WeakKeyDictionary[Any, list[Any]] = WeakKeyDictionary()  # by model


@contextmanager
def selecting_alone(model: Any, cache: KVCache, inputs: dict[str, Any]) -> Iterator[None]:
    """Let each position of this thread's next forward select keys as in a separate forward.

    This changes selections among all keys, in modules whose class name ends in "Indexer". The
    forward's ``inputs`` have positions in the order of the text.
    """
    positions = inputs["input_ids"].shape[1] if cache.indexed else 1
    if positions == 1:
        yield
        return
    alone, mine = _Alone(positions, cache.length() + positions), threading.get_ident()
    entered = ExitStack()

    def enter(*_: Any) -> None:
        if threading.get_ident() == mine:  # other threads may run the same model
            entered.enter_context(alone)

    def leave(*_: Any) -> None:
        if threading.get_ident() == mine:
            entered.close()

    if model not in _indexers:
        _indexers[model] = indexers_of(model)
    hooks = [each.register_forward_pre_hook(enter) for each in _indexers[model]]
    hooks += [each.register_forward_hook(leave, always_call=True) for each in _indexers[model]]
    try:
        yield
    finally:
        entered.close()  # the hooks do not run after an interrupt
        for hook in hooks:
            hook.remove()


class _Alone(TorchFunctionMode):
    """Runs ``topk`` of (batch, positions, keys) for each position on the keys up to its own."""

    def __init__(self, positions: int, keys: int) -> None:
        super().__init__()
        self.positions, self.keys = positions, keys

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        found = func(*args, **kwargs)
        if func in TOPK_FUNCTIONS and args[0].shape[1:] == (self.positions, self.keys):
            scores, selected = args[0], found[0].shape[-1]
            for at, seen in enumerate(range(self.keys - self.positions + 1, self.keys)):
                if seen > selected:  # otherwise it attends to all keys up to its own
                    own = func(scores[:, at : at + 1, :seen], *args[1:], **kwargs)
                    for whole, row in zip(found, own, strict=True):
                        whole[:, at : at + 1] = row
        return found
