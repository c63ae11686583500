"""The configs of transformers' models, and prepared GenerationConfigs."""

from __future__ import annotations

import copy
from typing import Any

import torch


def text_config(model: Any) -> Any:
    """Return the config of a model's decoder."""
    return model.config.get_text_config(decoder=True)


def position_limit(config: Any) -> int | None:
    """Return the number of positions that a config supports, or None if it sets no limit."""
    whisper, led = "max_target_positions", "max_decoder_position_embeddings"
    known = (getattr(config, name, None) for name in ("max_position_embeddings", led, whisper))
    return next((limit for limit in known if limit is not None), None)


# How far back each type of layers attends: names of the fields of its window and of its chunk.
LAYER_TYPES: dict[str, tuple[str | None, str | None]] = {
    "full_attention": (None, None),
    "sliding_attention": ("sliding_window", None),
    "chunked_attention": (None, "attention_chunk_size"),
}
AttentionLimits = tuple[int | None, int | None]  # the sizes of a window and of a chunk


def attention_limits(config: Any) -> tuple[dict[str, AttentionLimits | None], tuple[str, ...]]:
    """Return each type of layers with its limits, None if unknown, and the type of each layer.

    A model whose config has no types of layers has one, "", and its layers are not listed. The
    first result is empty if no layer has a limit.
    """
    kinds = getattr(config, "layer_types", None)
    if kinds is None:
        window = getattr(config, "sliding_window", None)
        chunk = None if window is not None else getattr(config, "attention_chunk_size", None)
        return {} if window is None and chunk is None else {"": (window, chunk)}, ()
    if not any("sliding" in kind or "chunked" in kind for kind in kinds):
        return {}, ()
    found: dict[str, AttentionLimits | None] = dict.fromkeys(kinds)
    for kind in found.keys() & LAYER_TYPES.keys():
        window, chunk = LAYER_TYPES[kind]
        found[kind] = getattr(config, window or "", None), getattr(config, chunk or "", None)
    return found, tuple(kinds)


def rope_changes_at(config: Any) -> int | None:
    """Return the length from which on a forward's rotary frequencies are different, or None."""
    thresholds = [
        int(each["original_max_position_embeddings"])
        for each in ropes(config)
        if each.get("rope_type") == "longrope" and "original_max_position_embeddings" in each
    ]
    return min(thresholds, default=None)


def ropes(config: Any) -> list[dict[str, Any]]:
    """The rotary parameters of a text config, or of each kind of its layers."""
    given = getattr(config, "rope_parameters", None) or {}
    each = [given, *given.values()]
    return [one for one in each if isinstance(one, dict) and "rope_type" in one]


# transformers' defaults for these settings in a prepared GenerationConfig.
DEFAULT_SETTINGS = {
    "num_assistant_tokens": 20,
    "num_assistant_tokens_schedule": "constant",
    "assistant_confidence_threshold": 0.4,
}


def plain_method(config: Any) -> str | None:
    """Name of the baseline's decoding method under ``config``; None: it is loaded from the hub."""
    from transformers.generation.utils import GENERATION_MODES_MAPPING

    method = str(GENERATION_MODES_MAPPING[config.get_generation_mode()])
    return None if "/" in method else method


def pad_token(config: Any) -> int | None:
    """Return the padding token, by default the first end-of-sequence token, or None."""
    found = _tokens(config.pad_token_id) or eos_tokens(config)
    return found[0] if found else None


def eos_tokens(config: Any) -> tuple[int, ...]:
    """Return the end-of-sequence tokens."""
    return _tokens(config.eos_token_id)


def _tokens(given: Any) -> tuple[int, ...]:
    """Token ids that a config has as one number, several, a tensor or None."""
    if isinstance(given, torch.Tensor):
        given = given.tolist()
    return () if given is None else tuple(given) if isinstance(given, list | tuple) else (given,)


def mask_length(config: Any) -> int | None:
    """Return the length of the mask of ones that ``generate`` left out, or None."""
    length = getattr(config, "_mask_length", None)
    return None if length is None else int(length)


def with_longer_mask(config: Any, count: int) -> Any:
    """Return ``config``, or a copy whose left-out mask, which the prefill compares, is longer."""
    length = mask_length(config)
    if length is None:
        return config
    config = copy.copy(config)
    config._mask_length = length + count
    return config


def placeholders(config: Any) -> set[int]:
    """Token ids of placeholders for an image, audio and the like in a model's configuration."""
    text = ("bos", "eos", "pad", "decoder_start", "sep", "cls", "mask", "unk")
    return {
        value
        for name, value in vars(config).items()
        if name.endswith(("_token_id", "_token_index")) and isinstance(value, int)
        if name.removesuffix("_token_id") not in text
    }
