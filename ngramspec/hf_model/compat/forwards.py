"""What ``generate`` does around forwards: prefill, arguments, contexts, attention, compilation."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any


def prefill(model: Any, input_ids: Any, config: Any, kwargs: dict[str, Any]) -> Any:
    """Run a prompt as the baseline does; return the outputs of the last forward."""
    return model._prefill(input_ids, config, kwargs)


def carried_kwargs(
    model: Any, outputs: Any, kwargs: dict[str, Any], *, encodes: bool
) -> dict[str, Any]:
    """Return the keyword arguments of the next forward, over one token, from the last one's."""
    carried: dict[str, Any] = model._update_model_kwargs_for_generation(
        outputs, kwargs, is_encoder_decoder=encodes
    )
    return carried


def decode_context(model: Any) -> AbstractContextManager[Any]:
    """Return the context in which ``generate`` runs the forwards after the prefill."""
    context: AbstractContextManager[Any]
    context = getattr(model, "_optimize_model_for_decode", nullcontext)()
    return context


_sdpa: list[Any] = []  # our function, once it is made
_lock = threading.Lock()


def register_sdpa(make: Callable[[Any], Any]) -> bool:
    """Register ``make(sdpa)`` in place of transformers' sdpa; return whether it is registered."""
    from transformers.integrations.sdpa_attention import sdpa_attention_forward
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS, AttentionInterface

    with _lock:
        if not _sdpa:
            _sdpa.append(make(sdpa_attention_forward))
        if ALL_ATTENTION_FUNCTIONS["sdpa"] is sdpa_attention_forward:
            AttentionInterface.register("sdpa", _sdpa[0])
        return ALL_ATTENTION_FUNCTIONS["sdpa"] is _sdpa[0]


def compiles_by_default(model: Any, kwargs: dict[str, Any], config: Any) -> bool:
    """Whether the baseline compiles the forwards of a call."""
    criteria = getattr(model, "_valid_auto_compile_criteria", None)
    return criteria is not None and bool(criteria(kwargs, config))


def forget_compiled_call(model: Any) -> None:
    """Drop the compiled forward that ``get_compiled_call`` stored on a model, if there is one."""
    vars(model).pop("_compiled_call", None)
