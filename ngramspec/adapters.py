"""Which adapters (PEFT) a model may wear: those whose forward is the same for any width."""

from __future__ import annotations

from typing import Any

from ngramspec.errors import UnsupportedError


def check_adapter(model: Any) -> None:
    """Raise an UnsupportedError if ``model`` generates under an adapter that goes by the width.

    An adapter of weights leaves its configuration at the model that it changed. One that learned a
    prompt is known by its wrapper, which prepares the model's inputs while it generates.
    """
    wrapper = getattr(model.prepare_inputs_for_generation, "__self__", model)
    configs = getattr(wrapper, "peft_config", None) or {}
    for name, config in configs.items():
        if getattr(config, "is_prompt_learning", False):
            kind = str(getattr(config.peft_type, "value", config.peft_type))
            raise UnsupportedError(
                f"the adapter {name!r} ({kind}) forwards one token at a time behind its own prompt;"
                " use one that changes weights, such as LoRA"
            )
        if getattr(config, "alora_invocation_tokens", None):
            raise UnsupportedError(
                f"the adapter {name!r} is an activated LoRA, whose reach is counted from the end"
                " of each forward; use a LoRA without alora_invocation_tokens"
            )
