"""Access to undocumented fields of transformers' cache layers.

Tests check them against the installed version (``FIELDS`` in ``tests/transformers_names.py``).

A layer with attention has keys and values of (batch, heads, positions, size) each. A linear layer
has the last inputs of one or more convolutions, (batch, channels, positions) each, and may have
recurrent states; both are dicts by the index of the convolution or state. A hybrid layer has all of
these.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from ngramspec.errors import UnsupportedError
from ngramspec.hf_model.compat.classes import EMPTY, SLIDING, STATIC, STATIC_SLIDING, kind_of

States = dict[int, Any]  # a tensor, or None before the first forward
Update = Callable[..., Any]


# Caches


def decoder_cache(cache: Any) -> Any:
    """Return the self-attention cache in an encoder-decoder model's cache, or ``cache`` itself."""
    return getattr(cache, "self_attention_cache", cache)


def stores(layer: Any) -> bool:
    """Whether a layer stores any states itself."""
    return kind_of(layer) != EMPTY


def storing(cache: Any) -> list[Any]:
    """Return the layers of a cache that store states of their own; none if it has no layers."""
    return [layer for layer in getattr(cache, "layers", ()) if stores(layer)]


@contextmanager
def layers_restored(cache: Any) -> Iterator[None]:
    """Give a cache its own layers back if the block refuses a call; see ``widen_static``."""
    layers = getattr(decoder_cache(cache), "layers", [])
    own = list(layers)
    try:
        yield
    except UnsupportedError:
        layers[:] = own
        raise


def cross_layers(cache: Any) -> Sequence[Any]:
    """Return the layers of cross-attention in an encoder-decoder model's cache."""
    cross = getattr(cache, "cross_attention_cache", None)
    return storing(cross)


def is_offloaded(cache: Any) -> bool:
    """Whether a cache moves its layers to the CPU."""
    return bool(getattr(cache, "offloading", False))


def replace_update(owner: Any, update: Update) -> Update | None:
    """Replace the ``update`` of one layer or cache.

    Return the function that an earlier replacement had set, for ``restore_update``, or None.
    """
    own: Update | None = vars(owner).get("update")
    owner.update = update
    return own


def restore_update(owner: Any, own: Update | None) -> None:
    """Undo ``replace_update``, given what it returned."""
    if own is None:
        vars(owner).pop("update", None)
    else:
        owner.update = own


# Layers with attention


def widen_windows(cache: Any) -> None:
    """Replace the windowed layers of an empty dynamic cache by ones that forget nothing.

    The model's masks hide what is outside a window.
    """
    from transformers.cache_utils import DynamicLayer

    for at, layer in enumerate(cache.layers):
        if kind_of(layer) == SLIDING:
            cache.layers[at] = DynamicLayer()


def crop_attention(layer: Any, count: int) -> None:
    """Drop the last ``count`` keys and values of a hybrid layer, but not its convolution's inputs.

    The layer's own ``crop`` drops both.
    """
    from transformers.cache_utils import DynamicLayer

    DynamicLayer.crop(layer, -count)


def crop_window(layer: Any, count: int, keep: int) -> None:
    """Drop the last ``count`` positions of a sliding layer, and all but the ``keep`` last others.

    With ``keep`` one less than the window, this is what the layer's own ``crop`` does.
    """
    if layer.is_initialized:
        end = layer.keys.shape[2] - count
        kept = slice(max(end - keep, 0), end)
        layer.keys, layer.values = layer.keys[:, :, kept], layer.values[:, :, kept]
        layer.cumulative_length -= count


def dropped(layer: Any) -> int:
    """Return how many positions a layer no longer holds, all of them before those that it holds."""
    if not layer.is_sliding or not layer.is_initialized:
        return 0
    return int(layer.cumulative_length) - int(layer.keys.shape[2])


def set_length(layer: Any, length: int) -> None:
    """Set how many positions a sliding layer has seen, including those that it no longer holds."""
    layer.cumulative_length = length


def records_past(layer: Any) -> bool:
    """Whether a sliding or linear layer keeps what it would overwrite; True if it always does."""
    return bool(getattr(layer, "record_past", True))


def stop_recording(layer: Any) -> None:
    """Make a sliding or linear layer overwrite its oldest states again."""
    layer.record_past = False


def empty_sliding(layer: Any) -> None:
    """Drop all keys and values of a sliding layer."""
    layer.keys = layer.values = None
    layer.is_initialized, layer.cumulative_length = False, 0


def resize_static(layer: Any, capacity: int) -> None:
    """Resize an empty static layer to ``capacity`` positions."""
    layer.max_cache_len = capacity
    _allocate_like(layer, layer)


