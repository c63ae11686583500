"""Properties of a model that are known before its first forward."""

from __future__ import annotations

import inspect
import sys
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from typing import Any

import torch

from ngramspec.errors import UnsupportedError
from ngramspec.hf_model.attention.windows import Windows, windows_of
from ngramspec.hf_model.compat import classes, hf_private

MASKED_ATTENTIONS = ("sdpa", "eager")  # attention implementations that take a 4D mask


@dataclass(frozen=True, slots=True)
class Traits:
    """How a model prepares and reads its inputs."""

    name: str  # of its class, for messages
    names: frozenset[str]  # of its class and of all its base classes
    # Its own class or a base class in transformers, whose step methods it does not override.
    stock: type | None
    encodes: bool  # whether it is an encoder-decoder model
    attention: str  # name of its decoder's attention implementation, such as "sdpa"
    standard_masks: bool  # whether its masks are made by transformers' own function
    own_masks: bool  # whether it defines ``create_masks_for_generate``
    passes_masks: bool  # whether a mask of four dimensions reaches its attention unchanged
    # Of its layers, whose masks hide positions even if its cache keeps them; None: it has none.
    windows: Windows | None
    alibi: bool  # whether its attention adds biases by distance, computed from the 2D mask
    by_slot: bool  # whether it finds a token by its slot in the cache instead of its position
    reads_text: bool  # whether it prepares its inputs itself, and may read all committed tokens
    takes_positions: bool  # whether it uses the ``position_ids`` that it is given
    hooked: bool  # whether hooks make it use our positions; it ignores those that a caller passes
    # Whether it counts positions itself and gives none to padding tokens (M2M-100, TrOCR). After
    # such a token a wider forward counts differently.
    skips_padding: bool
    position_limit: int | None  # number of positions that it supports; None: no limit
    embeddings: int | None  # number of tokens that it has embeddings for; None: unknown
    # From this length on, a forward's rotary frequencies are different, at all its positions.
    rope_changes_at: int | None
    rope_grows: bool  # whether rotary frequencies depend on the largest position of a forward
    recurrent: bool  # whether it keeps a recurrent state
    # With more tokens than this, it drops a cache that holds fewer and reads all again (Phi-3).
    rereads_at: int | None
    # How many tokens of a forward its experts take at least; None: all, or it has no experts.
    token_capacity: int | None
    # Whether its hidden states have several streams in their first dimension (Gemma 3n), rather
    # than before the last one or not at all.
    streams_first: bool

    @property
    def placed(self) -> bool:
        """Whether its forwards use given positions."""
        return self.takes_positions or self.hooked

    @property
    def thresholds(self) -> list[int]:
        """Lengths, ascending, at which a forward computes all its positions differently."""
        return sorted({at for at in (self.rope_changes_at, self.rereads_at) if at is not None})

    @property
    def takes_masks(self) -> bool:
        """Whether the attention takes a mask of four dimensions, unchanged."""
        standard = self.standard_masks and not self.own_masks and not self.alibi
        return self.attention in MASKED_ATTENTIONS and standard and self.passes_masks

    @property
    def rope_varies(self) -> bool:
        """Whether a position's rotary frequencies depend on the length of the text."""
        return bool(self.thresholds) or self.rope_grows


