"""Rolling back the convolutions of linear-attention layers.

Such a layer keeps the last inputs of its convolution, as many as its kernel is wide, and not one
for every position. So that positions can be rejected, transformers' layer keeps all inputs of a
forward while it records (``activate_past_recording``), behind those that it held before.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ngramspec.hf_model.compat import layers as fields


class LinearStates:
    """The linear layers of a cache, which may have attention beside their convolution.

    A layer may have several convolutions. The inputs of each are (batch, channels, positions), in
    the model's dtype.

    Args:
        layers: of a cache of transformers, all linear.
    """

    def __init__(self, layers: Sequence[Any]) -> None:
        self.layers = layers

    def record(self) -> None:
        """From the next forward on, keep all inputs until the next ``truncate``."""
        for layer in self.layers:
            layer.activate_past_recording()

    def truncate(self, count: int) -> None:
        """Drop the inputs of the last ``count`` positions, and those that slid out; after every
        forward.
        """
        for layer in self.layers:
            for at, inputs, needed in fields.convolutions(layer):
                stay = inputs[..., : inputs.shape[-1] - count]
                fields.set_inputs(layer, at, stay[..., -needed:])

    def undo(self) -> None:
        """Drop all inputs of an interrupted forward, of which a layer may have seen nothing.

        Layers that do not record have overwritten what they held, as in plain decoding.
        """
        for layer in self.layers:
            for at, inputs, needed in fields.convolutions(layer):
                if fields.records_past(layer) and fields.has_inputs(layer, at):
                    fields.set_inputs(layer, at, inputs[..., :needed])

    def clear(self) -> None:
        """Forget all inputs, as if there had been no forward."""
        for layer in self.layers:
            fields.clear_convolutions(layer)

    def release(self, *, outlives: bool) -> None:
        """Have layers overwrite their inputs again.

        Args:
            outlives: whether the cache is used after the generation: if so, spare memory is freed.
        """
        for layer in self.layers:
            fields.stop_recording(layer)
            for at, inputs, _ in fields.convolutions(layer) if outlives else ():
                if inputs is not None:
                    fields.set_inputs(layer, at, inputs.clone())
