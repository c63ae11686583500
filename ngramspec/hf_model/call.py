"""Properties of one call of ``generate`` that are known before its prefill."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from ngramspec.hf_model.cache.kv_cache import KVCache
from ngramspec.hf_model.compat import hf_private
from ngramspec.hf_model.inputs.growth import prompt_end


@dataclass(frozen=True, slots=True)
class CallTraits:
    """One call of ``generate``, before its prefill.

    Attributes:
        rows: number of rows in the batch.
        prompt: tokens of each row's prompt, as ``generate`` counts them against max_length.
        cached: positions in the cache before the prefill.
        end: positions of a row after the prefill, including ``cached``.
        keeps_cache: whether the cache belongs, or may belong, to the caller.
        slides: whether a layer of the cache forgets positions that have left its window.
        gap_obstacle: which layers do not allow gaps between a row's positions; None: all do.
        attends: whether a layer of the cache holds keys and values.
        static: whether the cache has a fixed size.
        states: names of the requested attentions and hidden states.
        unaligned: why the cache's positions will not match the masks, so that nothing can be
            drafted; None: they will match.
    """

    rows: int
    prompt: int
    cached: int
    end: int
    keeps_cache: bool
    slides: bool
    gap_obstacle: str | None
    attends: bool
    static: bool
    states: tuple[str, ...]
    unaligned: str | None


def call_traits_of(
    input_ids: torch.Tensor,
    config: Any,
    kwargs: dict[str, Any],
    cache: KVCache,
    *,
    encodes: bool,
    states: tuple[str, ...],
) -> CallTraits:
    """Return the traits of a call.

    Args:
        input_ids: int64 (batch, prompt); of the decoder in an encoder-decoder model.
        config: the prepared GenerationConfig.
        kwargs: of the prefill, as ``generate`` prepared them.
        cache: of the call, before the prefill.
        encodes: whether the model is an encoder-decoder model.
        states: names of the requested attentions and hidden states.
    """
    cached = cache.length()
    end = prompt_end(input_ids, kwargs, cached=cached, mask_length=hf_private.mask_length(config))
    unaligned = None  # the baseline runs such a call, so it is run too, without drafts
    if not encodes and cached > 0 and cached >= end:
        unaligned = "the cache given holds the whole prompt; crop it by one token, cache.crop(-1)"
    elif kwargs.get("inputs_embeds") is not None and config.prefill_chunk_size:
        unaligned = "prefill_chunk_size reads all inputs_embeds in every chunk; remove it"
    return CallTraits(
        rows=input_ids.shape[0],
        prompt=input_ids.shape[1],
        cached=cached,
        end=end,
        keeps_cache=hf_private.is_callers(cache.cache),
        slides=cache.slides,
        gap_obstacle=cache.gap_obstacle,
        attends=bool(cache.layers),
        static=cache.capacity is not None,
        states=states,
        unaligned=unaligned,
    )
