"""Properties of a call of ``generate`` before its prefill, and of a forward to come."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from ngramspec.errors import UnsupportedError
from ngramspec.hf_model.cache.kv_cache import KVCache
from ngramspec.hf_model.compat import hf_private
from ngramspec.hf_model.compat.cache_name import CACHE_NAMES
from ngramspec.hf_model.inputs.growth import prompt_end
from ngramspec.hf_model.inputs.present_rows import has_hooks
from ngramspec.hf_model.traits import Traits


@dataclass(frozen=True, slots=True)
class CallTraits:
    """One call of ``generate``, before its prefill."""

    rows: int  # in the batch
    prompt: int  # tokens of each row's prompt, as ``generate`` counts them against max_length
    cached: int  # positions in the cache before the prefill
    end: int  # positions of a row after the prefill, including ``cached``
    keeps_cache: bool  # whether the cache belongs, or may belong, to the caller
    slides: bool  # whether a layer of the cache forgets positions that have left its window
    gap_obstacle: str | None  # which layers do not allow gaps between positions; None: all do
    attends: bool  # whether a layer of the cache holds keys and values
    static: bool  # whether the cache has a fixed size
    states: tuple[str, ...]  # names of the requested attentions and hidden states
    hooked: bool  # whether modules have hooks, which may rely on all rows of the call
    # Why the cache's positions will not match the masks, or None.
    unaligned: str | None


def call_traits_of(
    model: Any,
    input_ids: torch.Tensor,
    config: Any,
    kwargs: dict[str, Any],
    cache: KVCache,
    *,
    traits: Traits,
    states: tuple[str, ...],
) -> CallTraits:
    """Return the traits of a call, from the arguments of its prefill as ``generate`` made them.

    An UnsupportedError is raised for embeddings that are read in chunks.
    """
    if kwargs.get("inputs_embeds") is not None and config.prefill_chunk_size:
        raise UnsupportedError(
            "prefill_chunk_size is not supported with inputs_embeds, which transformers would read"
            " whole in every chunk; remove prefill_chunk_size"
        )
    cached = cache.length()
    left_out, prefix = hf_private.mask_length(config), "decoder_" if traits.encodes else ""
    end = prompt_end(input_ids, kwargs, cached=cached, mask_length=left_out, prefix=prefix)
    unaligned = None  # the baseline runs such a call, so it is run too, without drafts
    if not traits.encodes and cached > 0 and cached >= end:
        unaligned = "the cache given holds the whole prompt; crop it by one token, cache.crop(-1)"
    elif traits.skips_padding and not traits.hooked:
        unaligned = "the model counts tokens other than padding itself"
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
        hooked=has_hooks(model),
        unaligned=unaligned,
    )


# Arguments of the prefill that a prompt of plain text has.
PLAIN_PREFILL = (
    *(*CACHE_NAMES, "use_cache", "logits_to_keep", "attention_mask", "position_ids"),
    *("encoder_outputs", "decoder_attention_mask", "decoder_position_ids"),
)


@dataclass(frozen=True, slots=True)
class Known:
    """Properties of a model and of one call of ``generate``."""

    traits: Traits
    call: CallTraits
    model: Any  # the transformers model that ``traits`` describes
    config: Any  # the prepared GenerationConfig
    kwargs: dict[str, Any]  # of the next forward
    # Whether each row of a batch may have a separate tree, as beams and rows that accept different
    # numbers of tokens may.
    by_row: bool = False

    @property
    def plain(self) -> bool:
        """Whether the arguments describe only text.

        Any other argument may change how a prompt is read. Token types, for example, may make
        attention bidirectional.
        """
        return all(
            name in PLAIN_PREFILL or value is None or value is False
            for name, value in self.kwargs.items()
        )

    @property
    def overflows(self) -> bool:
        """Whether experts may drop tokens of the prompts, as they also do in the baseline."""
        capacity = self.traits.token_capacity
        return capacity is not None and self.call.rows * self.call.end > capacity

    @property
    def masks_positions(self) -> bool:
        """Whether the attention mask hides a position. It costs one host sync on a device."""
        mask: torch.Tensor | None = self.kwargs.get("attention_mask")
        return mask is not None and not bool((mask != 0).all())

    @property
    def slides(self) -> bool:
        """Whether the text may become longer than a window or chunk of a layer.

        Otherwise all layers have full attention. The length is that of the text with all new
        tokens, and drafts do not go beyond it.
        """
        windows = self.traits.windows
        if windows is None:
            return False
        end = self.call.end + int(self.config.max_length) - self.call.prompt
        return not windows.known or end > windows.shortest

    @property
    def reads_text(self) -> bool:
        """Whether the model's own input preparation may read and count all committed tokens."""
        return self.traits.reads_text and self.traits.stock is None
