"""What a model, a call of ``generate`` and its cache are like, and what they rule out.

``FACTS`` is a table. It has a row for each fact about a model or a call, and a cell for each
ability that the fact rules out. A cell holds the reason and, after a semicolon, the remedy if there
is one. To support a new kind of model or cache, add a row and decide about every ability.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any

import torch
from torch.nn.modules.dropout import _DropoutNd

from ngramspec.draft import Int64
from ngramspec.errors import UnsupportedError
from ngramspec.hf_model.cache.kv_cache import KVCache
from ngramspec.hf_model.compat import configs, models
from ngramspec.hf_model.compat.caches import CACHE_NAMES, cache_names, cache_of
from ngramspec.hf_model.compat.hooks import hooked_modules
from ngramspec.hf_model.compat.package import KEEPS_SELECTION, PLACES_TOKENS, has

if TYPE_CHECKING:
    from ngramspec.hf_model.compat.resources import PaddingNotice
    from ngramspec.hf_model.masks import Windows

MASKED_ATTENTIONS = ("sdpa", "eager")  # attention implementations that take a 4D mask
# Arguments of the prefill that a prompt of plain text has.
PLAIN_PREFILL = (
    *(*CACHE_NAMES, "use_cache", "logits_to_keep", "attention_mask", "position_ids"),
    *("encoder_outputs", "decoder_attention_mask", "decoder_position_ids"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFacts:
    """What follows from a model alone; see ``models.model_facts``."""

    model: Any
    names: frozenset[str]  # of its class and of all its base classes
    encodes: bool  # whether it is an encoder-decoder model
    attention: str  # name of its decoder's attention implementation, such as "sdpa"
    own_masks: bool  # whether it defines ``create_masks_for_generate``
    reads_text: bool  # whether it prepares its inputs itself, and may read all committed tokens
    foreign: bool  # whether that is code outside transformers, which may count these tokens
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts(ModelFacts):
    """What is known about a model and one call of ``generate`` before its prefill."""

    # How the model runs the call, partly by trials of it
    # Whether transformers' own function makes its masks, and its attention gets them unchanged.
    standard_masks: bool
    # Of its layers, whose masks hide positions even if its cache keeps them; None: it has none.
    windows: Windows | None
    takes_positions: bool  # whether it uses the ``position_ids`` that it is given
    # Whether hooks make it use our positions; it ignores those that a caller passes.
    hooks_positions: bool
    # Whether it counts positions itself and gives none to padding tokens (M2M-100, TrOCR). After
    # such a token a wider forward counts differently.
    skips_padding: bool
    # The call
    config: Any  # the prepared GenerationConfig
    kwargs: dict[str, Any]  # of the prefill
    rows: int  # in the batch
    prompt: int  # tokens of each row's prompt, as ``generate`` counts them against max_length
    cached: int  # positions in the cache before the prefill
    end: int  # positions of a row after the prefill, including ``cached``
    slides: bool  # whether a layer of the cache forgets positions that have left its window
    indexed: bool  # whether a layer of the cache has an index of its keys
    gap_obstacle: str | None  # which layers do not allow gaps between positions; None: all do
    attends: bool  # whether a layer of the cache holds keys and values
    static: bool  # whether the cache has a fixed size
    # Positions that layers with windows of a static cache hold, if the model's windows are larger.
    reach: int | None
    states: tuple[str, ...]  # names of the requested attentions and hidden states
    hooked: bool  # whether modules have hooks, which may rely on all rows of the call
    # The first of them with a hook that may rely on the number of positions, or None.
    counting_hook: str | None
    unaligned: str | None  # why the cache's positions will not match the masks, or None
    padding_notice: PaddingNotice | None  # what warns of padding in a forward without a mask
    ragged: bool = False  # whether rows may accept different numbers of tokens
    compiled: bool = False  # whether forwards after the prefill are compiled

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
        return self.attention in MASKED_ATTENTIONS and self.standard_masks and not self.own_masks

    @property
    def plain(self) -> bool:
        """Whether the arguments describe only text; others may change how a prompt is read."""
        return all(
            name in PLAIN_PREFILL or value is None or value is False
            for name, value in self.kwargs.items()
        )

    @property
    def longest(self) -> int:
        """Positions of a row, with all new tokens."""
        return self.end + int(self.config.max_length) - self.prompt

    @property
    def outgrows_windows(self) -> bool:
        """Whether the text, with all new tokens, may become longer than a window or chunk."""
        if self.windows is None:
            return False
        return not self.windows.known or self.longest > self.windows.shortest

    @property
    def asks_attentions(self) -> bool:
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
    found = models.model_facts(model)
    encodes, cached = found["encodes"], cache.length()
    prefix = "decoder_" if encodes else ""
    name = f"{prefix}position_ids"
    given = encodes or kwargs.get(name) is not None
    placed = given and name in inspect.signature(model.forward).parameters
    if found.pop("passes_positions"):
        placed |= "position_ids" in inspect.signature(model.get_decoder().forward).parameters
    hooks_positions = False
    left_out = configs.mask_length(config)
    end = prompt_end(input_ids, kwargs, cached=cached, mask_length=left_out, prefix=prefix)
    outside = models.prepares_inputs_outside(model)
    if outside or (placed and found["reads_text"]):
        from ngramspec.hf_model.trials import try_preparation  # most models need no trial

        # Phi-3 drops its cache at a length, where the test shows nothing.
        with nullcontext() if outside else suppress(UnsupportedError):
            passes_positions, passes_masks = try_preparation(model, input_ids, kwargs, end)
            placed = placed and passes_positions
            found["standard_masks"] &= passes_masks
    if not (placed or outside):
        from ngramspec.hf_model.compat.positions import counting_modules

        hooks_positions = any(counting_modules(model))
    hooked = list(hooked_modules(model))
    own = windows_of(configs.text_config(model))
    windows = own if own is None or cache.reach is None else own.shortened(cache.reach)
    padding_notice = None
    masked = kwargs.get(f"{prefix}attention_mask") is not None or cache.static
    if not masked and getattr(configs.text_config(model), "pad_token_id", None) is not None:
        from ngramspec.hf_model.compat.resources import find_padding_notice  # Llama has no padding

        padding_notice = find_padding_notice(model)
    unaligned, skips_padding = None, not placed and found["skips_padding"]
    # The baseline runs such a call, so it is run too, without drafts.
    if not encodes and cached > 0 and cached >= end:
        unaligned = "the cache given holds the whole prompt; crop it by one token, cache.crop(-1)"
    elif skips_padding and not hooks_positions:
        unaligned = "the model counts tokens other than padding itself"
    return Facts(
        **found | {"skips_padding": skips_padding},
        windows=windows,
        takes_positions=placed,
        hooks_positions=hooks_positions,
        config=config,
        kwargs=kwargs,
        rows=input_ids.shape[0],
        prompt=input_ids.shape[1],
        cached=cached,
        end=end,
        slides=cache.slides,
        indexed=cache.indexed,
        gap_obstacle=cache.gap_obstacle,
        attends=bool(cache.attention),
        static=cache.static,
        reach=None if own is not None and windows == own else cache.reach,
        states=requested_states(config, kwargs, encodes=encodes),
        hooked=bool(hooked),
        counting_hook=next((name or "the model" for name, alike in hooked if not alike), None),
        unaligned=unaligned,
        padding_notice=padding_notice,
    )


def windows_of(config: Any) -> Windows | None:
    """Return the windows of a text model's config; None: it has none."""
    limits, layers = configs.attention_limits(config)
    if not limits:
        return None
    from ngramspec.hf_model.masks import Reach, Windows  # many models have none

    known = {kind: Reach(*each) for kind, each in limits.items() if each is not None}
    return Windows(known, len(known) == len(limits), layers)


