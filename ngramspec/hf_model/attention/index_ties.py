"""Which keys an index selects among equal scores: those that a forward of one token selects.

Indexed attention (DeepSeek-V3.2, GLM-DSA, Dots3) attends to the ``index_topk`` keys of the highest
index scores. Scores can be exactly equal: they are zero for a key at which no head of the index
fires, and for all keys behind a token whose embedding is zero, as a padding token's is. Which of
equal scores ``torch.topk`` returns depends on how many scores there are, masked ones included. So a
forward over several tokens could select other keys than one token after another, and its text would
differ. In a forward over a draft each position therefore selects among the keys up to its own.
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

TOPK = (torch.topk, torch.Tensor.topk)
_indexers: WeakKeyDictionary[Any, list[Any]] = WeakKeyDictionary()  # by model


@contextmanager
def selecting_alone(model: Any, cache: KVCache, inputs: dict[str, Any]) -> Iterator[None]:
    """Let each position of this thread's next forward select keys as it would in one of its own.

    Changed are selections among all keys, in modules whose class is named "...Indexer".

    Args:
        model: a transformers model.
        cache: of it, before the forward; without indexed attention nothing changes.
        inputs: of the forward, with its positions in the order of the text; with one of them
            nothing changes.
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

    hooks = [each.register_forward_pre_hook(enter) for each in _indexers_of(model)]
    hooks += [each.register_forward_hook(leave, always_call=True) for each in _indexers_of(model)]
    try:
        yield
    finally:
        entered.close()  # an interrupt passes by the hooks
        for hook in hooks:
            hook.remove()


def _indexers_of(model: Any) -> list[Any]:
    if model not in _indexers:
        _indexers[model] = indexers_of(model)
    return _indexers[model]


class _Alone(TorchFunctionMode):
    """``topk`` of (batch, positions, keys), for each position of the keys up to its own."""

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
        if func in TOPK and args[0].shape[1:] == (self.positions, self.keys):
            scores, selected = args[0], found[0].shape[-1]
            for at, seen in enumerate(range(self.keys - self.positions + 1, self.keys)):
                if seen > selected:  # else it attends to all that it sees
                    own = func(scores[:, at : at + 1, :seen], *args[1:], **kwargs)
                    for whole, row in zip(found, own, strict=True):
                        whole[:, at : at + 1] = row
        return found