def traits_of(model: Any, input_ids: torch.Tensor, kwargs: dict[str, Any]) -> Traits:
    """Return the traits of a model, for inputs as ``generate`` prepared them.

    A ``prepare_inputs_for_generation`` other than the common one is tried; see ``probe``.
    """
    from transformers.generation.utils import GenerationMixin

    config = model.config.get_text_config(decoder=True)
    names = classes.names_of(model)
    prepare = getattr(model.prepare_inputs_for_generation, "__func__", None)
    name = "decoder_position_ids" if model.config.is_encoder_decoder else "position_ids"
    given = model.config.is_encoder_decoder or kwargs.get(name) is not None
    placed = given and name in inspect.signature(model.forward).parameters
    stock = stock_class(model)
    placed = placed or (
        stock is not None
        and bool(names & classes.PASSES_POSITIONS)
        and "position_ids" in inspect.signature(model.get_decoder().forward).parameters
    )
    hooked, passes_masks = False, True
    own = type(model).prepare_inputs_for_generation
    foreign = not own.__module__.startswith("transformers.")
    reads_text = prepare is not GenerationMixin.prepare_inputs_for_generation
    if foreign or (placed and reads_text):
        from ngramspec.hf_model.probe import probe

        # Phi-3 drops its cache at a length, where the test shows nothing.
        with nullcontext() if foreign else suppress(UnsupportedError):
            passes_positions, passes_masks = probe(model, input_ids, kwargs)
            placed = placed and passes_positions
    if not (placed or foreign):
        from ngramspec.hf_model.compat.positions import counting_modules

        hooked = any(counting_modules(model))
    return Traits(
        name=type(model).__name__,
        names=names,
        stock=stock,
        encodes=bool(model.config.is_encoder_decoder),
        attention=hf_private.attention_of(model),
        standard_masks=_makes_standard_masks(model, stock),
        own_masks=getattr(type(model), "create_masks_for_generate", None) is not None,
        passes_masks=passes_masks,
        windows=windows_of(config),
        alibi=_has_alibi(config),
        by_slot=bool(names & classes.BY_SLOT),
        reads_text=reads_text,
        takes_positions=placed,
        hooked=hooked,
        skips_padding=not placed and classes.skips_padding(model),
        position_limit=getattr(config, "max_position_embeddings", None),
        embeddings=embedding_count(model),
        rope_changes_at=rope_changes_at(config),
        rope_grows=any(each["rope_type"] == "dynamic" for each in _ropes(config)),
        recurrent=hf_private.is_stateful(model),
        rereads_at=_rereads_at(model, names),
        token_capacity=classes.least_capacity(model),
        streams_first=hasattr(config, "altup_num_inputs"),
    )


def stock_class(model: Any) -> type | None:
    """Return ``Traits.stock`` of a model."""
    for kind in type(model).__mro__:
        if classes.is_stock_model(kind):
            return kind
        if any(name in vars(kind) for name in hf_private.STEP_METHODS):
            return None
    return None


def embedding_count(model: Any) -> int | None:
    """Number of tokens that a model, or its decoder, has embeddings for; None: unknown."""
    embedder = model.get_decoder() if model.config.is_encoder_decoder else model
    weight = getattr(embedder.get_input_embeddings(), "weight", None)
    return None if weight is None else int(weight.shape[0])


def head_size(model: Any) -> int | None:
    """Number of tokens that a model's output layer computes logits for; None: unknown."""
    weight = getattr(model.get_output_embeddings(), "weight", None)
    if isinstance(weight, torch.Tensor) and weight.ndim == 2 and weight.is_floating_point():
        return int(weight.shape[0])
    return None


def rope_changes_at(config: Any) -> int | None:
    """Return ``Traits.rope_changes_at`` of a text model's config."""
    thresholds = [
        int(each["original_max_position_embeddings"])
        for each in _ropes(config)
        if each.get("rope_type") == "longrope" and "original_max_position_embeddings" in each
    ]
    return min(thresholds, default=None)


def _ropes(config: Any) -> list[dict[str, Any]]:
    """The rotary parameters of a text config, or of each kind of its layers."""
    given = getattr(config, "rope_parameters", None) or {}
    each = [given, *given.values()]
    return [one for one in each if isinstance(one, dict) and "rope_type" in one]


def _rereads_at(model: Any, names: frozenset[str]) -> int | None:
    if not names & classes.REREADS:
        return None
    at = getattr(model.config, "original_max_position_embeddings", None)
    known = getattr(model.config, "max_position_embeddings", None)
    return None if at is None or (known is not None and at >= known) else int(at)


def _makes_standard_masks(model: Any, stock: type | None) -> bool:
    """Whether a model's masks are made by transformers' own function.

    It is called in the model's own module, or in that of the decoder to which a model of
    transformers passes its masks. A forward defined elsewhere may change them before.
    """
    kinds = (type(model),) if stock is None else (stock, type(model.get_decoder()))
    return any(hasattr(sys.modules.get(kind.__module__), "create_causal_mask") for kind in kinds)


def _has_alibi(config: Any) -> bool:
    own = getattr(config, "attn_config", None)  # MPT's
    asked = bool(getattr(config, "alibi", False) or getattr(own, "alibi", False))
    return asked or config.model_type in ("bloom", "mpt")