def prompt_end(
    input_ids: torch.Tensor,
    kwargs: dict[str, Any],
    *,
    cached: int = 0,
    mask_length: int | None = None,
    prefix: str = "",
) -> int:
    """Return how many positions a row has after the prefill, including those cached before it.

    ``mask_length`` is that of the mask of ones that ``generate`` left out.
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
    """A row of the table, with a cell for each ability that it rules out, maybe with a remedy."""

    def __init__(
        self,
        reason: str,  # "{0.rows}" and the like are replaced by the facts of the call
        holds: Callable[[Facts], object],  # returns a truthy value if the fact is true
        cells: Sequence[Ability | tuple[Ability, str]],
    ) -> None:
        self.reason, self.holds = reason, holds
        pairs = (each if isinstance(each, tuple) else (each, "") for each in cells)
        self.cells = {each: f"{reason}; {remedy}" if remedy else reason for each, remedy in pairs}


def why_unsupported(ability: Ability, facts: Facts) -> str | None:
    """Return the table's first reason that rules an ability out, or None."""
    for fact in FACTS:
        if ability in fact.cells and fact.holds(facts):
            return fact.cells[ability].format(facts)
    return None


def check_facts(facts: Facts) -> None:
    """Raise an UnsupportedError if the output of a speculative call would differ."""
    reason = why_unsupported(Ability.SPECULATION, facts)
    if reason is not None:
        raise UnsupportedError(f"{type(facts.model).__name__} is not supported with {reason}")


