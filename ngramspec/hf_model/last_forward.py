"""A forward of the target until it is rolled back."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from ngramspec.errors import UnsupportedError


@dataclass(slots=True)
class LastForward:
    """The last forward, until it is rolled back.

    Attributes:
        width: positions that it wrote to the cache behind what was there.
        block: int64 (batch, width or less), its tokens; None: it was the prefill.
        again: how many of them had been accepted before, see ``Pending``.
        is_prefill: whether it was the prefill, with a draft behind the prompt.
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
        """Those of (batch, positions, size) that are of the block's new tokens.

        Args:
            states: of at least the forward's own positions, at their end.
            name: of the model, for the message.

        Raises:
            UnsupportedError: there are fewer.
        """
        if states.shape[1] < self.width:
            raise UnsupportedError(
                f"{name} gives logits of {states.shape[1]} tokens in a forward of {self.width};"
                " pass Speculator('none')"
            )
        assert self.block is not None
        return states[:, -self.width :][:, self.again : self.block.shape[1]]
