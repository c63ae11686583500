"""The target's hidden states at committed positions, for heads. They stay on the device."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch


class StateChannel:
    """The decoder's last hidden states of each row, until its head takes them.

    ``mask`` is int64 (batch, prompt) with 0 at padding, or None.
    """

    def __init__(self, model: Any, mask: torch.Tensor | None, rows: int) -> None:
        self._decoder, self._mask = model.get_decoder(), mask
        self._kept: list[list[torch.Tensor]] = [[] for _ in range(rows)]
        self._found: list[torch.Tensor] = []
        self._last: torch.Tensor | None = None  # (batch, positions, d) of the last forward

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Collect the states of this thread's forwards inside the block."""
        self._found, self._last = [], None
        mine = threading.get_ident()  # other threads may run the same model

        def keep(_: Any, __: Any, output: Any) -> None:
            if threading.get_ident() == mine:
                states = getattr(output, "last_hidden_state", None)
                self._found.append(output[0] if states is None else states)

        hook = self._decoder.register_forward_hook(keep)
        try:
            yield
        finally:
            hook.remove()

    def keep_prompt(self, drafted: int) -> None:
        """Keep the prompt's states.

        Those of its last token and of ``drafted`` tokens after it are kept only if accepted. There
        are none if the user compiled the forward before: such a graph calls no hook.
        """
        if not self._found:
            return
        states = torch.cat(self._found, dim=1)
        last = states.shape[1] - drafted
        for row, kept in enumerate(self._kept):
            own = states[row, :last]
            if self._mask is not None and self._mask.shape[1] >= last:
                own = own[self._mask[row, -last:].bool()]
            kept.append(own)
        self._last, self._found = states[:, last - 1 :], []

    def offer(self, placed: Callable[[torch.Tensor], torch.Tensor]) -> None:
        """Note a forward's states, which ``placed`` brings to (batch, new positions, d)."""
        self._last = placed(self._found[-1]) if self._found else None
        self._found = []  # another forward may not be read

    def keep(self, paths: Sequence[Sequence[int]], *, prefill: bool) -> None:
        """Keep the states at each row's accepted positions of the last forward."""
        if self._last is None:
            return
        for row, path in enumerate(paths):
            positions = list(path[1:] if prefill else path)
            if positions:
                self._kept[row].append(self._last[row, positions])
        self._last = None

    def take(self, row: int) -> list[torch.Tensor]:
        """A row's states since the last time, each (positions, d)."""
        taken, self._kept[row] = self._kept[row], []
        return taken