_TREES, _RAGGED, _JOINT = Ability.TREES, Ability.RAGGED, Ability.JOINT
_DRAFTS, _DRAFT, _ONCE = Ability.DRAFTS, Ability.PREFILL_DRAFT, Ability.ONE_PREFILL
_ALL, _KEPT, _WIDTH, _COMPILED = (
    *(Ability.SPECULATION, Ability.KEPT, Ability.FIXED_WIDTH, Ability.COMPILED),
)
_FIT, _UNCOMPILED = (_WIDTH, "use width='fit'"), (_COMPILED, "pass compiled=False")
_SDPA = "load the model with sdpa or eager"
_STATIC = "use cache_implementation='static'"
_NO_ATTENTIONS = "pass output_attentions=False"

# The order of the rows is the order in which the reasons are reported. Masks and ``position_ids``
# alone must determine what a position attends to when rows have gaps in the cache, when siblings of
# a tree share a position, and when one row holds the positions of several texts.
FACTS = (
    Fact(
        "a static cache, with which the model decodes differently",
        lambda f: f.static and f.names & models.NOT_STATIC,
        ((_ALL, "remove cache_implementation, or pass a DynamicCache"),),
    ),
    Fact(
        f"an index of keys, which sdpa ignores before transformers {KEEPS_SELECTION.version}",
        lambda f: (
            f.indexed and not f.recurrent and f.attention == "sdpa" and not has(KEEPS_SELECTION)
        ),
        ((_ALL, "load the model with attn_implementation='eager'"),),
    ),
    Fact(
        "attentions asked for, under sliding-window attention",
        lambda f: f.asks_attentions and (f.slides or (f.static and f.windows is not None)),
        ((_ALL, _NO_ATTENTIONS),),
    ),
    Fact(
        "attentions under sdpa, with which the model attends differently (Falcon)",
        lambda f: (  # the baseline's output changes, too
            f.asks_attentions and f.attention == "sdpa" and f.names & models.ATTENDS_BY_OUTPUT
        ),
        ((_ALL, f"{_NO_ATTENTIONS}, or load it with attn_implementation='eager'"),),
    ),
    Fact(
        "a batch of {0.rows} rows that advance together",
        lambda f: f.rows > 1 and not f.ragged,
        (_TREES,),
    ),
    Fact("a dynamic cache", lambda f: not f.static, ((_COMPILED, _STATIC),)),
    Fact(
        "an encoder-decoder model",
        lambda f: f.encodes,
        (_JOINT, _DRAFT, _FIT),
    ),
    Fact(
        "a batch of {0.rows} rows",
        lambda f: f.rows > 1,
        (_JOINT, _DRAFT, (_WIDTH, "generate them one by one")),
    ),
    Fact(
        "a text that may become longer than an attention window",
        lambda f: f.outgrows_windows and not f.static,
        ((_WIDTH, _STATIC),),
    ),
    Fact(
        "{0.gap_obstacle}",
        lambda f: f.gap_obstacle is not None,
        (_TREES, _RAGGED, _JOINT, _DRAFT, _ONCE, _FIT),
    ),
    Fact(
        "windows in layers of a type that is not known",
        lambda f: f.windows is not None and not f.windows.known,
        (_TREES, _RAGGED, _JOINT, _DRAFT, _FIT),
    ),
    Fact(
        "recurrent states in a cache without keys",
        lambda f: f.recurrent and not f.attends,
        (_KEPT,),
    ),
    Fact(
        "attention implementation {0.attention}",
        lambda f: f.attention not in MASKED_ATTENTIONS,
        (_TREES, _JOINT, (_WIDTH, _SDPA), (_COMPILED, _SDPA)),
    ),
    Fact(
        "windows under attention implementation {0.attention}",
        lambda f: f.windows is not None and f.attention not in MASKED_ATTENTIONS,
        (_RAGGED,),
    ),
    Fact(
        "a dynamic cache with sdpa, whose arithmetic changes with the length",
        lambda f: not f.static and f.attention == "sdpa",
        ((_WIDTH, f"{_STATIC} or attn_implementation='eager'"),),
    ),
    Fact(
        "attentions or hidden states asked for",
        lambda f: f.states,
        (_TREES, _JOINT, _DRAFT, _ONCE),
    ),
    Fact(
        "hooks on modules, which may rely on all rows of the call, or on its prompt alone",
        lambda f: f.hooked,
        (_JOINT, _DRAFT, _ONCE),
    ),
    Fact(
        "hooks on modules of a model with windows, which may shorten some layers' cache",
        lambda f: f.counting_hook is not None and f.windows is not None,
        (_TREES, _RAGGED),
    ),
    Fact(
        "a model that finds tokens by their slots in the cache",
        lambda f: f.names & models.BY_SLOT,
        (_TREES, _RAGGED, _JOINT, _DRAFT, _KEPT, _FIT),
    ),
    Fact(
        "attention that is scaled by slots of the cache (Llama 4)",
        lambda f: 2 * f.longest >= models.scaled_from(f.model),  # half of the slots may be gaps
        (_TREES, _RAGGED, _JOINT),
    ),
    Fact("router logits in the config", lambda f: models.reports_routing(f.model), (_JOINT,)),
    Fact(
        "attentions asked for, whose shape depends on the cache's size",
        lambda f: f.asks_attentions,
        ((_WIDTH, _NO_ATTENTIONS), (_COMPILED, _NO_ATTENTIONS)),
    ),
    Fact("attentions over a static cache", lambda f: f.asks_attentions and f.static, (_RAGGED,)),
    Fact("a model that counts its positions itself", lambda f: not f.takes_positions, (_JOINT,)),
    Fact(
        "compiled forwards of a model that counts its positions itself",  # they have no hooks
        lambda f: f.compiled and not f.takes_positions,
        (_TREES,),
    ),
    Fact("unknown modules that count positions", lambda f: not f.placed, (_TREES, _RAGGED, _FIT)),
    Fact(
        "a model that gives padding no position", lambda f: f.skips_padding, (_DRAFT, _UNCOMPILED)
    ),
    Fact(
        "a model that warns of padding tokens without a mask (GPT-2)",
        lambda f: f.padding_notice is not None,
        (_DRAFT,),
    ),
    Fact(
        "a prefill whose positions do not match its masks: {0.unaligned}",
        lambda f: f.unaligned is not None,
        (_DRAFTS, _RAGGED, _JOINT, _DRAFT, _ONCE, _WIDTH),
    ),
    Fact(
        "a static cache that holds less than a window, under masks that the model makes",
        lambda f: (
            f.reach is not None
            and f.longest - 1 > f.reach
            and (f.encodes or f.windows is None or not f.takes_masks)
        ),
        (_DRAFTS, _WIDTH),
    ),
    Fact(
        "a model that makes or changes its masks itself, for example with ALiBi",
        lambda f: not f.standard_masks,
        (_TREES, _JOINT, _FIT),
    ),
    Fact("eager attention", lambda f: f.attention == "eager", (_JOINT,)),
    Fact("a model that overrides create_masks_for_generate", lambda f: f.own_masks, (_JOINT, _FIT)),
    Fact("a static cache", lambda f: f.static, (_JOINT, _DRAFT, _ONCE)),
    Fact(
        "rotary positions that change with the length (longrope, Phi-3, dynamic)",
        lambda f: f.thresholds or f.rope_grows,
        (_RAGGED, _JOINT, _DRAFT, _KEPT, _FIT, _UNCOMPILED),
    ),
    Fact(
        "input preparation of a model outside transformers",
        lambda f: f.foreign,
        (_RAGGED, _JOINT, _KEPT),
    ),
    Fact("inputs other than text", lambda f: not f.plain, (_JOINT, _DRAFT, _ONCE)),
    Fact("a cache that holds tokens before the prefill", lambda f: f.cached, (_ONCE,)),
    Fact("a prefill in chunks", lambda f: f.config.prefill_chunk_size is not None, (_DRAFT,)),
    Fact(
        "experts, whose batch sizes depend on the routing",
        lambda f: models.routes_tokens(f.model),
        (_FIT,),
    ),
    Fact(
        "experts that may have too little capacity for the prompts",
        # They may drop tokens of the prompts, as they also do in the baseline.
        lambda f: f.token_capacity is not None and f.rows * f.end > f.token_capacity,
        (_DRAFTS, _RAGGED, _ONCE),
    ),
    Fact(
        "masks applied to several tokens only (LED), with a decoder's mask",
        lambda f: (
            f.names & models.MASKS_SEVERAL and f.kwargs.get("decoder_attention_mask") is not None
        ),
        (_DRAFTS, _RAGGED),
    ),
    Fact(
        "positions of a forward that are mixed: bidirectional attention, dynamic int8, LLM.int8,"
        " Doge, NLLB-MoE",
        lambda f: models.mixes_positions(f.model),
        (_DRAFTS, _RAGGED, _JOINT, _DRAFT, _ONCE, _KEPT, _FIT),
    ),
    Fact(
        "a quantized model, whose scales may depend on all positions",
        lambda f: models.quantizes_activations(f.model),
        (_FIT,),
    ),
)

