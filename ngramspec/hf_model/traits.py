"""Properties of a model and of a call of ``generate`` that are known before the first forward."""

from __future__ import annotations

import inspect
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from typing import Any

import torch

from ngramspec.errors import UnsupportedError
from ngramspec.hf_model.attention import Windows, windows_of
from ngramspec.hf_model.cache.kv_cache import KVCache
from ngramspec.hf_model.compat import names
from ngramspec.hf_model.compat.caches import (
    CACHE_NAMES,
    cache_argument,
    is_callers,
    new_cache,
    new_encoder_decoder_cache,
)
from ngramspec.hf_model.compat.positions import counting_modules

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
    """Return the traits of a model, for inputs as ``generate`` prepared them."""
    stock = names.stock_class(model)
    own_names, encodes = names.names_of(model), names.is_encoder_decoder(model)
    name = "decoder_position_ids" if encodes else "position_ids"
    given = encodes or kwargs.get(name) is not None
    placed = given and name in inspect.signature(model.forward).parameters
    placed = placed or (
        stock is not None
        and bool(own_names & names.PASSES_POSITIONS)
        and "position_ids" in inspect.signature(model.get_decoder().forward).parameters
    )
    hooked, passes_masks = False, True
    foreign, reads_text = names.prepares_inputs_outside(model), names.prepares_inputs(model)
    if foreign or (placed and reads_text):
        # Phi-3 drops its cache at a length, where the test shows nothing.
        with nullcontext() if foreign else suppress(UnsupportedError):
            passes_positions, passes_masks = try_preparation(model, input_ids, kwargs)
            placed = placed and passes_positions
    if not (placed or foreign):
        hooked = any(counting_modules(model))
    return Traits(
        name=type(model).__name__,
        names=own_names,
        stock=stock,
        encodes=encodes,
        attention=names.attention_of(model),
        standard_masks=names.has_standard_masks(model, stock),
        own_masks=names.has_own_masks(model),
        passes_masks=passes_masks,
        windows=windows_of(names.text_config(model)),
        by_slot=bool(own_names & names.BY_SLOT),
        reads_text=reads_text,
        takes_positions=placed,
        hooked=hooked,
        skips_padding=not placed and names.skips_padding(model),
        embeddings=names.embedding_count(model),
        recurrent=names.is_stateful(model),
        token_capacity=names.least_capacity(model),
        **names.config_traits(model),
    )


def try_preparation(
    model: Any, input_ids: torch.Tensor, kwargs: dict[str, Any]
) -> tuple[bool, bool]:
    """Whether a model's input preparation passes on position ids, and masks of four dimensions.

    It prepares two tokens after the prompt, over a cache of zeros, as a step does. Both get the
    same position, like siblings in a tree. A function that counts positions itself never returns
    equal positions. An UnsupportedError is raised if the method drops one of the tokens, or raises.
    """
    prefix = "decoder_" if names.is_encoder_decoder(model) else ""
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
    ids, out = (inputs.get(f"{prefix}{name}") for name in ("input_ids", "position_ids"))
    if not isinstance(ids, torch.Tensor) or ids.shape[1] != 2:
        method = f"{type(model).__name__}.prepare_inputs_for_generation"
        raise UnsupportedError(
            f"{method} does not return two new tokens; have it use next_sequence_length"
        )
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
        method = f"{type(model).__name__}.prepare_inputs_for_generation"
        raise UnsupportedError(f"{method} fails with two new tokens: {error}") from error


def _zeros(model: Any, rows: int, length: int) -> Any:
    """Return a cache with keys and values of zeros, (rows, 1, length, 1), for each layer."""
    cache = new_cache()
    states = torch.zeros((rows, 1, length, 1), dtype=model.dtype, device=model.device)
    for layer in range(names.layer_count(model)):
        cache.update(states, states, layer)
    return new_encoder_decoder_cache(cache) if names.is_encoder_decoder(model) else cache


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
    """Return the traits of a call, from the arguments of its prefill as ``generate`` made them."""
    if kwargs.get("inputs_embeds") is not None and config.prefill_chunk_size:
        raise UnsupportedError(
            "prefill_chunk_size is not supported with inputs_embeds, which transformers would read"
            " whole in every chunk; remove prefill_chunk_size"
        )
    cached = cache.length()
    left_out, prefix = names.mask_length(config), "decoder_" if traits.encodes else ""
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
        keeps_cache=is_callers(cache.cache),
        slides=cache.slides,
        gap_obstacle=cache.gap_obstacle,
        attends=bool(cache.attention),
        static=cache.capacity is not None,
        states=states,
        hooked=has_hooks(model),
        unaligned=unaligned,
    )


def prompt_end(
    input_ids: torch.Tensor,
    kwargs: dict[str, Any],
    *,
    cached: int = 0,
    mask_length: int | None = None,
    prefix: str = "",
) -> int:
    """Return how many positions a row has after the prefill, including those cached before it.

    This is the length of the mask, or of the one that ``generate`` left out, ``mask_length``. A
    prompt without either is assumed to be new as a whole.
    """
    mask = kwargs.get(f"{prefix}attention_mask")
    if mask is not None:
        return int(mask.shape[-1])
    if mask_length is not None:
        return mask_length
    embeds = kwargs.get(f"{prefix}inputs_embeds")
    return cached + int((input_ids if embeds is None else embeds).shape[1])


def has_hooks(model: Any) -> bool:
    """Whether a module has forward hooks, which may rely on every row of the batch.

    Adapters that are chosen by row use such hooks (``adapter_names`` of PEFT). Hooks that ngramspec
    sets for a single forward do not count; another thread may have set them. transformers' hooks
    that capture states do not count either. They stay on a model after the first call that asked
    for states, and do nothing in calls that ask for none.
    """
    return any(
        not names.captures_states(hook)
        for module in model.modules()
        for hook in (*module._forward_pre_hooks.values(), *module._forward_hooks.values())
        if not str(getattr(hook, "__module__", "")).startswith("ngramspec.hf_model.")
    )


# Arguments of the prefill that a prompt of plain text has.
PLAIN_PREFILL = (
    *(*CACHE_NAMES, "use_cache", "logits_to_keep", "attention_mask", "position_ids"),
    *("encoder_outputs", "decoder_attention_mask", "decoder_position_ids"),
)


@dataclass(frozen=True, slots=True)
class CallFacts:
    """What is known about a model and one call of ``generate``, for the table of abilities."""

    traits: Traits
    call: CallTraits
    model: Any  # the transformers model that ``traits`` describes
    config: Any  # the prepared GenerationConfig
    kwargs: dict[str, Any]  # of the next forward
    # Whether each row of a batch may have a separate tree, as beams and rows that accept different
    # numbers of tokens may.
    ragged: bool = False

    @property
    def plain(self) -> bool:
        """Whether the arguments describe only text; others may change how a prompt is read."""
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
        """Whether the text, with all new tokens, may become longer than a window or chunk."""
        windows = self.traits.windows
        if windows is None:
            return False
        end = self.call.end + int(self.config.max_length) - self.call.prompt
        return not windows.known or end > windows.shortest

    @property
    def reads_text(self) -> bool:
        """Whether the model's own input preparation may read and count all committed tokens."""
        return self.traits.reads_text and self.traits.stock is None
