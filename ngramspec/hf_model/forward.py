"""One forward of the target: hooks on it, and its state until it is rolled back."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from ngramspec.errors import UnsupportedError

if TYPE_CHECKING:
    from ngramspec.hf_model.assistants.states import StateChannel

NOTHING: AbstractContextManager[None] = nullcontext()


@dataclass(slots=True)
class LastForward:
    """The last forward, until it is rolled back."""

    width: int  # positions that it appended to the cache
    block: torch.Tensor | None = None  # int64 (batch, width or less); None: it was the prefill
    again: int = 0  # how many of these tokens had been accepted before; see ``Pending``
    is_prefill: bool = False  # with a draft after the prompt
    outputs: Any = None  # of the model; None: the forward was interrupted
    reread: bool = False  # whether it read the whole text again

    def of_new(self, states: torch.Tensor, name: str) -> torch.Tensor:
        """Select the states of the block's new tokens from (batch, positions, size).

        An UnsupportedError is raised if there are fewer positions than in the forward.
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