# What is refused whatever the facts are

# Arguments of decoding modes that transformers loads from its hub with trust_remote_code=True, and
# an argument that is refused before transformers sees the call, which it might not accept. The
# values are those other than None that switch each off.
REFUSED_AT_ONCE = {
    "constraints": None,
    "dola_layers": None,
    "force_words_ids": None,
    "num_beam_groups": 1,
    "penalty_alpha": 0,
    "assistant_early_exit": None,
}
# Arguments of ``generate`` that rule speculation out, and the value that switches each off.
OFF_VALUES = REFUSED_AT_ONCE | {
    "cache_implementation": "dynamic",
    "prompt_lookup_num_tokens": None,
    "token_healing": False,
}
# Settings of assistants, and the draft length of a Speculator that is most similar.
ASSISTANT_SETTINGS = {
    "num_assistant_tokens_schedule": "heuristic",
    "assistant_confidence_threshold": "threshold",
}
# Parts of the names of attributes that hold a rate: attention_dropout, layerdrop, ...
RATE_NAME_PARTS = ("drop", "jitter")


def check_model(model: Any, model_kwargs: dict[str, Any]) -> None:
    """Raise an UnsupportedError if the model does not support speculation."""
    if model_kwargs.get("use_cache") is False:
        raise UnsupportedError("use_cache=False leaves nothing to roll back; pass use_cache=True")
    reason = next(_reasons_against_model(model), None)
    if reason is not None:
        raise UnsupportedError(f"{type(model).__name__} {reason}")


