"""Which abilities speculation has with a model in one call, and why it lacks others.

``FACTS`` is a table. It has a row for each fact about a model or a call, and a cell for each
ability that the fact rules out. A cell holds the reason and, after a semicolon, the remedy if there
is one. To support a new kind of model or cache, add a row and decide about every ability.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import Enum

from ngramspec.hf_model.call import Known
from ngramspec.hf_model.compat import classes
from ngramspec.hf_model.traits import MASKED_ATTENTIONS


class Ability(Enum):
    """An ability that a target may have; the value is its name in the documentation."""

    DRAFTS = "drafts"
    TREES = "trees"
    RAGGED = "rows diverge"
    JOINT = "joint steps"
    PREFILL_DRAFT = "draft in the prefill"
    ONE_PREFILL = "one prefill for all beams"
    FIXED_WIDTH = "fixed width"
    COMPILED = "compiled"
    KEPT = "caches kept by the server"


@dataclass(frozen=True, slots=True)
class Fact:
    """A row of the table."""

    name: str  # in the documentation
    holds: Callable[[Known], object]  # returns a truthy value if the fact is true
    # Why each ability that the fact rules out is lacking. "{rows}", "{attention}", "{gap_obstacle}"
    # and "{unaligned}" are replaced by those of the model and the call.
    reasons: dict[Ability, str]


def obstacle(ability: Ability, known: Known) -> str | None:
    """Return the first of the ``obstacles``, or None. Later facts are not evaluated."""
    return next(obstacles(ability, known), None)


def obstacles(ability: Ability, known: Known) -> Iterator[str]:
    """Yield the reasons that rule an ability out, in the table's order."""
    for fact in FACTS:
        if ability in fact.reasons and fact.holds(known):
            yield fact.reasons[ability].format(
                rows=known.call.rows,
                attention=known.traits.attention,
                gap_obstacle=known.call.gap_obstacle,
                unaligned=known.call.unaligned,
            )


def _for(reason: str, *abilities: Ability, **remedies: str) -> dict[Ability, str]:
    """Return cells that share a reason. Keyword arguments add a remedy, by the ability's name."""
    cells = dict.fromkeys(abilities, reason)
    return cells | {Ability[name]: f"{reason}; {each}" for name, each in remedies.items()}


_TREES, _RAGGED, _JOINT = Ability.TREES, Ability.RAGGED, Ability.JOINT
_DRAFTS, _DRAFT, _ONCE = Ability.DRAFTS, Ability.PREFILL_DRAFT, Ability.ONE_PREFILL
_KEPT = Ability.KEPT
_FIT, _UNCOMPILED = "use width='fit'", "pass compiled=False"
_SDPA = "load the model with sdpa or eager"
_OWN_MASKS = "a model that makes its masks itself"
_COUNTS = "a model that counts its positions itself"
_ROPE = "rotary positions that change with the length"
_MORE_INPUTS = "a model that reads more than tokens and positions"

