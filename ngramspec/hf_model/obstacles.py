"""Why a target cannot verify trees, have a fixed width, be compiled, or have ragged rows.

Each function returns the reason in a few words, for a message or for the statistics.
"""

from __future__ import annotations

from typing import Any

import torch

from ngramspec.errors import UnsupportedError
from ngramspec.hf_model.call import CallTraits
from ngramspec.hf_model.compat import classes, hf_private
from ngramspec.hf_model.traits import MASKED_ATTENTIONS, Traits

# Arguments of the prefill under which it can check a draft behind a prompt of plain text.
PLAIN_PREFILL = (
    "past_key_values",
    "use_cache",
    "logits_to_keep",
    "attention_mask",
    "position_ids",
)


def why_no_tree(traits: Traits, call: CallTraits, by_row: bool = False) -> str | None:
    """Why a target cannot verify trees; None if it can.

    Args:
        traits: of the model.
        call: of the call.
        by_row: whether each row of a batch may have a tree of its own: rows that accept different
            numbers of tokens, and beams.
    """
    if call.rows > 1 and not by_row:
        return f"a batch of {call.rows} rows that advance together"
    if traits.encodes:
        return "an encoder-decoder model"
    if call.slides or traits.windows:
        return "sliding-window attention"
    if call.in_order is not None:
        return call.in_order
    if traits.attention not in MASKED_ATTENTIONS:
        return f"attention implementation {traits.attention}"
    if call.states:
        return "attentions or hidden states asked for"
    if traits.by_slot:
        return "a model that finds tokens by their slots in the cache"
    if not traits.takes_positions:
        return "a model that counts its positions itself"
    if traits.alibi:
        return "a model with ALiBi"
    if not (traits.standard_masks and traits.passes_masks):
        return "a model that makes its masks itself"
    return None


def allows_ragged(traits: Traits, call: CallTraits) -> bool:
    """Whether rows of a batch may accept different numbers of tokens, with gaps in the cache.

    They may where masks and ``position_ids`` alone say where a token is in its text. A model that
    takes no positions counts them by the cache's length, and so does the next call if the caller
    keeps the cache. Where rotary frequencies follow the largest position of a batch, rows must be
    where plain decoding has them.
    """
    counts = traits.by_slot or not traits.takes_positions
    reads_text = traits.reads_text and traits.stock is None  # and it may count the tokens
    if counts or reads_text or traits.encodes or traits.rope_varies:
        return False
    return call.allows_gaps and not call.keeps_cache and call.cached == 0


def why_not_joint(traits: Traits, call: CallTraits, kwargs: dict[str, Any]) -> str | None:
    """Why a generation's forwards cannot be joined with those of others; None if they can.

    They can where masks and ``position_ids`` alone say what a position attends to, so that the
    positions of several texts can stand in one row.

    Args:
        traits: of the model.
        call: of the call.
        kwargs: of its forwards.
    """
    obstacle = why_no_tree(traits, call)
    if obstacle is not None:
        return obstacle
    if traits.attention != "sdpa":
        return f"attention implementation {traits.attention}"
    if not traits.takes_masks:
        return "a model that makes its masks itself"
    if call.static:
        return "a static cache"
    if traits.rope_varies:
        return "rotary positions that change with the length"
    if (traits.reads_text and traits.stock is None) or not _is_plain(kwargs):
        return "a model that reads more than tokens and positions"
    return None


def prefill_checks_drafts(
    traits: Traits, call: CallTraits, config: Any, kwargs: dict[str, Any]
) -> bool:
    """Whether the prefill can check a draft behind the prompt.

    It can where it is one forward of plain text into a dynamic cache, for a single row. Any other
    argument rules it out: token types, for instance, may say that a prompt is read in both
    directions. A model that widens its masks only behind the prefill sees other positions there.
    """
    whole = config.prefill_chunk_size is None and not call.states and _is_plain(kwargs)
    if traits.names & classes.WIDENS_MASK and not _attends_all(kwargs.get("attention_mask")):
        return False
    cut = call.static or call.slides or call.unaligned is not None
    plain = not (cut or call.in_order or traits.encodes or traits.rope_varies)
    return whole and call.rows == 1 and plain


def _is_plain(kwargs: dict[str, Any]) -> bool:
    """Whether the arguments of a prefill say nothing but plain text."""
    return all(
        name in PLAIN_PREFILL or value is None or value is False for name, value in kwargs.items()
    )


