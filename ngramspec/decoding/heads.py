"""The head that a call of ``generate`` asks for with transformers' own arguments."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ngramspec.errors import UnsupportedError

if TYPE_CHECKING:
    from ngramspec.drafters.model import ModelDrafter

# Models that cannot run by themselves, by the start of their class names.
DEPENDENT = {
    ("Gemma4Assistant", "Gemma4UnifiedAssistant"): "it reads the target's keys and values of every"
    " layer, which roll back in other places than its own drafts",
    ("DFlash", "MuseGlimmerAssistant"): "it drafts a block at once from several layers' states",
}


def requested_head(assistant: Any, use_mtp: Any) -> ModelDrafter | None:
    """The head for a call's ``assistant_model`` and ``use_mtp``; None: it asks for none.

    Raises:
        TypeError: the assistant is no model and no path.
        UnsupportedError: both are asked for, or the assistant cannot draft here.
    """
    if assistant is None:
        return mtp_head() if use_mtp else None
    if use_mtp:
        raise UnsupportedError("assistant_model and use_mtp cannot be combined; pass one of them")
    from ngramspec.drafters.model import ModelDrafter  # most calls have none

    if not ModelDrafter.takes(assistant):
        raise TypeError(
            "assistant_model must be a causal language model of transformers, or the path of a"
            f" local folder with one, got {assistant!r}"
        )
    for starts, reason in DEPENDENT.items():
        if type(assistant).__name__.startswith(starts):
            from ngramspec.hf_model.assistants import named

            raise UnsupportedError(
                f"assistant_model={named(assistant)} is not supported: {reason}; pass a causal"
                " language model with the target's tokenizer"
            )
    return ModelDrafter(assistant)


def mtp_head() -> ModelDrafter:
    """The head of the target's own MTP layers."""
    from ngramspec.drafters.heads import MtpDrafter

    return MtpDrafter()


def check_tokenizers(own: Any, assistants: Any) -> bool:
    """Whether a call's tokenizers are known to be equal; an UnsupportedError if they differ."""
    if own is None or assistants is None:
        return False
    from ngramspec.drafters.vocabulary import same_vocabulary  # most calls have none

    if not same_vocabulary(own, assistants):
        raise UnsupportedError(
            "assistant_tokenizer differs from tokenizer; pass an assistant_model with the target's"
            " tokenizer"
        )
    return True
