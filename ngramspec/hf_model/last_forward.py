"""State of the target's last forward."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from ngramspec.errors import UnsupportedError


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
