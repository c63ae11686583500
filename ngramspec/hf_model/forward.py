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


class MissingLogitsError(UnsupportedError):
    """A model returns logits of fewer positions than a draft has."""


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

        A MissingLogitsError is raised if there are fewer positions.
        """
        assert self.block is not None
        new = self.width - self.again
        check_logits(states, new, name)
        if states.shape[1] == self.block.shape[1] - self.again:
            return states
        return states[:, -new:][:, : self.block.shape[1] - self.again]


def check_logits(logits: torch.Tensor, positions: int, name: str) -> None:
    """Raise a MissingLogitsError if a forward's logits, (batch, n, vocab), have too few positions.

    ``name`` is that of the model's class.
    """
    if logits.shape[1] < positions:
        raise MissingLogitsError(
            f"{name} returns logits of {logits.shape[1]} tokens in a forward over {positions}; pass"
            " Speculator('none')"
        )


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
