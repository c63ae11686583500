"""Models as people write them for themselves: small changes to a class of transformers."""

from __future__ import annotations

from typing import Any

import torch
from transformers import LlamaForCausalLM, MistralForCausalLM
from transformers.masking_utils import create_causal_mask

from ngramspec.hf_model.compat.caches import cache_argument, cache_of

__all__ = ["create_causal_mask"]  # as remote code imports it, beside the models


class Trivial(LlamaForCausalLM):
    """Changes nothing."""


class TrivialSliding(MistralForCausalLM):
    """Changes nothing of a model with windows."""


class DropsPositions(LlamaForCausalLM):
    """Prepares its inputs without position_ids, as much remote code does."""

    def prepare_inputs_for_generation(self, *args: Any, **kwargs: Any) -> dict[str, Any]:
        inputs = super().prepare_inputs_for_generation(*args, **kwargs)
        inputs.pop("position_ids", None)
        return inputs


class OwnInputs(LlamaForCausalLM):
    """Prepares its inputs all by itself, from the old signature."""

    def prepare_inputs_for_generation(
        self, input_ids, attention_mask=None, inputs_embeds=None, **kwargs
    ):
        cache = cache_of(kwargs)
        past = 0 if cache is None else cache.get_seq_length()
        if kwargs.get("next_sequence_length"):
            input_ids = input_ids[:, -kwargs["next_sequence_length"] :]
        elif past:
            input_ids = input_ids[:, past:]
        first = inputs_embeds is not None and past == 0
        return {
            "input_ids": None if first else input_ids,
            "inputs_embeds": inputs_embeds if first else None,
            **cache_argument(cache),
            "use_cache": True,
            "attention_mask": attention_mask,
        }


class OwnSample(LlamaForCausalLM):
    """Decodes in a way of its own: the token 7 ends every text."""

    def _sample(self, input_ids: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        out = super()._sample(input_ids, *args, **kwargs)
        if isinstance(out, torch.Tensor):
            out = torch.cat((out, torch.full_like(out[:, :1], 7)), dim=1)
        return out


class Wrapped(torch.nn.Module):
    """Embeddings without a weight of their own."""

    def __init__(self, inner: torch.nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.inner(ids)


class WrappedEmbeddings(LlamaForCausalLM):
    """Its embeddings are a module without ``weight``."""

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self.model.embed_tokens = Wrapped(self.model.embed_tokens)