def _allocate_like(layer: Any, other: Any) -> None:
    """Allocate an empty static layer if another one is allocated (before a prefill in chunks)."""
    if other.is_initialized:
        layer.lazy_initialization(other.keys[:, :, :0], other.values[:, :, :0])


def widen_static(cache: Any, capacity: int) -> None:
    """Replace the windowed layers of an empty static cache by layers of full length.

    A windowed one overwrites its oldest positions. Masks hide them in a layer that keeps them.
    """
    from transformers.cache_utils import StaticLayer

    # All layers get one length, because transformers makes their masks for the first layer's.
    full = [layer.max_cache_len for layer in cache.layers if kind_of(layer) == STATIC]
    capacity = max(full, default=capacity)
    for at, layer in enumerate(cache.layers):
        if kind_of(layer) == STATIC_SLIDING:
            cache.layers[at] = StaticLayer(max_cache_len=capacity)
            _allocate_like(cache.layers[at], layer)


def shorten_static(layers: Sequence[Any], count: int) -> None:
    """Drop the last ``count`` positions of static layers, whose states are not changed.

    The lengths are changed in place, because CUDA graphs hold their addresses. A cache that was
    made in inference mode allows this only in that mode.
    """
    with torch.inference_mode():
        torch._foreach_sub_([layer.cumulative_length for layer in layers], count)


# Layers with an index of their keys


def index_keys(layer: Any) -> torch.Tensor | None:
    """Return the keys of a layer's index, (batch, length, size); None: no index or no keys yet."""
    return getattr(layer, "indexer_keys", None)


def reorder_index(layer: Any, origins: Sequence[int]) -> None:
    """Let each row continue another one's positions in a layer's index, if it stores any."""
    places = getattr(layer, "indexer_position_ids", None)
    if places is not None:  # (dimensions, rows, length), maybe expanded from fewer rows
        layer.indexer_position_ids = places[:, list(origins)]


def truncate_indexed(layer: Any, length: int) -> None:
    """Drop all positions of an indexed layer from ``length`` on, after an interrupted forward.

    A forward adds keys and their index one after the other, in an order that depends on the model.
    An interrupt in between leaves them with different lengths, so a crop by a count would be wrong.
    """
    if layer.keys is not None:
        layer.keys, layer.values = layer.keys[:, :, :length], layer.values[:, :, :length]
    if layer.indexer_keys is not None:
        layer.indexer_keys = layer.indexer_keys[:, :length]
    places = getattr(layer, "indexer_position_ids", None)
    if places is not None:
        layer.indexer_position_ids = places[..., :length]


# Linear layers


def is_linear(layer: Any) -> bool:
    """Whether a layer has a convolution or a recurrent state."""
    return hasattr(layer, "conv_states")


def may_record(layer: Any) -> bool:
    """Whether a layer can be told to keep what it would overwrite."""
    return hasattr(layer, "record_past")


def can_record(layer: Any) -> bool:
    """Whether a linear layer can keep what it would overwrite."""
    return hasattr(layer, "activate_past_recording") and isinstance(layer.conv_states, dict)


def linear_states(layer: Any) -> tuple[States, States]:
    """Return the inputs of a linear layer's convolutions, and its recurrent states."""
    return layer.conv_states, layer.recurrent_states


def linear_flags(layer: Any) -> tuple[dict[int, bool], ...]:
    """Return the flags that say which states of a linear layer exist."""
    return (
        layer.is_conv_states_initialized,
        layer.is_recurrent_states_initialized,
        layer.has_previous_state,
    )


def truncate_convolutions(layer: Any, count: int) -> None:
    """Drop the inputs of the last ``count`` positions, and those no longer needed."""
    for at, inputs in layer.conv_states.items():
        stay = inputs[..., : inputs.shape[-1] - count]
        layer.conv_states[at] = stay[..., -layer.conv_kernel_size[at] :]


def undo_convolutions(layer: Any) -> None:
    """Drop all inputs of an interrupted forward, which may not have reached every layer.

    Layers that do not record have overwritten their inputs, as in the baseline.
    """
    for at, inputs in layer.conv_states.items():
        if records_past(layer) and layer.is_conv_states_initialized[at]:
            layer.conv_states[at] = inputs[..., : layer.conv_kernel_size[at]]


def clear_convolutions(layer: Any) -> None:
    """Drop all inputs, as before the first forward."""
    for at in layer.has_previous_state:
        layer.has_previous_state[at] = False
        layer.is_conv_states_initialized[at] = False
        layer.conv_states[at] = None


def copy_convolutions(layer: Any) -> None:
    """Replace the inputs by copies that calls outside inference mode may write to."""
    for at, inputs in layer.conv_states.items():
        if inputs is not None:
            with torch.inference_mode(False):
                layer.conv_states[at] = inputs.clone()