# The order of the rows is the order in which the reasons are reported. Masks and ``position_ids``
# alone must determine what a position attends to when rows have gaps in the cache, when siblings of
# a tree share a position, and when one row holds the positions of several texts.
FACTS = (
    Fact(
        "rows that advance together",
        lambda known: known.call.rows > 1 and not known.by_row,
        _for("a batch of {rows} rows that advance together", _TREES, _JOINT),
    ),
    Fact(
        "dynamic cache",
        lambda known: not known.call.static,
        _for("a dynamic cache", COMPILED="use cache_implementation='static'"),
    ),
    Fact(
        "encoder-decoder model",
        lambda known: known.traits.encodes,
        _for("an encoder-decoder model", _JOINT, _DRAFT, FIXED_WIDTH=_FIT, COMPILED="remove it"),
    ),
    Fact(
        "several rows",
        lambda known: known.call.rows > 1,
        _for("a batch of {rows} rows", _DRAFT, FIXED_WIDTH="generate them one by one"),
    ),
    Fact(
        "a text longer than a window, with a dynamic cache",
        lambda known: known.slides and not known.call.static,
        _for(
            "a text that may become longer than an attention window",
            FIXED_WIDTH="use cache_implementation='static'",
        ),
    ),
    Fact(
        "recurrent state, convolution, or index of keys",
        lambda known: known.call.gap_obstacle is not None,
        _for("{gap_obstacle}", _TREES, _RAGGED, _JOINT, _DRAFT, _ONCE, FIXED_WIDTH=_FIT),
    ),
    Fact(
        "windows in layers of a type that is not known",
        lambda known: known.traits.windows is not None and not known.traits.windows.known,
        _for("windows in layers of other types", _TREES, _RAGGED, _JOINT, _DRAFT, FIXED_WIDTH=_FIT),
    ),
    Fact(
        "recurrent states in a cache without keys",
        lambda known: known.traits.recurrent and not known.call.attends,
        _for("a cache that holds no keys", _KEPT),
    ),
    Fact(
        "attention other than sdpa and eager",
        lambda known: known.traits.attention not in MASKED_ATTENTIONS,
        _for(
            "attention implementation {attention}",
            *(_TREES, _JOINT),
            FIXED_WIDTH=_SDPA,
            COMPILED=_SDPA,
        ),
    ),
    Fact(
        "dynamic cache with sdpa",
        lambda known: not known.call.static and known.traits.attention == "sdpa",
        _for(
            "a dynamic cache with sdpa, whose arithmetic changes with the length",
            FIXED_WIDTH="use cache_implementation='static' or attn_implementation='eager'",
        ),
    ),
    Fact(
        "attentions or hidden states asked for",
        lambda known: known.call.states,
        _for(
            "attentions or hidden states asked for",
            *(_TREES, _JOINT, _DRAFT, _ONCE),
            COMPILED="do not ask for them",
        ),
    ),
    Fact(
        "hooks on modules",
        lambda known: known.call.hooked,
        _for("hooks on modules, which may rely on all rows of the call", _JOINT, _ONCE),
    ),
    Fact(
        "tokens found by their slots in the cache",
        lambda known: known.traits.by_slot,
        _for(
            "a model that finds tokens by their slots in the cache",
            *(_TREES, _RAGGED, _JOINT, _KEPT),
            FIXED_WIDTH=_FIT,
        ),
    ),
    Fact(
        "attentions asked for",
        lambda known: any("attentions" in name for name in known.call.states),
        _for(
            "attentions asked for, whose shape depends on the cache's size",
            FIXED_WIDTH="pass output_attentions=False",
        ),
    ),
    Fact(
        "positions counted by the model",
        lambda known: not known.traits.takes_positions,
        _for(_COUNTS, _JOINT, COMPILED=_UNCOMPILED),
    ),
    Fact(
        "positions counted by modules of unknown classes",
        lambda known: not known.traits.placed,
        _for(_COUNTS, _TREES, _RAGGED, FIXED_WIDTH=_FIT),
    ),
    Fact(
        "padding without positions", lambda known: known.traits.skips_padding, _for(_COUNTS, _DRAFT)
    ),
    Fact(
        "all positions change at a length (longrope, Phi-3)",
        lambda known: known.traits.thresholds,
        _for(_ROPE, COMPILED=_UNCOMPILED),
    ),
    Fact(
        "cache and masks disagree",
        lambda known: known.call.unaligned is not None,
        _for(
            "a prefill whose positions do not match its masks: {unaligned}",
            *(_DRAFTS, _JOINT, _DRAFT, _ONCE, Ability.FIXED_WIDTH, Ability.COMPILED),
        ),
    ),
    Fact(
        "ALiBi",
        lambda known: known.traits.alibi,
        _for("a model with ALiBi", _TREES, _JOINT) | _for(_OWN_MASKS, FIXED_WIDTH=_FIT),
    ),
    Fact(
        "masks made or changed by the model",
        lambda known: not (known.traits.standard_masks and known.traits.passes_masks),
        _for(_OWN_MASKS, _TREES, _JOINT, FIXED_WIDTH=_FIT),
    ),
    Fact(
        "eager attention",
        lambda known: known.traits.attention == "eager",
        _for("attention implementation {attention}", _JOINT),
    ),
    Fact(
        "model overrides create_masks_for_generate",
        lambda known: known.traits.own_masks,
        _for(_OWN_MASKS, _JOINT, FIXED_WIDTH=_FIT),
    ),
    Fact(
        "static cache",
        lambda known: known.call.static,
        _for("a static cache", _RAGGED, _JOINT, _DRAFT, _ONCE),
    ),
    Fact(
        "rotary frequencies that depend on the length",
        lambda known: known.traits.rope_varies,
        _for(_ROPE, _RAGGED, _JOINT, _DRAFT, _KEPT, FIXED_WIDTH=_FIT),
    ),
    Fact(
        "input preparation of a model outside transformers",
        lambda known: known.reads_text,
        _for(_MORE_INPUTS, _RAGGED, _JOINT, _KEPT),
    ),
    Fact(
        "inputs other than text",
        lambda known: not known.plain,
        _for(_MORE_INPUTS, _JOINT, _DRAFT, _ONCE),
    ),
    Fact(
        "cache that holds tokens before the prefill",
        lambda known: known.call.cached,
        _for("a cache that holds tokens before the prefill", _RAGGED, _ONCE),
    ),
    Fact(
        "cache of the caller",
        lambda known: known.call.keeps_cache,
        _for("a cache that the caller may use again", _RAGGED),
    ),
    Fact(
        "masks widened after the prefill (GIT), with masked positions",
        lambda known: known.traits.names & classes.WIDENS_MASK and known.masks_positions,
        _for("a model that widens its masks after the prefill", _DRAFT),
    ),
    Fact(
        "prefill in chunks",
        lambda known: known.config.prefill_chunk_size is not None,
        _for("a prefill in chunks", _DRAFT),
    ),
    Fact(
        "experts",
        lambda known: classes.routes_tokens(known.model),
        _for("experts, whose batch sizes depend on the routing", FIXED_WIDTH=_FIT),
    ),
    Fact(
        "experts that may have too little capacity for the rows",
        lambda known: known.overflows,
        _for("experts of too little capacity for the prompts", _DRAFTS, _RAGGED, _ONCE),
    ),
    Fact(
        "experts that read the masks (NLLB-MoE)",
        lambda known: classes.routes_by_masks(known.model),
        _for("experts that read the masks", _TREES, _RAGGED, _ONCE),
    ),
    Fact(
        "experts that read the masks, with a static cache or the decoder's mask",
        lambda known: (
            (known.call.static or known.kwargs.get("decoder_attention_mask") is not None)
            and classes.routes_by_masks(known.model)
        ),
        _for("experts that read the masks, which hide positions", _DRAFTS),
    ),
    Fact(
        "masks applied to several tokens only (LED), with a decoder's mask",
        lambda known: (
            bool(known.traits.names & classes.MASKS_SEVERAL)
            and known.kwargs.get("decoder_attention_mask") is not None
        ),
        _for("a model that does not mask single tokens", _DRAFTS, _RAGGED),
    ),
    Fact(
        "modules that mix the positions of a forward (dynamic int8, Doge's experts)",
        lambda known: classes.mixes_positions(known.model),
        _for(
            "modules that mix the positions of a forward",
            *(_DRAFTS, _RAGGED, _JOINT, _DRAFT, _ONCE, _KEPT),
            FIXED_WIDTH=_FIT,
        ),
    ),
    Fact(
        "quantized activations",
        lambda known: classes.quantizes_activations(known.model),
        _for("a quantized model, whose scales may depend on all positions", FIXED_WIDTH=_FIT),
    ),
)
