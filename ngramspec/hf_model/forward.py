"""One forward of the target: its contexts, and its state until it is rolled back."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from ngramspec.errors import UnsupportedError
from ngramspec.hf_model.attention.gqa_attention import in_place
from ngramspec.hf_model.cache.kv_cache import KVCache
from ngramspec.hf_model.compat import hf_private

if TYPE_CHECKING:
    from ngramspec.hf_model.assistants.states import StateChannel

NOTHING: AbstractContextManager[None] = nullcontext()


@dataclass(slots=True)
class LastForward:
    """The last forward, until it is rolled back.

    Attributes:
        width: positions that it appended to the cache.
        block: int64 (batch, width or less), its tokens; None: it was the prefill.
        again: number of these tokens that had been accepted before; see ``Pending``.
        is_prefill: whether it was the prefill, with a draft after the prompt.
        outputs: of the model; None: the forward was interrupted.
        reread: whether it read the whole text again.
    """

    width: int
    block: torch.Tensor | None = None
    again: int = 0
    is_prefill: bool = False
    outputs: Any = None
    reread: bool = False

    def of_new(self, states: torch.Tensor, name: str) -> torch.Tensor:
        """Select the states of the block's new tokens from (batch, positions, size).

        Raises:
            UnsupportedError: there are fewer positions than in the forward.
        """
        if states.shape[1] < self.width:
            raise UnsupportedError(
                f"{name} returns logits of {states.shape[1]} tokens in a forward of {self.width};"
                " pass Speculator('none')"
            )
        assert self.block is not None
        if not self.again and states.shape[1] == self.block.shape[1]:
            return states
        return states[:, -self.width :][:, self.again : self.block.shape[1]]


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


@contextmanager
def head_inputs(model: Any, wanted: bool) -> Iterator[list[torch.Tensor]]:
    """Collect the inputs of the model's head in this thread's forwards inside the block.

    Each forward appends (batch, positions, d) to the list. It stays empty if ``wanted`` is False,
    and for a model without a head (``get_output_embeddings``).
    """
    found: list[torch.Tensor] = []
    head = model.get_output_embeddings() if wanted else None
    if not isinstance(head, torch.nn.Module):
        yield found
        return
    mine = threading.get_ident()  # other threads may run the same model

    def keep(_: Any, inputs: tuple[Any, ...]) -> None:
        if threading.get_ident() == mine and inputs:
            found.append(inputs[0])

    hook = head.register_forward_pre_hook(keep)
    try:
        yield found
    finally:
        hook.remove()
