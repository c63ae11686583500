"""Rollback of the convolutions of linear-attention layers.

Such a layer keeps only the last inputs of its convolution, one for each element of the kernel. To
allow positions to be rejected, a layer of transformers can record (``activate_past_recording``): it
then appends all inputs of a forward to those that it held before.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ngramspec.hf_model.compat import layers as fields


class LinearStates:
    """The linear layers of a cache, which may also have attention.

    A layer may have several convolutions. The inputs of each are (batch, channels, positions), in
    the model's dtype.

    Args:
        layers: linear layers of a cache of transformers.
    """

    def __init__(self, layers: Sequence[Any]) -> None:
        self.layers = layers

    def record(self) -> None:
        """From the next forward on, keep all inputs until the next ``truncate``."""
        for layer in self.layers:
            layer.activate_past_recording()

    def truncate(self, count: int) -> None:
        """Drop the inputs of the last ``count`` positions, and those no longer needed.

        Call it after every forward.
        """
        for layer in self.layers:
            for at, inputs, needed in fields.convolutions(layer):
                stay = inputs[..., : inputs.shape[-1] - count]
                fields.set_inputs(layer, at, stay[..., -needed:])

    def undo(self) -> None:
        """Drop all inputs of an interrupted forward, which may not have reached every layer.

        Layers that do not record have overwritten their inputs, as in the baseline.
        """
        for layer in self.layers:
            for at, inputs, needed in fields.convolutions(layer):
                if fields.records_past(layer) and fields.has_inputs(layer, at):
                    fields.set_inputs(layer, at, inputs[..., :needed])

    def clear(self) -> None:
        """Drop all inputs, as before the first forward."""
        for layer in self.layers:
            fields.clear_convolutions(layer)

    def release(self, *, outlives: bool) -> None:
        """Have layers overwrite their inputs again; free spare memory if the cache outlives it."""
        for layer in self.layers:
            fields.stop_recording(layer)
            for at, inputs, _ in fields.convolutions(layer) if outlives else ():
                if inputs is not None:
                    fields.set_inputs(layer, at, inputs.clone())