def _reasons_against_model(model: Any) -> Iterator[str]:
    kinds, config = models.names_of(model), getattr(model, "config", None)  # a class has none
    one_at_a_time = [models.ONE_AT_A_TIME[one] for one in sorted(kinds & {*models.ONE_AT_A_TIME})]
    for one in sorted(kinds & models.ONE_AT_A_TIME_WITH.keys()):
        setting, value, reason = models.ONE_AT_A_TIME_WITH[one]
        if getattr(config, setting, None) == value:
            one_at_a_time.append(reason)
    yield from (f"cannot check several tokens: {reason}" for reason in one_at_a_time)
    for one in sorted(kinds & models.OWN_CACHE.keys()):
        yield f"cannot roll tokens back: {models.OWN_CACHE[one]}"
    if any(kind.startswith("OVModel") for kind in kinds):  # of optimum-intel
        yield "runs in OpenVINO; its own generate has prompt lookup (prompt_lookup_num_tokens=10)"
    if kinds & models.PLACES_ONE_TOKEN_ELSEWHERE and not has(PLACES_TOKENS):
        yield f"cannot check several tokens before transformers {PLACES_TOKENS.version}"
    forwards = [vars(kind)["forward"] for kind in type(model).__mro__ if "forward" in vars(kind)]
    parameters = {each for forward in forwards for each in inspect.signature(forward).parameters}
    if models.is_stateful(model):
        if not parameters & {*cache_names()}:
            yield (
                "keeps a recurrent state outside the caches of transformers, where it cannot be"
                " rolled back"
            )
    elif "input_ids" in parameters and cache_names()[0] not in parameters:
        yield "keeps no key-value cache; speculation needs one"
    if models.overridden(type(model), models.UPDATE_METHODS):
        yield "overrides how its inputs are updated between steps"
    method = models.overridden(type(model), models.LOOP_METHODS)
    if method is not None:
        yield (
            f"overrides {method}, which speculation would skip; pass"
            " Speculator(unsupported='plain') to decode with it"
        )


