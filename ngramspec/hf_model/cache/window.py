"""Dynamic layers with windows, also where rows have gaps between their positions.

Such a layer of transformers holds the last positions only. To allow positions to be rejected, it
can record (``activate_past_recording``): it then drops nothing until it is told to.
"""

from __future__ import annotations

from typing import Any

import torch

from ngramspec.hf_model.cache.layers import Attention, Needed

NO_WINDOW = 1 << 40  # positions: longer than any text


class WindowAttention(Attention):
    """Attention to the last positions, of which it may hold more than the window."""

    slides = True

    def __init__(self, layer: Any, *, recurrent: bool = False) -> None:
        super().__init__(layer)
        self._window = int(layer.sliding_window)

    @property
    def held(self) -> int | None:
        """Positions that it holds; None before its first forward."""
        return int(self.layer.keys.shape[2]) if self.layer.is_initialized else None

    @property
    def first(self) -> int:  # type: ignore[override]
        return int(self.layer.cumulative_length) - (self.held or 0)

    def forgets(self, length: int) -> bool:
        return length >= self._window

    def record(self) -> None:
        self.layer.activate_past_recording()

    def make_ragged(self) -> None:
        """See CacheLayer. It returns all that it holds; call it after the prefill."""
        self.layer.sliding_window = NO_WINDOW

    def truncate(self, count: int, needed: Needed) -> None:
        """See CacheLayer. If one less than the window is needed, it is the layer's ``crop``."""
        self._crop(count, needed(self._window))

    def _crop(self, count: int, keep: int) -> None:
        if self.layer.is_initialized:
            end = self.layer.keys.shape[2] - count
            self._keep(slice(max(end - keep, 0), end))
            self.layer.cumulative_length -= count

    def truncate_to(self, length: int) -> None:
        """See CacheLayer. A prefill in chunks drops what leaves the window, as the baseline."""
        layer = self.layer
        if length == 0:  # a crop may need what the layer no longer holds
            layer.keys = layer.values = None
            layer.is_initialized, layer.cumulative_length = False, 0
        elif layer.record_past:
            self._crop(max(self.length - length, 0), length)

    def compact(self, slots: torch.Tensor) -> None:
        """See Attention. What it no longer holds is masked, or outside every row's window."""
        gone, kept = self.first, slots.shape[1]
        self.layer.cumulative_length = kept
        own = (slots[:, max(kept - self._window + 1, 0) :] - gone).clamp(min=0)
        for name, states in self._gathered(own):
            setattr(self.layer, name, states)

    def release(self, *, outlives: bool) -> None:
        super().release(outlives=outlives)
        self.layer.sliding_window = self._window
        self.layer.record_past = False
