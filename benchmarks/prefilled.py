"""One prefill for many calls with the same prompt, which shortens the measurement of decoding.

With a long prompt most of a whole call is its prefill, which is the same in all configurations.
Here a prompt is prefilled once. In later calls its keys and values are copied into their caches,
and the first forward runs over the last token and a draft after it, if there is one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import wraps
from typing import Any

import torch

from ngramspec.hf_model.compat.caches import cache_argument, cache_of
from ngramspec.measure.forwards import PREFILL_CHUNK_POSITIONS

State = tuple[torch.Tensor, torch.Tensor]  # a layer's keys and values, (1, heads, n, dim)


@contextmanager
def prefilled_model(model: Any) -> Iterator[Callable[[Sequence[int]], None]]:
    """Have ``model``'s first forward over a known prompt take the prompt's keys and values.

    The model's class is replaced by a subclass of the same name for the length of the block.
    """
    kind = type(model)
    known: list[Any] = [None, []]  # the prompt without its last token, and its layers' states

    @wraps(kind.forward)
    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        if args or not _begins_with(known[0], kwargs):
            return kind.forward(self, *args, **kwargs)
        for layer, (keys, values) in enumerate(known[1]):
            cache_of(kwargs).update(keys, values, layer)
        return kind.forward(self, **_without(known[0].shape[1], kwargs))

    def read(prompt: Sequence[int]) -> None:
        ids = torch.tensor([list(prompt[:-1])], device=model.device)
        if known[0] is None or not torch.equal(known[0], ids):
            known[:] = [ids, states_of(model, ids)]

    members = {"forward": forward, "__module__": kind.__module__}  # the module tells its abilities
    model.__class__ = type(kind.__name__, (kind,), members)
    try:
        yield read
    finally:
        model.__class__ = kind


@torch.inference_mode()
def states_of(model: Any, ids: torch.Tensor) -> list[State]:
    """The keys and values of each layer after ``ids``, int64 (1, n)."""
    from transformers import DynamicCache

    cache = DynamicCache(config=model.config)
    for begin in range(0, ids.shape[1], PREFILL_CHUNK_POSITIONS):
        block = ids[:, begin : begin + PREFILL_CHUNK_POSITIONS]
        model(input_ids=block, **cache_argument(cache), use_cache=True, logits_to_keep=1)
    states = [(layer.keys, layer.values) for layer in cache.layers]
    if any(keys.shape[2] != ids.shape[1] for keys, _ in states):
        raise ValueError("a prefill can be shared only where all layers have full attention")
    return states


def _begins_with(known: torch.Tensor | None, kwargs: dict[str, Any]) -> bool:
    """Whether this is the first forward of a call, and its tokens begin with those known."""
    cache, ids = cache_of(kwargs), kwargs.get("input_ids")
    if known is None or cache is None or ids is None or cache.get_seq_length():
        return False
    count = known.shape[1]
    return ids.shape[1] > count and torch.equal(ids[:, :count], known)


def _without(count: int, kwargs: dict[str, Any]) -> dict[str, Any]:
    """A forward's arguments without its first ``count`` tokens; masks still cover all positions."""
    names = ("input_ids", "position_ids", "cache_position")
    cut = {name: kwargs[name][..., count:] for name in names if kwargs.get(name) is not None}
    mask = kwargs.get("attention_mask")
    if mask is not None and mask.dim() == 4:
        cut["attention_mask"] = mask[:, :, count:]
    return kwargs | cut
