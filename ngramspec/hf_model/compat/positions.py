"""Positions for models that count them from the length of their cache.

This is wrong for siblings in a tree, and for rows with gaps in the cache. Hooks on the listed
modules let one forward use given positions, in one thread only.
"""

from __future__ import annotations

import functools
import inspect
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.nn.functional import embedding

from ngramspec.hf_model.compat.devices import loaded
from ngramspec.hf_model.compat.hooks import call_after, call_before

# Modules of decoders that compute positions from the cache's length. The growing tables are
# enlarged when the cache grows.
GROWING_EMBEDDINGS = frozenset(
    {
        "Kosmos2TextSinusoidalPositionalEmbedding",
        *("Kosmos2_5TextSinusoidalPositionalEmbedding", "M2M100SinusoidalPositionalEmbedding"),
        "NllbMoeSinusoidalPositionalEmbedding",
    }
)
POSITION_EMBEDDINGS = GROWING_EMBEDDINGS | frozenset(
    {
        *("BartLearnedPositionalEmbedding", "BigBirdPegasusLearnedPositionalEmbedding"),
        *("BlenderbotLearnedPositionalEmbedding", "BlenderbotSmallLearnedPositionalEmbedding"),
        *("MBartLearnedPositionalEmbedding", "MarianSinusoidalPositionalEmbedding"),
        *("MvpLearnedPositionalEmbedding", "PLBartLearnedPositionalEmbedding"),
        *("PegasusSinusoidalPositionalEmbedding", "PegasusXSinusoidalPositionalEmbedding"),
        *("Speech2TextSinusoidalPositionalEmbedding", "TrOCRLearnedPositionalEmbedding"),
        *("TrOCRSinusoidalPositionalEmbedding", "WhisperPositionalEmbedding"),
    }
)
# Attentions that take a position bias for each row.
POSITION_BIASES = frozenset(
    {"LongT5Attention", "MT5Attention", "SwitchTransformersAttention", "T5Attention"}
)

# Names of a position embedding's parameter for the cache's length.
LENGTHS = ("cache_length", "past_key_values_length")

Modules = tuple[list[Any], list[Any]]  # position embeddings, and attentions with a position bias


def counting_modules(model: Any) -> Modules:
    """Return the modules of a model's decoder that compute positions, of the listed"""
    found = [(each, type(each).__name__) for each in model.get_decoder().modules()]
    tables = [each for each, name in found if name in POSITION_EMBEDDINGS]
    biased = [each for each, name in found if name in POSITION_BIASES]
    return tables, [each for each in biased if each.has_relative_attention_bias]


class _Thread(threading.local):
    """The positions of one thread's forward, as in ``placed``, or None."""

    past: torch.Tensor | None = None
    own: torch.Tensor | None = None


_thread = _Thread()


@contextmanager
def placed(modules: Modules, past: torch.Tensor, own: torch.Tensor) -> Iterator[None]:
    """Let this thread's next forward use given positions; other threads may run the same model.

    ``past``, int64 (rows, length), are those in the cache, ``own``, (rows or 1, width), its own.
    """
    tables, biased = modules
    for each in tables:
        call_before(each, _count_from_zero)
        call_after(each, _embed)
    for each in biased:
        call_before(each, _add_bias)
    _thread.past, _thread.own = past, own
    try:
        yield
    finally:
        _thread.past = _thread.own = None


def given_positions() -> torch.Tensor | None:
    """Return the positions of this thread's forward in ``placed``, int64 (rows, width), or None."""
    return _thread.own


@functools.cache
def _signature(forward: Callable[..., Any]) -> inspect.Signature:
    return inspect.signature(forward)


def _count_from_zero(module: Any, args: Any, kwargs: Any) -> Any:
    """Keep positions within a table that does not grow: with gaps, the cache may be longer."""
    if _thread.own is None:
        return None
    call = _signature(type(module).forward).bind(module, *args, **kwargs)
    if type(module).__name__ not in GROWING_EMBEDDINGS:
        for name in LENGTHS:
            call.arguments.pop(name, None)
        if call.arguments.get("position_ids") is not None:
            call.arguments["position_ids"] = torch.zeros_like(call.arguments["position_ids"])
    return call.args[1:], call.kwargs


def _embed(module: Any, args: Any, output: torch.Tensor) -> torch.Tensor:
    """Return the embeddings of the given positions, (rows, width, size).

    ``args`` of the embedding's forward are token ids, their shape, or their embeddings.
    """
    own = _thread.own
    if own is None:
        return output
    if isinstance(module, torch.nn.Embedding):
        with loaded(module):
            own = own.to(module.weight.device) + getattr(module, "offset", 0)
            return embedding(own, module.weight)
    if hasattr(module, "weights"):  # the first positions are those of padding tokens
        skipped = module.padding_idx
        ids = torch.where(args[0] == skipped, skipped, own + 1 + skipped)
        with loaded(module):
            found: torch.Tensor = module.weights[ids].detach()
        return found
    flat = args[0].reshape(1, -1, args[0].shape[-1])  # Pegasus-X uses the size of its input
    positions = own.expand(args[0].shape[:2])  # rows of equal positions share them
    computed: torch.Tensor = module.forward(flat, 0, positions.reshape(-1, 1))
    return computed.reshape(args[0].shape)


def _add_bias(module: Any, args: Any, kwargs: Any) -> Any:
    """Pass an attention the relative position bias of the given positions."""
    past, own = _thread.past, _thread.own
    if past is None or own is None or kwargs.get("position_bias") is not None:
        return None
    return args, kwargs | {"position_bias": _bias(module, kwargs["mask"], past, own)}


def _bias(
    module: Any, mask: torch.Tensor | None, past: torch.Tensor, own: torch.Tensor
) -> torch.Tensor:
    """Return the relative position bias of a forward, (rows, heads, width, keys), as its mask."""
    positions = torch.cat((past, own), dim=1)
    length = positions.shape[1]
    by_distance = module.compute_bias(1, length, positions.device, length - 1)[0, :, 0].flip(-1)
    distance = (own[:, :, None] - positions[:, None, :]).clamp(min=0)  # those < 0 are masked
    bias: torch.Tensor = by_distance[:, distance].transpose(0, 1)
    unused = 0 if mask is None else mask.shape[-1] - length  # at the end of a static cache
    return torch.nn.functional.pad(bias, (0, unused)) if unused else bias