def check_adapter(model: Any) -> None:
    """Raise an UnsupportedError if an adapter's effect depends on the width of the forward.

    An adapter that changes weights stores its configuration on the model. One that learned a prompt
    stores it on a wrapper, which prepares the model's inputs during generation.
    """
    wrapper = getattr(model.prepare_inputs_for_generation, "__self__", model)
    configs = getattr(wrapper, "peft_config", None)
    if configs:
        from ngramspec.hf_model.compat.models import check_adapters  # most models have none

        check_adapters(configs)


def check_request(config: Any, model: Any) -> None:
    """Raise an UnsupportedError that names the settings of ``generate`` that are unsupported."""
    beams = config.num_beams or 1
    if beams > 1 and config.do_sample:
        raise UnsupportedError(
            f"num_beams={beams} with do_sample=True cannot be combined with a Speculator; pass"
            " num_beams=1, or do_sample=False"
        )
    if beams > 1 and config.low_memory:
        raise UnsupportedError("low_memory=True is not supported with beams; pass low_memory=False")
    if beams > 1 and models.overridden(type(model), models.BEAM_METHODS):
        name = type(model).__name__
        raise UnsupportedError(
            f"num_beams={beams}: {name} has its own beam search; pass num_beams=1"
        )
    refused = {
        name: getattr(config, name)
        for name, off in ({"prompt_lookup_num_tokens": None} | REFUSED_AT_ONCE).items()
        if getattr(config, name, None) not in (None, off)
    }
    if refused:
        raise UnsupportedError(refusal(refused))
    for name, gamma in ASSISTANT_SETTINGS.items():
        value = set_by_call(config, model, name)
        if value is not None:
            raise UnsupportedError(
                f"{name}={value!r} is not supported here; remove it, and pass"
                f" Speculator(gamma={gamma!r}) for drafts that end by a similar rule"
            )


