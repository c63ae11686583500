"""Recurrent states: copied before a draft, put back if it is not accepted as a whole.

A recurrent state has no positions that could be cut off: each forward overwrites it. So before a
forward that holds a draft, ``Checkpoint`` copies the states. If all of the draft is accepted, the
generation goes on. If not, the copies are put back, the attention layers are truncated to the same
place, and the accepted tokens are ``Pending``: the next forward runs them again, in front of the
last committed token and its draft. No step has more than one forward.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch

from ngramspec.hf_model.compat.layers import linear_flags, linear_states

MOST_PENDING = 8  # tokens; with as many the next step drafts nothing, so that they are all accepted
MOST_PRICED = 32  # the same, where the cost of running them again is part of each draft's cost


class Checkpoint:
    """A copy of the states of linear layers, in memory that is used again at each ``save``.

    It takes as many bytes as the states. ``save`` and ``restore`` each copy all of them.

    Args:
        layers: of a cache of transformers, with a convolution's and a recurrent state.
    """

    def __init__(self, layers: Sequence[Any]) -> None:
        self._layers = layers
        self._copies: dict[tuple[int, int, int], torch.Tensor] = {}
        self._flags: list[list[dict[int, bool]]] = []
        self._saved: list[tuple[int, int, int]] = []  # keys of the states that there were

    @property
    def saved(self) -> bool:
        """Whether there is a copy."""
        return bool(self._flags)

    @property
    def nbytes(self) -> int:
        """Bytes that the copies take."""
        return sum(each.numel() * each.element_size() for each in self._copies.values())

    def save(self) -> None:
        """Copy the states as they are."""
        self._saved, states = [], []
        for key, state in self._states():
            if key not in self._copies or self._copies[key].shape != state.shape:
                self._copies[key] = torch.empty_like(state)
            self._saved.append(key)
            states.append(state)
        self._flags = [[dict(flags) for flags in linear_flags(each)] for each in self._layers]
        if states:
            torch._foreach_copy_([self._copies[key] for key in self._saved], states)

    def restore(self) -> None:
        """Put the states back as they were at ``save``; the copy stays.

        Each is written where it was, as compiled forwards may know its address.
        """
        there, now = [], dict(self._states())
        for key in self._saved:
            at, kind, index = key
            if key not in now or now[key].shape != self._copies[key].shape:
                now[key] = torch.empty_like(self._copies[key])
                linear_states(self._layers[at])[kind][index] = now[key]
            there.append(now.pop(key))
        for at, kind, index in now:  # a first forward made these
            linear_states(self._layers[at])[kind][index] = None
        for layer, saved in zip(self._layers, self._flags, strict=True):
            for flags, values in zip(linear_flags(layer), saved, strict=True):
                flags.update(values)
        if there:
            torch._foreach_copy_(there, [self._copies[key] for key in self._saved])

    def discard(self) -> None:
        """Have no copy until the next ``save``."""
        self._flags = []

    def _states(self) -> Iterator[tuple[tuple[int, int, int], torch.Tensor]]:
        """All states that there are, each with its layer, its kind and its index.

        The kind is a place in ``linear_states``.
        """
        for at, layer in enumerate(self._layers):
            for kind, states in enumerate(linear_states(layer)):
                for index, state in states.items():
                    if state is not None:
                        yield (at, kind, index), state


class Pending:
    """Accepted tokens of each row that the cache does not hold, in front of its last committed one.

    Attributes:
        tokens: int64 (batch, n), or None: there are none.
        most: with as many the next forward accepts them all.
    """

    def __init__(self) -> None:
        self.most = MOST_PENDING
        self.tokens: torch.Tensor | None = None
        self._before: torch.Tensor | None = None

    def __len__(self) -> int:
        return 0 if self.tokens is None else self.tokens.shape[1]

    @property
    def full(self) -> bool:
        """Whether the next forward should accept them all, by holding no draft."""
        return len(self) >= self.most

    def keep(self, block: torch.Tensor, count: int, origins: Sequence[int] = ()) -> None:
        """Have the first ``count`` tokens of a block's rows pending, or none.

        Args:
            block: int64 (batch, width).
            count: of each row.
            origins: which row of the block each row continues; empty: its own.
        """
        rows = block[list(origins)] if origins else block
        self.tokens = rows[:, :count] if count else None

    def in_front(
        self, block: torch.Tensor, committed: torch.Tensor | None
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """A block with the pending tokens before it.

        Args:
            block: int64 (batch, width).
            committed: int64 (batch, length), all tokens up to the block's first, or None.

        Returns:
            int64 (batch, n + width), and all tokens up to its first.
        """
        if self.tokens is not None:
            block = torch.cat((self.tokens, block), dim=1)
        if committed is not None:
            committed = committed[:, : committed.shape[1] - len(self)]
        self._before = committed
        return block, committed

    def text(self) -> torch.Tensor | None:
        """All tokens up to those pending and one more, int64 (batch, length), or None.

        That is what ``in_front`` takes for an empty block.
        """
        if self._before is None or self.tokens is None:
            return None
        behind = torch.cat((self.tokens, self.tokens[:, -1:]), dim=1).to(self._before.dtype)
        return torch.cat((self._before[:, :-1], behind), dim=1)
