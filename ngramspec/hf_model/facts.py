"""What a model, a call of ``generate`` and its cache are like, and what they rule out.

``FACTS`` is a table. It has a row for each fact about a model or a call, and a cell for each
ability that the fact rules out. A cell holds the reason and, after a semicolon, the remedy if there
is one. To support a new kind of model or cache, add a row and decide about every ability.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from enum import Enum
from typing import Any

import torch

from ngramspec.errors import UnsupportedError
from ngramspec.hf_model.attention import Windows, windows_of
from ngramspec.hf_model.cache.kv_cache import KVCache
from ngramspec.hf_model.compat import names
from ngramspec.hf_model.compat.caches import CACHE_NAMES, is_callers
from ngramspec.hf_model.compat.versions import KEEPS_SELECTION, has

MASKED_ATTENTIONS = ("sdpa", "eager")  # attention implementations that take a 4D mask
# Arguments of the prefill that a prompt of plain text has.
PLAIN_PREFILL = (
    *(*CACHE_NAMES, "use_cache", "logits_to_keep", "attention_mask", "position_ids"),
    *("encoder_outputs", "decoder_attention_mask", "decoder_position_ids"),
)


@dataclass(slots=True, kw_only=True)
class Facts:
    """What is known about a model and one call of ``generate`` before its prefill."""

    # The model
    model: Any
    names: frozenset[str]  # of its class and of all its base classes
    encodes: bool  # whether it is an encoder-decoder model
    attention: str  # name of its decoder's attention implementation, such as "sdpa"
    standard_masks: bool  # whether its masks are made by transformers' own function
    own_masks: bool  # whether it defines ``create_masks_for_generate``
    passes_masks: bool  # whether a mask of four dimensions reaches its attention unchanged
    # Of its layers, whose masks hide positions even if its cache keeps them; None: it has none.
    windows: Windows | None
    alibi: bool  # whether its attention adds biases by distance, computed from the 2D mask
    reads_text: bool  # whether it prepares its inputs itself, and may read all committed tokens
    foreign: bool  # whether that is code outside transformers, which may count these tokens
    takes_positions: bool  # whether it uses the ``position_ids`` that it is given
    # Whether hooks make it use our positions; it ignores those that a caller passes.
    hooks_positions: bool
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
    # The call
    config: Any  # the prepared GenerationConfig
    kwargs: dict[str, Any]  # of the prefill
    rows: int  # in the batch
    prompt: int  # tokens of each row's prompt, as ``generate`` counts them against max_length
    cached: int  # positions in the cache before the prefill
    end: int  # positions of a row after the prefill, including ``cached``
    keeps_cache: bool  # whether the cache belongs, or may belong, to the caller
    slides: bool  # whether a layer of the cache forgets positions that have left its window
    indexed: bool  # whether a layer of the cache has an index of its keys
    gap_obstacle: str | None  # which layers do not allow gaps between positions; None: all do
    attends: bool  # whether a layer of the cache holds keys and values
    static: bool  # whether the cache has a fixed size
    states: tuple[str, ...]  # names of the requested attentions and hidden states
    hooked: bool  # whether modules have hooks, which may rely on all rows of the call
    unaligned: str | None  # why the cache's positions will not match the masks, or None
    ragged: bool = False  # whether rows may accept different numbers of tokens

    @property
    def placed(self) -> bool:
        """Whether the model's forwards use given positions."""
        return self.takes_positions or self.hooks_positions

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
    def plain(self) -> bool:
        """Whether the arguments describe only text; others may change how a prompt is read."""
        return all(
            name in PLAIN_PREFILL or value is None or value is False
            for name, value in self.kwargs.items()
        )

    @property
    def overflows(self) -> bool:
        """Whether experts may drop tokens of the prompts, as they also do in the baseline."""
        return self.token_capacity is not None and self.rows * self.end > self.token_capacity

    @property
    def masks_positions(self) -> bool:
        """Whether the attention mask hides a position. It costs one host sync on a device."""
        mask: torch.Tensor | None = self.kwargs.get("attention_mask")
        return mask is not None and not bool((mask != 0).all())

    @property
    def outgrows_windows(self) -> bool:
        """Whether the text, with all new tokens, may become longer than a window or chunk."""
        if self.windows is None:
            return False
        end = self.end + int(self.config.max_length) - self.prompt
        return not self.windows.known or end > self.windows.shortest

    @property
    def asks_attentions(self) -> bool:
        """Whether attentions are requested."""
        return any("attentions" in name for name in self.states)