def set_by_call(config: Any, model: Any, name: str) -> Any:
    """A setting's value if it differs from transformers' default and from the model's own config.

    A default that the call gives explicitly is not found. None: the call does not set it.
    """
    own = getattr(getattr(model, "generation_config", None), name, None)
    value = getattr(config, name, None)
    return None if value in (own, configs.DEFAULT_SETTINGS[name], 0) else value


def refusal(settings: dict[str, Any]) -> str:
    """Return the message for settings that rule speculation out, with arguments as the remedy."""
    shown = (name if value is None else f"{name}={value}" for name, value in settings.items())
    found = ", ".join(shown)
    remedy = ", ".join(f"{name}={OFF_VALUES[name]!r}" for name in settings)
    if "assistant_early_exit" in settings:
        remedy += ", and a small model as assistant_model if a model should draft"
    return f"{found} cannot be combined with a Speculator; pass {remedy}"


def check_prompt(model: Any, input_ids: Int64, model_kwargs: dict[str, Any]) -> None:
    """Raise a ValueError for no prompt, an empty one, or ids that the model has no embedding for.

    Placeholders, for example of an image, may be outside the vocabulary, and so may tokens that a
    given cache holds, for example the padding of an earlier turn.
    """
    embeds = model_kwargs.get("inputs_embeds")
    name, given = ("input_ids", input_ids) if embeds is None else ("inputs_embeds", embeds)
    if given.shape[0] == 0:
        raise ValueError(f"{name} must hold at least one row, got shape {(*given.shape,)}")
    if embeds is not None:
        return
    if input_ids.shape[1] == 0:
        raise ValueError(f"input_ids must hold at least one token, got shape {(*input_ids.shape,)}")
    vocab = models.embedding_count(model)
    if vocab is None:
        return
    low, high = int(input_ids.min()), int(input_ids.max())
    if low < 0 or high >= vocab:
        cache = cache_of(model_kwargs)
        new = input_ids if cache is None else input_ids[:, int(cache.get_seq_length()) :]
        wrong = set(new[(new < 0) | (new >= vocab)].tolist())
        from ngramspec.hf_model.compat.configs import placeholders  # most prompts have none

        for bad in sorted(wrong - placeholders(model.config)):
            raise ValueError(f"input_ids must lie in 0..{vocab - 1}, got {bad}")


def drops_out(model: Any) -> bool:
    """Whether a module in training mode, such as a new adapter, has a dropout or jitter rate."""
    return any(
        isinstance(value, float) and value > 0
        for module in model.modules()
        if module.training
        for name, value in vars(module).items()
        if any(each in name for each in RATE_NAME_PARTS)
        or (name == "p" and isinstance(module, _DropoutNd))
    )


def prefilled_length(facts: Facts, cache: KVCache) -> int:
    """Return a cache's length after the prefill, or raise an UnsupportedError if it is not there.

    Up to transformers 5.23, a layer with gradient checkpointing gets no cache in training mode. In
    evaluation mode, some models have layers that store nothing.
    """
    lengths = cache.lengths()
    stored = [length > facts.cached for length in lengths]
    training = any(module.training for module in facts.model.modules())
    if stored and not (all(stored) if training else any(stored)):
        raise UnsupportedError(
            f"the prefill of {type(facts.model).__name__} stored its keys in {sum(stored)} of"
            f" {len(stored)} layers of the cache, as with gradient checkpointing in training mode;"
            " call model.eval()"
        )
    return max(lengths, default=0)
