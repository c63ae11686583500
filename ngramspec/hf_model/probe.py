"""Test a model's own input preparation with two new tokens before the prefill."""

from __future__ import annotations

from typing import Any

import torch

from ngramspec.errors import UnsupportedError
from ngramspec.hf_model.compat.cache_name import cache_argument
from ngramspec.hf_model.inputs.growth import prompt_end


def probe(model: Any, input_ids: torch.Tensor, kwargs: dict[str, Any]) -> tuple[bool, bool]:
    """Whether a model's input preparation passes on position ids, and masks of four dimensions.

    It prepares two tokens after the prompt, over a cache of zeros, as a step does. Both get the
    same position, like siblings in a tree. A function that counts positions itself never returns
    equal positions. An UnsupportedError is raised if the method drops one of the tokens, or raises.
    """
    prefix = "decoder_" if model.config.is_encoder_decoder else ""
    rows, length = input_ids.shape[0], prompt_end(input_ids, kwargs, prefix=prefix)
    grown = kwargs | cache_argument(_zeros(model, rows, length))
    mask, positions = (kwargs.get(f"{prefix}{name}") for name in ("attention_mask", "position_ids"))
    if positions is None:  # ``Inputs.begin`` adds them
        positions = torch.arange(length, device=input_ids.device).expand(rows, -1)
    if isinstance(mask, torch.Tensor) and mask.ndim == 2:
        grown[f"{prefix}attention_mask"] = torch.cat((mask, mask.new_ones((rows, 2))), dim=1)
    last = positions[..., -1:] + 1
    grown[f"{prefix}position_ids"] = torch.cat((positions, last, last), dim=-1)
    inputs = _prepared(model, input_ids, grown)
    ids = inputs.get(f"{prefix}input_ids")
    if not isinstance(ids, torch.Tensor) or ids.shape[1] != 2:
        raise UnsupportedError(
            f"{_name(model)} does not return two new tokens; have it use next_sequence_length"
        )
    out = inputs.get(f"{prefix}position_ids")
    same = out is not None and bool((out[..., -2:] == last).all())
    return same, same and _passes_mask(model, input_ids, grown, length)


def _passes_mask(model: Any, input_ids: torch.Tensor, grown: dict[str, Any], length: int) -> bool:
    rows = input_ids.shape[0]
    mask = torch.ones((rows, 1, 2, length + 2), dtype=torch.bool, device=input_ids.device)
    try:
        inputs = _prepared(model, input_ids, grown | {"attention_mask": mask})
    except UnsupportedError:
        return False
    return inputs.get("attention_mask") is mask


def _prepared(model: Any, input_ids: torch.Tensor, grown: dict[str, Any]) -> dict[str, Any]:
    text = torch.cat((input_ids, input_ids.new_zeros((input_ids.shape[0], 2))), dim=1)
    try:
        return dict(model.prepare_inputs_for_generation(text, next_sequence_length=2, **grown))
    except Exception as error:
        raise UnsupportedError(f"{_name(model)} fails with two new tokens: {error}") from error


def _zeros(model: Any, rows: int, length: int) -> Any:
    """Return a cache with keys and values of zeros, (rows, 1, length, 1), for each layer."""
    from transformers import DynamicCache, EncoderDecoderCache

    cache = DynamicCache()
    states = torch.zeros((rows, 1, length, 1), dtype=model.dtype, device=model.device)
    config = model.config.get_text_config(decoder=True)
    for layer in range(getattr(config, "num_hidden_layers", 1)):
        cache.update(states, states, layer)
    return EncoderDecoderCache(cache, DynamicCache()) if model.config.is_encoder_decoder else cache


def _name(model: Any) -> str:
    return f"{type(model).__name__}.prepare_inputs_for_generation"
