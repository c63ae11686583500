"""Running a forward over drafts in the contexts that it needs."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any

import torch

from ngramspec.hf_model.attention.gqa_attention import in_place
from ngramspec.hf_model.cache.kv_cache import KVCache
from ngramspec.hf_model.compat import hf_private
from ngramspec.hf_model.outputs import head_inputs

if TYPE_CHECKING:
    from ngramspec.hf_model.assistants.states import StateChannel

NOTHING: AbstractContextManager[None] = nullcontext()


def reading(states: StateChannel | None) -> AbstractContextManager[Any]:
    """The context in which a forward's states are collected for heads, if any reads them."""
    return NOTHING if states is None else states.reading()


def run_prefill(
    model: Any,
    prompt: torch.Tensor,
    config: Any,
    kwargs: dict[str, Any],
    *,
    keep_hidden: bool,
    states: StateChannel | None,
    count: int,
) -> tuple[Any, torch.Tensor | None]:
    """Run the prefill; return its outputs and the input of the model's head, if that is kept.

    Args:
        model: the target.
        prompt: int64 (batch, n), with the draft.
        config: the prepared GenerationConfig.
        kwargs: the forward's other arguments.
        keep_hidden, states: as in ``run_surrounded``.
        count: number of draft tokens.
    """
    with head_inputs(model, keep_hidden) as kept, reading(states):
        outputs = hf_private.prefill(model, prompt, config, kwargs)
    if states is not None:
        states.keep_prompt(count)
    return outputs, kept[-1][:, -1 - count :] if kept else None


def run_surrounded(
    run: Callable[..., Any],
    inputs: dict[str, Any],
    model: Any,
    device: torch.device,
    cache: KVCache,
    *,
    positions: AbstractContextManager[Any],
    keep_hidden: bool,
    states: StateChannel | None,
) -> tuple[Any, torch.Tensor | None]:
    """Run a forward; return its outputs and the input of the model's head, if that is kept.

    Args:
        run: the model, or its compiled forward.
        inputs: its arguments.
        model: the target.
        device: of the inputs.
        cache: the target's cache.
        positions: the context in which modules that count positions use given ones.
        keep_hidden: whether the input of the model's head is kept.
        states: collects hidden states for heads, or None.
    """
    alone: AbstractContextManager[Any] = NOTHING
    if cache.indexed:
        from ngramspec.hf_model.attention.index_ties import selecting_alone

        alone = selecting_alone(model, cache, inputs)
    hidden, own = head_inputs(model, keep_hidden), in_place(model, device)
    with own, alone, positions, hidden as kept, reading(states):
        outputs = run(**inputs, return_dict=True)
    return outputs, kept[-1] if kept else None