def facts_of(
    model: Any, input_ids: torch.Tensor, config: Any, kwargs: dict[str, Any], cache: KVCache
) -> Facts:
    """Return the facts about a call, from its arguments as ``generate`` prepared them."""
    if kwargs.get("inputs_embeds") is not None and config.prefill_chunk_size:
        raise UnsupportedError(
            "prefill_chunk_size is not supported with inputs_embeds, which transformers would read"
            " whole in every chunk; remove prefill_chunk_size"
        )
    stock, own_names = names.stock_class(model), names.names_of(model)
    encodes = names.is_encoder_decoder(model)
    prefix, cached = "decoder_" if encodes else "", cache.length()
    name = f"{prefix}position_ids"
    given = encodes or kwargs.get(name) is not None
    placed = given and name in inspect.signature(model.forward).parameters
    placed = placed or (
        stock is not None
        and bool(own_names & names.PASSES_POSITIONS)
        and "position_ids" in inspect.signature(model.get_decoder().forward).parameters
    )
    hooks_positions, passes_masks = False, True
    outside, reads_text = names.prepares_inputs_outside(model), names.prepares_inputs(model)
    if outside or (placed and reads_text):
        from ngramspec.hf_model.trials import try_preparation  # most models need no trial

        # Phi-3 drops its cache at a length, where the test shows nothing.
        with nullcontext() if outside else suppress(UnsupportedError):
            length = prompt_end(input_ids, kwargs, prefix=prefix)
            passes_positions, passes_masks = try_preparation(model, input_ids, kwargs, length)
            placed = placed and passes_positions
    if not (placed or outside):
        from ngramspec.hf_model.compat.positions import counting_modules

        hooks_positions = any(counting_modules(model))
    left_out = names.mask_length(config)
    end = prompt_end(input_ids, kwargs, cached=cached, mask_length=left_out, prefix=prefix)
    unaligned, skips_padding = None, not placed and names.skips_padding(model)
    # The baseline runs such a call, so it is run too, without drafts.
    if not encodes and cached > 0 and cached >= end:
        unaligned = "the cache given holds the whole prompt; crop it by one token, cache.crop(-1)"
    elif skips_padding and not hooks_positions:
        unaligned = "the model counts tokens other than padding itself"
    return Facts(
        model=model,
        names=own_names,
        encodes=encodes,
        attention=names.attention_of(model),
        standard_masks=names.has_standard_masks(model, stock),
        own_masks=names.has_own_masks(model),
        passes_masks=passes_masks,
        windows=windows_of(names.text_config(model)),
        reads_text=reads_text,
        foreign=reads_text and stock is None,
        takes_positions=placed,
        hooks_positions=hooks_positions,
        skips_padding=skips_padding,
        embeddings=names.embedding_count(model),
        recurrent=names.is_stateful(model),
        token_capacity=names.least_capacity(model),
        **names.config_facts(model),
        config=config,
        kwargs=kwargs,
        rows=input_ids.shape[0],
        prompt=input_ids.shape[1],
        cached=cached,
        end=end,
        keeps_cache=is_callers(cache.cache),
        slides=cache.slides,
        indexed=cache.indexed,
        gap_obstacle=cache.gap_obstacle,
        attends=bool(cache.attention),
        static=cache.capacity is not None,
        states=requested_states(config, kwargs, encodes=encodes),
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


def requested_states(config: Any, kwargs: dict[str, Any], *, encodes: bool) -> tuple[str, ...]:
    """Return the names of the outputs with attentions and hidden states that a call asks for."""
    found: tuple[str, ...] = ()
    if config.return_dict_in_generate and kwargs.get("output_attentions"):
        found += ("decoder_attentions", "cross_attentions") if encodes else ("attentions",)
    if config.return_dict_in_generate and kwargs.get("output_hidden_states"):
        found += ("decoder_hidden_states" if encodes else "hidden_states",)
    return found


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


# What facts rule out


class Ability(Enum):
    """An ability that a target may have; the value is its name in the documentation."""

    SPECULATION = "speculation"
    DRAFTS = "drafts"
    TREES = "trees"
    RAGGED = "ragged rows"
    JOINT = "joint steps"
    PREFILL_DRAFT = "draft in the prefill"
    ONE_PREFILL = "one prefill for all beams"
    FIXED_WIDTH = "fixed width"
    COMPILED = "compiled"
    KEPT = "caches kept by the server"


class Fact:
    """A row of the table. ``remedies`` are by the name of an ability that the fact rules out."""

    def __init__(
        self,
        reason: str,  # "{0.rows}" and the like are replaced by the facts of the call
        holds: Callable[[Facts], object],  # returns a truthy value if the fact is true
        *rules_out: Ability,
        **remedies: str,
    ) -> None:
        self.reason, self.holds = reason, holds
        self.cells = dict.fromkeys(rules_out, reason)
        self.cells |= {Ability[name]: f"{reason}; {each}" for name, each in remedies.items()}


def why_unsupported(ability: Ability, facts: Facts) -> str | None:
    """Return the first of the ``reasons_against``, or None. Later facts are not evaluated."""
    return next(reasons_against(ability, facts), None)


def reasons_against(ability: Ability, facts: Facts) -> Iterator[str]:
    """Yield the reasons that rule an ability out, in the table's order."""
    for fact in FACTS:
        if ability in fact.cells and fact.holds(facts):
            yield fact.cells[ability].format(facts)


def check_facts(facts: Facts) -> None:
    """Raise an UnsupportedError if the output of a speculative call would differ."""
    reason = why_unsupported(Ability.SPECULATION, facts)
    if reason is not None:
        raise UnsupportedError(f"{type(facts.model).__name__} is not supported with {reason}")


_TREES, _RAGGED, _JOINT = Ability.TREES, Ability.RAGGED, Ability.JOINT
_DRAFTS, _DRAFT, _ONCE = Ability.DRAFTS, Ability.PREFILL_DRAFT, Ability.ONE_PREFILL
_KEPT = Ability.KEPT
_FIT, _UNCOMPILED = "use width='fit'", "pass compiled=False"
_SDPA = "load the model with sdpa or eager"
_STATIC = "use cache_implementation='static'"
_NO_ATTENTIONS = "pass output_attentions=False"

# The order of the rows is the order in which the reasons are reported. Masks and ``position_ids``
# alone must determine what a position attends to when rows have gaps in the cache, when siblings of
# a tree share a position, and when one row holds the positions of several texts.
FACTS = (
    Fact(
        "a static cache, with which the model decodes differently",
        lambda facts: facts.static and facts.names & names.NOT_STATIC,
        SPECULATION="remove cache_implementation, or pass a DynamicCache",
    ),
    Fact(
        f"an index of keys, which sdpa ignores before transformers {KEEPS_SELECTION.version}",
        lambda facts: (
            facts.indexed
            and not facts.recurrent
            and facts.attention == "sdpa"
            and not has(KEEPS_SELECTION)
        ),
        SPECULATION="load the model with attn_implementation='eager'",
    ),
    Fact(
        "attentions of sliding-window attention",
        lambda facts: (
            facts.asks_attentions and (facts.slides or (facts.static and facts.windows is not None))
        ),
        SPECULATION=_NO_ATTENTIONS,
    ),
    Fact(
        "attentions under sdpa, with which the model attends differently (Falcon)",
        lambda facts: (  # the baseline's output changes, too
            facts.asks_attentions
            and facts.attention == "sdpa"
            and facts.names & names.ATTENDS_BY_OUTPUT
        ),
        SPECULATION=f"{_NO_ATTENTIONS}, or load it with attn_implementation='eager'",
    ),
    Fact(
        "a batch of {0.rows} rows that advance together",
        lambda facts: facts.rows > 1 and not facts.ragged,
        _TREES,
    ),
    Fact("a dynamic cache", lambda facts: not facts.static, COMPILED=_STATIC),
    Fact(
        "an encoder-decoder model",
        lambda facts: facts.encodes,
        *(_JOINT, _DRAFT),
        FIXED_WIDTH=_FIT,
        COMPILED="remove it",
    ),
    Fact(
        "a batch of {0.rows} rows",
        lambda facts: facts.rows > 1,
        *(_JOINT, _DRAFT),
        FIXED_WIDTH="generate them one by one",
    ),
    Fact(
        "a text that may become longer than an attention window",
        lambda facts: facts.outgrows_windows and not facts.static,
        FIXED_WIDTH=_STATIC,
    ),
    Fact(
        "{0.gap_obstacle}",
        lambda facts: facts.gap_obstacle is not None,
        *(_TREES, _RAGGED, _JOINT, _DRAFT, _ONCE),
        FIXED_WIDTH=_FIT,
    ),
    Fact(
        "windows in layers of a type that is not known",
        lambda facts: facts.windows is not None and not facts.windows.known,
        *(_TREES, _RAGGED, _JOINT, _DRAFT),
        FIXED_WIDTH=_FIT,
    ),
    Fact(
        "recurrent states in a cache without keys",
        lambda facts: facts.recurrent and not facts.attends,
        _KEPT,
    ),
    Fact(
        "attention implementation {0.attention}",
        lambda facts: facts.attention not in MASKED_ATTENTIONS,
        *(_TREES, _JOINT),
        FIXED_WIDTH=_SDPA,
        COMPILED=_SDPA,
    ),
    Fact(
        "a dynamic cache with sdpa, whose arithmetic changes with the length",
        lambda facts: not facts.static and facts.attention == "sdpa",
        FIXED_WIDTH=f"{_STATIC} or attn_implementation='eager'",
    ),
    Fact(
        "attentions or hidden states asked for",
        lambda facts: facts.states,
        *(_TREES, _JOINT, _DRAFT, _ONCE),
        COMPILED="do not ask for them",
    ),
    Fact(
        "hooks on modules, which may rely on all rows of the call",
        lambda facts: facts.hooked,
        *(_JOINT, _ONCE),
    ),
    Fact(
        "a model that finds tokens by their slots in the cache",
        lambda facts: facts.names & names.BY_SLOT,
        *(_TREES, _RAGGED, _JOINT, _KEPT),
        FIXED_WIDTH=_FIT,
    ),
    Fact(
        "attentions asked for, whose shape depends on the cache's size",
        lambda facts: facts.asks_attentions,
        FIXED_WIDTH=_NO_ATTENTIONS,
    ),
    Fact(
        "a model that counts its positions itself",
        lambda facts: not facts.takes_positions,
        _JOINT,
        COMPILED=_UNCOMPILED,
    ),
    Fact(
        "unknown modules that count positions",
        lambda facts: not facts.placed,
        *(_TREES, _RAGGED),
        FIXED_WIDTH=_FIT,
    ),
    Fact("a model that gives no positions to padding", lambda facts: facts.skips_padding, _DRAFT),
    Fact(
        "rotary positions that change at a length (longrope, Phi-3)",
        lambda facts: facts.thresholds,
        COMPILED=_UNCOMPILED,
    ),
    Fact(
        "a prefill whose positions do not match its masks: {0.unaligned}",
        lambda facts: facts.unaligned is not None,
        *(_DRAFTS, _JOINT, _DRAFT, _ONCE, Ability.FIXED_WIDTH, Ability.COMPILED),
    ),
    Fact("a model with ALiBi", lambda facts: facts.alibi, _TREES, _JOINT, FIXED_WIDTH=_FIT),
    Fact(
        "a model that makes or changes its masks itself",
        lambda facts: not (facts.standard_masks and facts.passes_masks),
        *(_TREES, _JOINT),
        FIXED_WIDTH=_FIT,
    ),
    Fact("eager attention", lambda facts: facts.attention == "eager", _JOINT),
    Fact(
        "a model that overrides create_masks_for_generate",
        lambda facts: facts.own_masks,
        _JOINT,
        FIXED_WIDTH=_FIT,
    ),
    Fact("a static cache", lambda facts: facts.static, _RAGGED, _JOINT, _DRAFT, _ONCE),
    Fact(
        "rotary positions that change with the length",
        lambda facts: facts.thresholds or facts.rope_grows,
        *(_RAGGED, _JOINT, _DRAFT, _KEPT),
        FIXED_WIDTH=_FIT,
    ),
    Fact(
        "input preparation of a model outside transformers",
        lambda facts: facts.foreign,
        *(_RAGGED, _JOINT, _KEPT),
    ),
    Fact("inputs other than text", lambda facts: not facts.plain, _JOINT, _DRAFT, _ONCE),
    Fact(
        "a cache that holds tokens before the prefill", lambda facts: facts.cached, _RAGGED, _ONCE
    ),
    Fact("a cache that the caller may use again", lambda facts: facts.keeps_cache, _RAGGED),
    Fact(
        "a model that widens its masks after the prefill (GIT), with masked positions",
        lambda facts: facts.names & names.WIDENS_MASK and facts.masks_positions,
        _DRAFT,
    ),
    Fact("a prefill in chunks", lambda facts: facts.config.prefill_chunk_size is not None, _DRAFT),
    Fact(
        "experts, whose batch sizes depend on the routing",
        lambda facts: names.routes_tokens(facts.model),
        FIXED_WIDTH=_FIT,
    ),
    Fact(
        "experts that may have too little capacity for the prompts",
        lambda facts: facts.overflows,
        *(_DRAFTS, _RAGGED, _ONCE),
    ),
    Fact(
        "experts that read the masks (NLLB-MoE)",
        lambda facts: names.routes_by_masks(facts.model),
        *(_TREES, _RAGGED, _ONCE),
    ),
    Fact(
        "experts that read the masks, with a static cache or the decoder's mask",
        lambda facts: (
            (facts.static or facts.kwargs.get("decoder_attention_mask") is not None)
            and names.routes_by_masks(facts.model)
        ),
        _DRAFTS,
    ),
    Fact(
        "masks applied to several tokens only (LED), with a decoder's mask",
        lambda facts: (
            facts.names & names.MASKS_SEVERAL
            and facts.kwargs.get("decoder_attention_mask") is not None
        ),
        *(_DRAFTS, _RAGGED),
    ),
    Fact(
        "modules that mix the positions of a forward (dynamic int8, Doge's experts)",
        lambda facts: names.mixes_positions(facts.model),
        *(_DRAFTS, _RAGGED, _JOINT, _DRAFT, _ONCE, _KEPT),
        FIXED_WIDTH=_FIT,
    ),
    Fact(
        "a quantized model, whose scales may depend on all positions",
        lambda facts: names.quantizes_activations(facts.model),
        FIXED_WIDTH=_FIT,
    ),
)