def prefills_beams_once(traits: Traits, call: CallTraits, kwargs: dict[str, Any]) -> bool:
    """Whether the prefill can run a prompt once for all of its beams, and copy the cache then.

    It can where it is of plain text, into a dynamic cache that holds nothing yet.
    """
    grows = not (call.static or call.cached or call.convolves or call.in_order)
    plain = _is_plain(kwargs) and not call.states and call.unaligned is None
    return grows and plain and not traits.encodes


def _attends_all(mask: torch.Tensor | None) -> bool:
    """Whether a mask, (batch, length), leaves no position out. One host sync on a device."""
    return mask is None or bool((mask != 0).all())


def check_fixed(model: Any, traits: Traits, call: CallTraits, width: int) -> None:
    """Raise an UnsupportedError if ``why_not_fixed`` returns a reason."""
    reason = why_not_fixed(model, traits, call)
    if reason is not None:
        raise UnsupportedError(f"width={width} is not supported with {reason}")


def why_not_fixed(model: Any, traits: Traits, call: CallTraits) -> str | None:
    """Why drafts would change the rounding under a fixed width, and the remedy; None: they don't.

    Args:
        model: the transformers model that the traits describe.
        traits: of it.
        call: of the call.
    """
    if traits.encodes:
        return "an encoder-decoder model; use width='fit'"
    if call.rows > 1:
        return f"a batch of {call.rows} rows; generate them one by one"
    if call.slides or traits.windows:
        return "sliding-window attention; use width='fit'"
    if call.in_order is not None:
        return f"{call.in_order}; use width='fit'"
    if traits.attention not in MASKED_ATTENTIONS:
        return f"attention implementation {traits.attention}; load the model with sdpa or eager"
    if not call.static and traits.attention == "sdpa":
        return (
            "a dynamic cache with sdpa, whose arithmetic changes with the length; use"
            " cache_implementation='static' or attn_implementation='eager'"
        )
    if traits.by_slot:
        return "a model that finds tokens by their slots in the cache; use width='fit'"
    if any("attentions" in name for name in call.states):
        return "attentions asked for, which show the cache's size; pass output_attentions=False"
    if not traits.takes_positions:
        return "a model that counts its positions itself; use width='fit'"
    if call.unaligned is not None:
        return f"a prefill whose positions masks do not know: {call.unaligned}"
    if not traits.takes_masks:
        return "a model that makes its masks itself; use width='fit'"
    if traits.rope_varies:
        return "rotary positions that change with the length; use width='fit'"
    return _why_not_rowwise(model)


def _why_not_rowwise(model: Any) -> str | None:
    """Why a position's weights or scales depend on the forward's other positions, or None."""
    if classes.routes_tokens(model):
        return "experts, which take each as many tokens as are routed to it; use width='fit'"
    if classes.quantizes_activations(model):
        return "a quantized model, whose scales may be of all positions; use width='fit'"
    return None


def why_not_compiled(traits: Traits, call: CallTraits) -> str | None:
    """Why a target's forwards cannot be compiled, and the remedy; None if they can."""
    if not call.static:
        return "a dynamic cache; use cache_implementation='static'"
    if traits.encodes:
        return "an encoder-decoder model; remove it"
    if call.states:
        return "attentions or hidden states asked for; do not ask for them"
    if traits.attention not in MASKED_ATTENTIONS:
        return f"attention implementation {traits.attention}; load the model with sdpa or eager"
    if not traits.takes_positions:
        return "a model that counts its positions itself; pass compiled=False"
    if traits.thresholds:
        return "rotary positions that change with the length; pass compiled=False"
    if call.unaligned is not None:
        return f"a prefill whose positions masks do not know: {call.unaligned}"
    return None


def should_compile(
    model: Any,
    traits: Traits,
    call: CallTraits,
    config: Any,
    kwargs: dict[str, Any],
    compiled: bool | None,
) -> bool:
    """Whether the forwards of a call are to be compiled.

    Args:
        model: the transformers model that the traits describe.
        traits: of it.
        call: of the call.
        config: the GenerationConfig.
        kwargs: of the prefill.
        compiled: True, False, or None: where plain ``generate`` would.

    Raises:
        UnsupportedError: they cannot be, and compiled=True.
    """
    if compiled is False or config.disable_compile:
        return False
    reason = why_not_compiled(traits, call)
    if compiled and reason is not None:
        raise UnsupportedError(f"compiled=True is not supported with {reason}")
    if compiled or reason is not None:
        return reason is None
    return hf_private.compiles_by_default(model, kwargs, config)
