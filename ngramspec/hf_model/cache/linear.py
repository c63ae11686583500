"""Linear layers: the inputs of convolutions are cut off, and recurrent states are restored.

The convolution of a linear layer keeps only its last inputs, one for each element of the kernel. To
allow positions to be rejected, a layer of transformers can record (``activate_past_recording``): it
then appends all inputs of a forward to those that it held before.

A recurrent state has no positions that could be cut off: each forward overwrites it. So before a
forward with a draft, ``Checkpoint`` copies the states. If the whole draft is accepted, nothing is
rolled back. Otherwise the copies are restored, the attention layers are truncated to the same
length, and the accepted tokens become ``Pending``: the next forward runs them again, before the
last committed token and its draft. No step has more than one forward.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch

from ngramspec.hf_model.cache.layers import CacheLayer, Needed

# Tokens. Once this number is pending, the next step has no draft and accepts all of them.
MAX_PENDING_TOKENS = 8
# The limit if the cost of running pending tokens again is part of each draft's cost.
MAX_PRICED_PENDING_TOKENS = 32


class LinearAttention(CacheLayer):
    """A convolution, and a recurrent state if the model is ``recurrent``.

    The states of both are dicts by an index, with None before the first forward. The inputs of a
    convolution are (batch, channels, positions).
    """

    convolves = True

    def __init__(self, layer: Any, *, recurrent: bool = False) -> None:
        super().__init__(layer)
        self._recurrent = recurrent  # its states are rolled back by a Checkpoint
        self.gap_obstacle = "a recurrent state" if recurrent else "convolutions over positions"

    @classmethod
    def supports(cls, layer: Any) -> bool:
        return hasattr(layer, "activate_past_recording") and isinstance(layer.conv_states, dict)

    def forgets(self, length: int) -> bool:
        return True

    def record(self) -> None:
        if not self._recurrent:
            self.layer.activate_past_recording()

    def truncate(self, count: int, needed: Needed) -> None:
        """See CacheLayer. The checkpoint restores inputs of positions that are dropped.

        A hybrid layer that records for its window records the convolution's inputs, too.
        """
        if not self._recurrent:
            self._cut(count)
        elif self.layer.record_past:
            self._cut(0)

    def _cut(self, count: int) -> None:
        layer = self.layer
        for at, inputs in layer.conv_states.items():
            if inputs is not None:
                stay = inputs[..., : inputs.shape[-1] - count]
                layer.conv_states[at] = stay[..., -layer.conv_kernel_size[at] :]

    def truncate_to(self, length: int) -> None:
        """See CacheLayer. Layers that do not record overwrite their inputs, as in the baseline."""
        layer = self.layer
        for at, inputs in () if self._recurrent else layer.conv_states.items():
            if not length:
                layer.has_previous_state[at] = layer.is_conv_states_initialized[at] = False
                layer.conv_states[at] = None
            elif layer.record_past and layer.is_conv_states_initialized[at]:
                layer.conv_states[at] = inputs[..., : layer.conv_kernel_size[at]]

    def states(self) -> Iterator[torch.Tensor]:
        for states in (self.layer.conv_states, self.layer.recurrent_states):
            yield from (each for each in states.values() if each is not None)

    def release(self, *, outlives: bool) -> None:
        """See CacheLayer. Calls outside inference mode may write to a cache that outlives it."""
        if self._recurrent:
            return
        self.layer.record_past = False
        for at, inputs in self.layer.conv_states.items() if outlives else ():
            if inputs is not None:
                with torch.inference_mode(False):
                    self.layer.conv_states[at] = inputs.clone()


class Checkpoint:
    """A copy of the states of linear layers, in memory that is reused at each ``save``."""

    def __init__(self, layers: Sequence[Any]) -> None:
        self._layers = layers
        self._copies: dict[tuple[int, int, int], torch.Tensor] = {}
        self._flags: list[list[dict[int, bool]]] = []
        self._saved: list[tuple[int, int, int]] = []  # keys of the states that existed at ``save``

    @property
    def nbytes(self) -> int:
        """Bytes used by the copies."""
        return sum(each.numel() * each.element_size() for each in self._copies.values())

    def save(self) -> None:
        """Copy the current states."""
        self._saved, states = [], []
        for key, state in self._states():
            if key not in self._copies or self._copies[key].shape != state.shape:
                self._copies[key] = torch.empty_like(state)
            self._saved.append(key)
            states.append(state)
        self._flags = [[dict(flags) for flags in _flags_of(each)] for each in self._layers]
        if states:
            torch._foreach_copy_([self._copies[key] for key in self._saved], states)

    def restore(self) -> bool:
        """Restore the states in place, as they were at ``save``; return whether there is a copy."""
        if not self._flags:
            return False
        there, now = [], dict(self._states())
        for key in self._saved:
            at, kind, index = key
            if key not in now or now[key].shape != self._copies[key].shape:
                with torch.inference_mode(False):  # calls outside inference mode may write to it
                    now[key] = torch.empty_like(self._copies[key])
                states_of(self._layers[at])[kind][index] = now[key]
            there.append(now.pop(key))
        for at, kind, index in now:  # the first forward created these
            states_of(self._layers[at])[kind][index] = None
        for layer, saved in zip(self._layers, self._flags, strict=True):
            for flags, values in zip(_flags_of(layer), saved, strict=True):
                flags.update(values)
        if there:  # states that an earlier call made in inference mode are written to only in it
            with torch.inference_mode(any(each.is_inference() for each in there)):
                torch._foreach_copy_(there, [self._copies[key] for key in self._saved])
        return True

    def discard(self) -> None:
        """Drop the copy."""
        self._flags = []

    def _states(self) -> Iterator[tuple[tuple[int, int, int], torch.Tensor]]:
        """Yield all existing states, each with a key of its layer, kind and index."""
        for at, layer in enumerate(self._layers):
            for kind, states in enumerate(states_of(layer)):
                for index, state in states.items():
                    if state is not None:
                        yield (at, kind, index), state


def states_of(layer: Any) -> tuple[dict[int, Any], dict[int, Any]]:
    """Return the inputs of a linear layer's convolutions, and its recurrent states."""
    return layer.conv_states, layer.recurrent_states


