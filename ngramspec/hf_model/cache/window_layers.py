"""Rollback of dynamic layers with windows, also where rows have gaps between their positions.

Such a layer of transformers holds the last positions only. To allow positions to be rejected, it
can record (``activate_past_recording``): it then drops nothing until it is told to.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ngramspec.hf_model.compat import layers as fields

NO_WINDOW = 1 << 40  # positions: longer than any text


def own_tokens(window: int) -> int:
    """Return how many positions a layer with a window needs if there are no gaps."""
    return window - 1


class WindowLayers:
    """The sliding layers of a cache, which forget positions outside a window."""

    def __init__(self, layers: Sequence[Any]) -> None:
        self.layers = layers
        self._windows = [int(layer.sliding_window) for layer in layers]

    @property
    def held(self) -> int | None:
        """Positions that they hold; None: there are no such layers."""
        states = [layer.keys for layer in self.layers if layer.is_initialized]
        return max((each.shape[2] for each in states), default=None)

    def let_rows_diverge(self) -> None:
        """Have layers return all that they hold, until ``release``; call it after the prefill."""
        for layer in self.layers:
            layer.sliding_window = NO_WINDOW

    def truncate(self, count: int, needed: Callable[[int], int]) -> None:
        """Drop the last ``count`` positions, and those that are not needed; see ``KVCache``."""
        keep = {window: needed(window) for window in set(self._windows)}
        for layer, window in zip(self.layers, self._windows, strict=True):
            fields.crop_window(layer, count, keep[window])

    def truncate_to(self, length: int) -> None:
        """Drop all positions from ``length`` on, after an interrupted forward."""
        for layer in self.layers:
            if length == 0:  # a crop may need what a layer no longer holds
                fields.empty_sliding(layer)
            elif fields.records_past(layer):
                fields.crop_window(layer, max(layer.get_seq_length() - length, 0), length)
            # A prefill in chunks has dropped what left the window, as the baseline.

    def kept_of(self, layer: Any, slots: Any) -> Any:
        """Return which of the positions that a layer holds stay after ``KVCache.compact(slots)``.

        They are int64 (batch, window - 1 or less). The layer's length is set to the new one.
        """
        window = self._windows[self.layers.index(layer)]
        gone, kept = fields.dropped(layer), slots.shape[1]
        fields.set_length(layer, kept)
        return (slots[:, max(kept - window + 1, 0) :] - gone).clamp(min=0)

    def release(self) -> None:
        """Have layers slide again."""
        for layer, window in zip(self.layers, self._windows, strict=True):
            layer.sliding_window = window
            fields.stop_recording(layer)
