"""What is known of a model before its first forward: how it finds positions, masks and windows."""

from __future__ import annotations

import inspect
import sys
from dataclasses import dataclass
from typing import Any

import torch

from ngramspec.target.probe import probe

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
# Models that drop their cache at ``config.original_max_position_embeddings`` tokens.
REREADS = frozenset({"Phi3ForCausalLM", "Phi4MultimodalForCausalLM", "PhimoeForCausalLM"})


@dataclass(frozen=True, slots=True)
class Traits:
    """How a model prepares and reads its inputs.

    Attributes:
        names: of its class and of those it inherits from.
        stock: the class of transformers whose steps it runs, its own or a base; None: another's.
        by_slot: whether it finds a token by its slot in the cache, not by its position.
        reads_text: whether it prepares its inputs itself, and may look at all committed tokens.
        places: whether it takes the ``position_ids`` that it is given.
        passes_masks: whether a mask of four dimensions reaches its attention as it is given.
        embeddings: how many tokens it has embeddings for; None: it does not say.
        unplaced: the id that takes no position, where it counts them itself by what the forward's
            tokens are (M2M-100, TrOCR): behind such a token a wider forward counts otherwise.
        rereads_at: with more tokens than so many it drops a cache that holds fewer, and reads all
            anew (Phi-3, whatever its rotary factors are); None: never.
    """

    names: frozenset[str]
    stock: type | None
    by_slot: bool
    reads_text: bool
    places: bool
    passes_masks: bool
    embeddings: int | None
    unplaced: int | None
    rereads_at: int | None


def traits_of(model: Any, input_ids: torch.Tensor, kwargs: dict[str, Any]) -> Traits:
    """The traits of a model, for inputs as ``generate`` prepared them.

    A ``prepare_inputs_for_generation`` from outside transformers is tried (``probe``).

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
    masks = True
    own = type(model).prepare_inputs_for_generation
    if not own.__module__.startswith("transformers."):
        found = probe(model, input_ids, kwargs)
        placed, masks = placed and found.positions, found.masks
    return Traits(
        names=names,
        stock=stock,
        by_slot=bool(names & BY_SLOT),
        reads_text=prepare is not GenerationMixin.prepare_inputs_for_generation,
        places=placed,
        passes_masks=masks,
        embeddings=embedding_count(model),
        unplaced=None if placed else _unplaced(model),
        rereads_at=_rereads_at(model, names),
    )


def _rereads_at(model: Any, names: frozenset[str]) -> int | None:
    if not names & REREADS:
        return None
    at = getattr(model.config, "original_max_position_embeddings", None)
    known = getattr(model.config, "max_position_embeddings", None)
    return None if at is None or (known is not None and at >= known) else int(at)


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