def _flags_of(layer: Any) -> tuple[dict[int, bool], ...]:
    """Return the flags that say which states of a linear layer exist."""
    return (
        layer.is_conv_states_initialized,
        layer.is_recurrent_states_initialized,
        layer.has_previous_state,
    )


class Pending:
    """Accepted tokens before each row's last committed one that the cache does not hold."""

    def __init__(self) -> None:
        self.most = MAX_PENDING_TOKENS  # once this number is pending, the next forward has no draft
        self.tokens: torch.Tensor | None = None  # int64 (batch, n)
        self._before: torch.Tensor | None = None

    def __len__(self) -> int:
        return 0 if self.tokens is None else self.tokens.shape[1]

    @property
    def full(self) -> bool:
        """Whether the next forward must have no draft, so that all pending tokens are accepted."""
        return len(self) >= self.most

    def keep(self, block: torch.Tensor, count: int, origins: Sequence[int] = ()) -> None:
        """Make the first tokens of a block's rows, int64 (batch, width), pending."""
        rows = block[list(origins)] if origins else block
        self.tokens = rows[:, :count] if count else None

    def in_front(
        self, block: torch.Tensor, committed: torch.Tensor | None
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Return a block with the pending tokens before it, and all tokens up to its first."""
        if self.tokens is not None:
            block = torch.cat((self.tokens, block), dim=1)
        if committed is not None:
            committed = committed[:, : committed.shape[1] - len(self)]
        self._before = committed
        return block, committed

    def text(self) -> torch.Tensor | None:
        """Return the ``committed`` argument of ``in_front`` for an empty block, or None."""
        if self._before is None or self.tokens is None:
            return None
        pending = torch.cat((self.tokens, self.tokens[:, -1:]), dim=1).to(self._before.dtype)
        return torch.cat((self._before[:, :-1], pending), dim=1)
