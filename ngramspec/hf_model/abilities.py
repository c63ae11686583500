"""Which abilities speculation has with a model in one call, and why it lacks others.

``FACTS`` is a table. It has a row for each fact about a model or a call, and a cell for each
ability that the fact rules out. A cell holds the reason and, after a semicolon, the remedy if there
is one. To support a new kind of model or cache, add a row and decide about every ability.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import Enum

from ngramspec.hf_model.compat import names
from ngramspec.hf_model.traits import MASKED_ATTENTIONS, CallFacts


class Ability(Enum):
    """An ability that a target may have; the value is its name in the documentation."""

    DRAFTS = "drafts"
    TREES = "trees"
    RAGGED = "ragged rows"
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
    holds: Callable[[CallFacts], object]  # returns a truthy value if the fact is true
    # Why each ability that the fact rules out is lacking. "{rows}", "{attention}", "{gap_obstacle}"
    # and "{unaligned}" are replaced by those of the model and the call.
    reasons: dict[Ability, str]


def why_unsupported(ability: Ability, facts: CallFacts) -> str | None:
    """Return the first of the ``reasons_against``, or None. Later facts are not evaluated."""
    return next(reasons_against(ability, facts), None)


def reasons_against(ability: Ability, facts: CallFacts) -> Iterator[str]:
    """Yield the reasons that rule an ability out, in the table's order."""
    for fact in FACTS:
        if ability in fact.reasons and fact.holds(facts):
            yield fact.reasons[ability].format(
                rows=facts.call.rows,
                attention=facts.traits.attention,
                gap_obstacle=facts.call.gap_obstacle,
                unaligned=facts.call.unaligned,
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
        lambda facts: facts.call.rows > 1 and not facts.ragged,
        _for("a batch of {rows} rows that advance together", _TREES, _JOINT),
    ),
    Fact(
        "dynamic cache",
        lambda facts: not facts.call.static,
        _for("a dynamic cache", COMPILED="use cache_implementation='static'"),
    ),
    Fact(
        "encoder-decoder model",
        lambda facts: facts.traits.encodes,
        _for("an encoder-decoder model", _JOINT, _DRAFT, FIXED_WIDTH=_FIT, COMPILED="remove it"),
    ),
    Fact(
        "several rows",
        lambda facts: facts.call.rows > 1,
        _for("a batch of {rows} rows", _DRAFT, FIXED_WIDTH="generate them one by one"),
    ),
    Fact(
        "a text longer than a window, with a dynamic cache",
        lambda facts: facts.slides and not facts.call.static,
        _for(
            "a text that may become longer than an attention window",
            FIXED_WIDTH="use cache_implementation='static'",
        ),
    ),
    Fact(
        "recurrent state, convolution, or index of keys",
        lambda facts: facts.call.gap_obstacle is not None,
        _for("{gap_obstacle}", _TREES, _RAGGED, _JOINT, _DRAFT, _ONCE, FIXED_WIDTH=_FIT),
    ),
    Fact(
        "windows in layers of a type that is not known",
        lambda facts: facts.traits.windows is not None and not facts.traits.windows.known,
        _for("windows in layers of other types", _TREES, _RAGGED, _JOINT, _DRAFT, FIXED_WIDTH=_FIT),
    ),
    Fact(
        "recurrent states in a cache without keys",
        lambda facts: facts.traits.recurrent and not facts.call.attends,
        _for("a cache that holds no keys", _KEPT),
    ),
    Fact(
        "attention other than sdpa and eager",
        lambda facts: facts.traits.attention not in MASKED_ATTENTIONS,
        _for(
            "attention implementation {attention}",
            *(_TREES, _JOINT),
            FIXED_WIDTH=_SDPA,
            COMPILED=_SDPA,
        ),
    ),
    Fact(
        "dynamic cache with sdpa",
        lambda facts: not facts.call.static and facts.traits.attention == "sdpa",
        _for(
            "a dynamic cache with sdpa, whose arithmetic changes with the length",
            FIXED_WIDTH="use cache_implementation='static' or attn_implementation='eager'",
        ),
    ),
    Fact(
        "attentions or hidden states asked for",
        lambda facts: facts.call.states,
        _for(
            "attentions or hidden states asked for",
            *(_TREES, _JOINT, _DRAFT, _ONCE),
            COMPILED="do not ask for them",
        ),
    ),
    Fact(
        "hooks on modules",
        lambda facts: facts.call.hooked,
        _for("hooks on modules, which may rely on all rows of the call", _JOINT, _ONCE),
    ),
    Fact(
        "tokens found by their slots in the cache",
        lambda facts: facts.traits.by_slot,
        _for(
            "a model that finds tokens by their slots in the cache",
            *(_TREES, _RAGGED, _JOINT, _KEPT),
            FIXED_WIDTH=_FIT,
        ),
    ),
    Fact(
        "attentions asked for",
        lambda facts: any("attentions" in name for name in facts.call.states),
        _for(
            "attentions asked for, whose shape depends on the cache's size",
            FIXED_WIDTH="pass output_attentions=False",
        ),
    ),
    Fact(
        "positions counted by the model",
        lambda facts: not facts.traits.takes_positions,
        _for(_COUNTS, _JOINT, COMPILED=_UNCOMPILED),
    ),
    Fact(
        "positions counted by modules of unknown classes",
        lambda facts: not facts.traits.placed,
        _for(_COUNTS, _TREES, _RAGGED, FIXED_WIDTH=_FIT),
    ),
    Fact(
        "padding without positions", lambda facts: facts.traits.skips_padding, _for(_COUNTS, _DRAFT)
    ),
    Fact(
        "all positions change at a length (longrope, Phi-3)",
        lambda facts: facts.traits.thresholds,
        _for(_ROPE, COMPILED=_UNCOMPILED),
    ),
    Fact(
        "cache and masks disagree",
        lambda facts: facts.call.unaligned is not None,
        _for(
            "a prefill whose positions do not match its masks: {unaligned}",
            *(_DRAFTS, _JOINT, _DRAFT, _ONCE, Ability.FIXED_WIDTH, Ability.COMPILED),
        ),
    ),
    Fact(
        "ALiBi",
        lambda facts: facts.traits.alibi,
        _for("a model with ALiBi", _TREES, _JOINT) | _for(_OWN_MASKS, FIXED_WIDTH=_FIT),
    ),
    Fact(
        "masks made or changed by the model",
        lambda facts: not (facts.traits.standard_masks and facts.traits.passes_masks),
        _for(_OWN_MASKS, _TREES, _JOINT, FIXED_WIDTH=_FIT),
    ),
    Fact(
        "eager attention",
        lambda facts: facts.traits.attention == "eager",
        _for("attention implementation {attention}", _JOINT),
    ),
    Fact(
        "model overrides create_masks_for_generate",
        lambda facts: facts.traits.own_masks,
        _for(_OWN_MASKS, _JOINT, FIXED_WIDTH=_FIT),
    ),
    Fact(
        "static cache",
        lambda facts: facts.call.static,
        _for("a static cache", _RAGGED, _JOINT, _DRAFT, _ONCE),
    ),
    Fact(
        "rotary frequencies that depend on the length",
        lambda facts: facts.traits.rope_varies,
        _for(_ROPE, _RAGGED, _JOINT, _DRAFT, _KEPT, FIXED_WIDTH=_FIT),
    ),
    Fact(
        "input preparation of a model outside transformers",
        lambda facts: facts.reads_text,
        _for(_MORE_INPUTS, _RAGGED, _JOINT, _KEPT),
    ),
    Fact(
        "inputs other than text",
        lambda facts: not facts.plain,
        _for(_MORE_INPUTS, _JOINT, _DRAFT, _ONCE),
    ),
    Fact(
        "cache that holds tokens before the prefill",
        lambda facts: facts.call.cached,
        _for("a cache that holds tokens before the prefill", _RAGGED, _ONCE),
    ),
    Fact(
        "cache of the caller",
        lambda facts: facts.call.keeps_cache,
        _for("a cache that the caller may use again", _RAGGED),
    ),
    Fact(
        "masks widened after the prefill (GIT), with masked positions",
        lambda facts: facts.traits.names & names.WIDENS_MASK and facts.masks_positions,
        _for("a model that widens its masks after the prefill", _DRAFT),
    ),
    Fact(
        "prefill in chunks",
        lambda facts: facts.config.prefill_chunk_size is not None,
        _for("a prefill in chunks", _DRAFT),
    ),
    Fact(
        "experts",
        lambda facts: names.routes_tokens(facts.model),
        _for("experts, whose batch sizes depend on the routing", FIXED_WIDTH=_FIT),
    ),
    Fact(
        "experts that may have too little capacity for the rows",
        lambda facts: facts.overflows,
        _for("experts of too little capacity for the prompts", _DRAFTS, _RAGGED, _ONCE),
    ),
    Fact(
        "experts that read the masks (NLLB-MoE)",
        lambda facts: names.routes_by_masks(facts.model),
        _for("experts that read the masks", _TREES, _RAGGED, _ONCE),
    ),
    Fact(
        "experts that read the masks, with a static cache or the decoder's mask",
        lambda facts: (
            (facts.call.static or facts.kwargs.get("decoder_attention_mask") is not None)
            and names.routes_by_masks(facts.model)
        ),
        _for("experts that read the masks, which hide positions", _DRAFTS),
    ),
    Fact(
        "masks applied to several tokens only (LED), with a decoder's mask",
        lambda facts: (
            bool(facts.traits.names & names.MASKS_SEVERAL)
            and facts.kwargs.get("decoder_attention_mask") is not None
        ),
        _for("a model that does not mask single tokens", _DRAFTS, _RAGGED),
    ),
    Fact(
        "modules that mix the positions of a forward (dynamic int8, Doge's experts)",
        lambda facts: names.mixes_positions(facts.model),
        _for(
            "modules that mix the positions of a forward",
            *(_DRAFTS, _RAGGED, _JOINT, _DRAFT, _ONCE, _KEPT),
            FIXED_WIDTH=_FIT,
        ),
    ),
    Fact(
        "quantized activations",
        lambda facts: names.quantizes_activations(facts.model),
        _for("a quantized model, whose scales may depend on all positions", FIXED_WIDTH=_FIT),
    ),
)
