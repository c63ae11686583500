"""What is known of a model before its first forward: how it finds positions, masks and windows."""

from __future__ import annotations

import inspect
import sys
from dataclasses import dataclass
from typing import Any

import torch

from ngramspec.errors import UnsupportedError

STOCK = "transformers.models."
# What a subclass must leave alone to run its base class's steps.
STEPS = (
    "__call__",
    "_prefill",
    "_update_model_kwargs_for_generation",
    "create_masks_for_generate",
    "forward",
    "get_decoder",
    "prepare_inputs_for_generation",
)
# Models that find a token by its slot in the cache: rows may have no gaps, drafts no branches, and
# what pads a forward to its width would be seen.
BY_SLOT = frozenset(
    {
        "GPTNeoForCausalLM",  # its windows
        "GlmImageForConditionalGeneration",  # it counts positions itself
        "GitForCausalLM",  # its mask, which leaves out the image before the text
        "HyperCLOVAXVisionV2ForConditionalGeneration",  # it drops the positions that it is given
        "Kosmos2_5ForConditionalGeneration",  # so does this
    }
)


@dataclass(frozen=True, slots=True)
class Traits:
    """How a model prepares and reads its inputs.

    Attributes:
        names: of its class and of those it inherits from.
        stock: the class of transformers whose steps it runs, its own or a base; None: another's.
        by_slot: whether it finds a token by its slot in the cache, not by its position.
        reads_text: whether it prepares its inputs itself, and may look at all committed tokens.
        places: whether it takes the ``position_ids`` that it is given.
        embeddings: how many tokens it has embeddings for; None: it does not say.
        unplaced: the id that takes no position, where it counts them itself by what the forward's
            tokens are (M2M-100, TrOCR): behind such a token a wider forward counts otherwise.
    """

    names: frozenset[str]
    stock: type | None
    by_slot: bool
    reads_text: bool
    places: bool
    embeddings: int | None
    unplaced: int | None


def traits_of(model: Any, input_ids: torch.Tensor, kwargs: dict[str, Any]) -> Traits:
    """The traits of a model, for inputs as ``generate`` prepared them.

    A ``prepare_inputs_for_generation`` from outside transformers is called once, with two tokens
    behind the prompt and a cache of zeros, to see what it makes of them.

    Args:
        model: a transformers model.
        input_ids: int64 (batch, prompt).
        kwargs: of its forward.

    Raises:
        UnsupportedError: it prepares one token, whatever it is given.
    """
    from transformers.generation.utils import GenerationMixin

    stock = stock_class(model)
    names = frozenset(kind.__name__ for kind in type(model).__mro__)
    prepare = getattr(model.prepare_inputs_for_generation, "__func__", None)
    given = kwargs.get("position_ids") is not None
    placed = given and "position_ids" in inspect.signature(model.forward).parameters
    own = type(model).prepare_inputs_for_generation
    if not own.__module__.startswith("transformers.") and not model.config.is_encoder_decoder:
        placed = _takes_two(model, input_ids, kwargs) and placed
    return Traits(
        names=names,
        stock=stock,
        by_slot=bool(names & BY_SLOT),
        reads_text=prepare is not GenerationMixin.prepare_inputs_for_generation,
        places=placed,
        embeddings=embedding_count(model),
        unplaced=None if placed else _unplaced(model),
    )


def _unplaced(model: Any) -> int | None:
    """The padding id of embeddings that count positions by which tokens are padding, or None."""
    for module in model.modules():
        if hasattr(module, "create_position_ids_from_input_ids"):
            return int(getattr(module, "padding_idx", model.config.pad_token_id))
    return None


def stock_class(model: Any) -> type | None:
    """The class of transformers whose steps a model runs; None where a subclass has its own."""
    for kind in type(model).__mro__:
        if kind.__module__.startswith(STOCK):
            return kind
        if any(name in vars(kind) for name in STEPS):
            return None
    return None


def embedding_count(model: Any) -> int | None:
    """How many tokens a model, or its decoder, has embeddings for; None: it does not say."""
    embedder = model.get_decoder() if model.config.is_encoder_decoder else model
    weight = getattr(embedder.get_input_embeddings(), "weight", None)
    return None if weight is None else int(weight.shape[0])


def makes_standard_masks(model: Any) -> bool:
    """Whether a model's masks are made by transformers' own function, in its own module."""
    module = sys.modules.get((stock_class(model) or type(model)).__module__)
    return hasattr(module, "create_causal_mask")


def _takes_two(model: Any, input_ids: torch.Tensor, kwargs: dict[str, Any]) -> bool:
    """Whether a model's own ``prepare_inputs_for_generation`` passes positions of two tokens on.

    Raises:
        UnsupportedError: it does not pass both tokens on.
    """
    from transformers import DynamicCache

    rows, length = input_ids.shape[0], _length(input_ids, kwargs)
    cache = DynamicCache()
    states = torch.zeros((rows, 1, length, 1), dtype=model.dtype, device=input_ids.device)
    cache.update(states, states, 0)
    grown = kwargs | {"past_key_values": cache}
    mask, positions = kwargs.get("attention_mask"), kwargs.get("position_ids")
    if isinstance(mask, torch.Tensor) and mask.ndim == 2:
        grown["attention_mask"] = torch.cat((mask, mask.new_ones((rows, 2))), dim=1)
    if positions is not None:
        steps = torch.arange(1, 3, device=positions.device, dtype=positions.dtype)
        grown["position_ids"] = torch.cat((positions, positions[..., -1:] + steps), dim=-1)
    text = torch.cat((input_ids, input_ids.new_zeros((rows, 2))), dim=1)
    what = f"{type(model).__name__}.prepare_inputs_for_generation"
    try:
        inputs = model.prepare_inputs_for_generation(text, next_sequence_length=2, **grown)
    except Exception as error:
        raise UnsupportedError(f"{what} fails with two new tokens: {error}") from error
    ids = inputs.get("input_ids")
    if not isinstance(ids, torch.Tensor) or ids.shape[1] != 2:
        raise UnsupportedError(
            f"{what} does not pass two new tokens on; have it use next_sequence_length"
        )
    return inputs.get("position_ids") is not None


def _length(input_ids: torch.Tensor, kwargs: dict[str, Any]) -> int:
    mask, embeds = kwargs.get("attention_mask"), kwargs.get("inputs_embeds")
    told = [input_ids.shape[1]]
    told += [each.shape[1] for each in (mask, embeds) if isinstance(each, torch.Tensor)]
    return max(told)
