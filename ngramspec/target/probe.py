"""What a model's own input preparation makes of two new tokens, tried before the prefill."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from ngramspec.errors import UnsupportedError


@dataclass(frozen=True, slots=True)
class Probe:
    """What a ``prepare_inputs_for_generation`` passes on.

    Attributes:
        positions: whether these are the ``position_ids`` that it was given.
        masks: whether a mask of four dimensions comes out as it went in.
    """

    positions: bool
    masks: bool


def probe(model: Any, input_ids: torch.Tensor, kwargs: dict[str, Any]) -> Probe:
    """Prepare two tokens behind the prompt, over a cache of zeros, as a step would.

    Both tokens are given the same position, as siblings in a tree have it: nobody who counts by
    himself comes to that.

    Args:
        model: a transformers model with a ``prepare_inputs_for_generation`` of its own.
        input_ids: int64 (batch, prompt).
        kwargs: of its forward, as ``generate`` prepared them.

    Raises:
        UnsupportedError: it does not pass both tokens on, or fails.
    """
    prefix = "decoder_" if model.config.is_encoder_decoder else ""
    rows, length = input_ids.shape[0], prompt_length(input_ids, kwargs, prefix)
    grown = kwargs | {"past_key_values": _zeros(model, rows, length)}
    mask, positions = (kwargs.get(f"{prefix}{name}") for name in ("attention_mask", "position_ids"))
    if isinstance(mask, torch.Tensor) and mask.ndim == 2:
        grown[f"{prefix}attention_mask"] = torch.cat((mask, mask.new_ones((rows, 2))), dim=1)
    if positions is not None:
        last = positions[..., -1:] + 1
        grown[f"{prefix}position_ids"] = torch.cat((positions, last, last), dim=-1)
    inputs = _prepared(model, input_ids, grown)
    ids = inputs.get(f"{prefix}input_ids")
    if not isinstance(ids, torch.Tensor) or ids.shape[1] != 2:
        raise UnsupportedError(
            f"{_name(model)} does not pass two new tokens on; have it use next_sequence_length"
        )
    out = inputs.get(f"{prefix}position_ids")
    same = positions is not None and out is not None and bool((out[..., -2:] == last).all())
    return Probe(positions=same, masks=same and _passes_mask(model, input_ids, grown, length))


def prompt_length(input_ids: torch.Tensor, kwargs: dict[str, Any], prefix: str = "") -> int:
    """Positions of a prompt, those that a cache holds already included."""
    told = [input_ids.shape[1]]
    for name in (f"{prefix}attention_mask", f"{prefix}inputs_embeds"):
        value = kwargs.get(name)
        told += [value.shape[1]] if isinstance(value, torch.Tensor) else []
    return max(told)


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
    """A cache of as many layers as the model has, of one number for each position."""
    from transformers import DynamicCache, EncoderDecoderCache

    cache = DynamicCache()
    states = torch.zeros((rows, 1, length, 1), dtype=model.dtype, device=model.device)
    config = model.config.get_text_config(decoder=True)
    for layer in range(getattr(config, "num_hidden_layers", 1)):
        cache.update(states, states, layer)
    return EncoderDecoderCache(cache, DynamicCache()) if model.config.is_encoder_decoder else cache


def _name(model: Any) -> str:
    return f"{type(model).__name__}.prepare_inputs_for_generation"
