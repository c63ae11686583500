"""Rolling back the convolutions of linear-attention layers.

Such a layer keeps the last inputs of its convolution, as many as its kernel is wide, and not one
for every position. So that positions can be rejected, transformers' layer keeps all inputs of a
forward while it records (``activate_past_recording``), behind those that it held before.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

LINEAR = frozenset(
    {
        "LinearAttentionLayer",
        "LinearAttentionAndFullAttentionLayer",
        "LinearAttentionAndSlidingWindowAttentionLayer",
    }
)


def can_record(layer: Any) -> bool:
    """Whether a linear layer can keep what it would overwrite (since transformers 5.20 or so)."""
    return hasattr(layer, "activate_past_recording") and isinstance(layer.conv_states, dict)


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
            for at, inputs in layer.conv_states.items():
                stay = inputs[..., : inputs.shape[-1] - count]
                layer.conv_states[at] = stay[..., -layer.conv_kernel_size[at] :]

    def undo(self) -> None:
        """Drop all inputs of an interrupted forward, of which a layer may have seen nothing.

        Layers that do not record have overwritten what they held, as in plain decoding.
        """
        for layer in self.layers:
            for at, inputs in layer.conv_states.items():
                if layer.record_past and layer.is_conv_states_initialized[at]:
                    layer.conv_states[at] = inputs[..., : layer.conv_kernel_size[at]]

    def clear(self) -> None:
        """Forget all inputs, as if there had been no forward."""
        for layer in self.layers:
            for at in layer.has_previous_state:
                layer.has_previous_state[at] = False
                layer.is_conv_states_initialized[at] = False
                layer.conv_states[at] = None

    def release(self, *, outlives: bool) -> None:
        """Have layers overwrite their inputs again.

        Args:
            outlives: whether the cache is used after the generation: if so, spare memory is freed.
        """
        for layer in self.layers:
            layer.record_past = False
            for at, inputs in layer.conv_states.items() if outlives else ():
                if inputs is not None:
                    layer.conv_states[at] = inputs.clone()
