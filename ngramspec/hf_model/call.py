"""What one call of ``generate`` brings, before its prefill."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from ngramspec.hf_model.cache.kv_cache import KVCache
from ngramspec.hf_model.compat import hf_private
from ngramspec.hf_model.inputs.growth import prompt_end


@dataclass(frozen=True, slots=True)
class CallTraits:
    """What one call of ``generate`` brings, before the prefill.

    Attributes:
        rows: of the batch.
        prompt: tokens of each row's prompt, as ``generate`` counts them against max_length.
        cached: positions that the cache holds already.
        end: positions of a row behind the prefill, ``cached`` included.
        keeps_cache: whether the cache is, or may be, the caller's own.
        slides: whether a layer of the cache forgets what is behind its window.
        gap_obstacle: which layers need the cache's positions to be those of the text, so that rows
            may have no gaps; None: none do.
        static: whether the cache has a fixed size.
        states: names of the attentions and hidden states that are asked for.
        unaligned: why the cache will hold other positions than the masks say, so that nothing can
            be drafted; None: it will not.
    """

    rows: int
    prompt: int
    cached: int
    end: int
    keeps_cache: bool
    slides: bool
    gap_obstacle: str | None
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
    """The traits of a call.

    Args:
        input_ids: int64 (batch, prompt); of the decoder in an encoder-decoder model.
        config: the prepared GenerationConfig.
        kwargs: of the prefill, as ``generate`` prepared them.
        cache: of the call, before the prefill.
        encodes: whether the model is an encoder-decoder model.
        states: names of the attentions and hidden states that are asked for.
    """
    cached = cache.length()
    end = prompt_end(input_ids, kwargs, cached=cached, mask_length=hf_private.mask_length(config))
    unaligned = None  # plain decoding goes on all the same; so does this, without drafts
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
        static=cache.capacity is not None,
        states=states,
        unaligned=unaligned,
    )
