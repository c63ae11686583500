"""The head that a call of ``generate`` asks for with transformers' own arguments."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ngramspec.errors import UnsupportedError

if TYPE_CHECKING:
    from ngramspec.drafters.model import ModelDrafter

# Arguments of ``generate`` that name a head, and the value that switches each off.
HEAD_SETTINGS = {"assistant_model": None, "assistant_early_exit": None, "use_mtp": False}
# Models that cannot run by themselves, by the start of their class names.
DEPENDENT = {
    ("Gemma4Assistant", "Gemma4UnifiedAssistant"): "it reads the target's keys and values of every"
    " layer, which roll back in other places than its own drafts",
    ("DFlash", "MuseGlimmerAssistant"): "it drafts a block at once from several layers' states",
}


def requested_head(settings: Mapping[str, Any]) -> ModelDrafter | None:
    """The head for values of ``HEAD_SETTINGS``; None: none is asked for.

    Raises:
        UnsupportedError: several are asked for, or one that cannot draft here.
    """
    asked = [name for name in HEAD_SETTINGS if settings.get(name) not in (None, False)]
    if len(asked) > 1:
        raise UnsupportedError(f"{' and '.join(asked)} cannot be combined; pass one of them")
    if not asked:
        return None
    from ngramspec.drafters.heads import EarlyExitDrafter, MtpDrafter  # most calls have none
    from ngramspec.drafters.model import ModelDrafter

    if asked == ["assistant_model"]:
        assistant = settings["assistant_model"]
        for starts, reason in DEPENDENT.items():
            if type(assistant).__name__.startswith(starts):
                from ngramspec.hf_model.assistants.assistant import named

                raise UnsupportedError(
                    f"assistant_model={named(assistant)} is not supported: {reason}; pass a causal"
                    " language model with the target's tokenizer"
                )
        return ModelDrafter(assistant)
    if asked == ["use_mtp"]:
        return MtpDrafter()
    return EarlyExitDrafter(settings["assistant_early_exit"])


def check_tokenizers(own: Any, assistants: Any) -> None:
    """Raise an UnsupportedError if an assistant's tokenizer differs from the target's."""
    if own is None or assistants is None or own is assistants:
        return
    from ngramspec.drafters.model import fingerprint_of

    if fingerprint_of(own) != fingerprint_of(assistants):
        raise UnsupportedError(
            "assistant_tokenizer differs from tokenizer; pass an assistant_model with the target's"
            " tokenizer"
        )
