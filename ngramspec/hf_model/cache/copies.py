"""Copies of what a cache cannot compute again: recurrent states, and snapshots at one length.

A recurrent state has no positions that could be cut off: each forward overwrites it. So before a
forward with a draft, ``Checkpoint`` copies the states. If the whole draft is accepted, nothing is
rolled back. Otherwise the copies are restored, the attention layers are truncated to the same
length, and the accepted tokens become ``Pending``: the next forward runs them again, before the
last committed token and its draft. No step has more than one forward.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from ngramspec.hf_model.cache.kinds import states_of
from ngramspec.hf_model.cache.layers import parts_of
from ngramspec.hf_model.compat import caches
from ngramspec.hf_model.compat.devices import indices

# Tokens. Once this number is pending, the next step has no draft and accepts all of them.
MAX_PENDING_TOKENS = 8
# The limit if the cost of running pending tokens again is part of each draft's cost.
MAX_PRICED_PENDING_TOKENS = 32


class Checkpoint:
    """A copy of the states of linear layers, in memory that is reused at each ``save``."""

    def __init__(self, layers: Sequence[Any]) -> None:
        self._layers = layers
        self._memory: dict[tuple[int, int], torch.Tensor] = {}  # by place in ``_saved`` and index
        self._saved: list[dict[int, Any]] = []  # what ``_dicts`` yielded

    def save(self) -> None:
        self._saved, states, copies = [dict(each) for each in self._dicts()], [], []
        for at, saved in enumerate(self._saved):
            for index, state in saved.items():
                if isinstance(state, torch.Tensor):
                    kept = self._memory.get((at, index))
                    if kept is None or kept.shape != state.shape:
                        kept = self._memory[at, index] = torch.empty_like(state)
                    saved[index] = kept
                    states.append(state)
                    copies.append(kept)
        if states:
            torch._foreach_copy_(copies, states)

    def restore(self) -> bool:
        """Restore the states in place, as they were at ``save``; return whether there is a copy."""
        states, copies = [], []
        for own, saved in zip(self._dicts(), self._saved, strict=False):
            for index, kept in saved.items():
                if not isinstance(kept, torch.Tensor):
                    own[index] = kept
                    continue
                if own[index] is None or own[index].shape != kept.shape:
                    with torch.inference_mode(False):  # calls outside of it may write to it
                        own[index] = torch.empty_like(kept)
                states.append(own[index])
                copies.append(kept)
        if states:  # those that an earlier call made in inference mode are written to only in it
            with torch.inference_mode(any(each.is_inference() for each in states)):
                torch._foreach_copy_(states, copies)
        return bool(self._saved)

    def discard(self) -> None:
        self._saved = []

    def _dicts(self) -> Iterator[dict[int, Any]]:
        """Yield each layer's states and the flags that say which of them exist, by index."""
        for each in self._layers:
            yield from states_of(each)
            yield from (each.is_conv_states_initialized, each.is_recurrent_states_initialized)
            yield each.has_previous_state


class Pending:
    """Accepted tokens before each row's last committed one that the cache does not hold."""

    def __init__(self) -> None:
        self.max_tokens = MAX_PENDING_TOKENS  # of those pending; then the next forward has no draft
        self.tokens: torch.Tensor | None = None  # int64 (batch, n)
        self._before: torch.Tensor | None = None

    def __len__(self) -> int:
        return 0 if self.tokens is None else self.tokens.shape[1]

    def price(self) -> None:
        """Allow more, because each draft's cost includes that of running them again."""
        self.max_tokens = MAX_PRICED_PENDING_TOKENS

    @property
    def full(self) -> bool:
        """Whether the next forward must have no draft, so that all pending tokens are accepted."""
        return len(self) >= self.max_tokens

    def keep(self, block: torch.Tensor, count: int, origins: Sequence[int] = ()) -> None:
        """Make the first tokens of a block's rows, int64 (batch, width), pending."""
        rows = block.index_select(0, indices(origins)(block.device)) if origins else block
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


# Caches that later calls use


def cuts_anywhere(cache: Any) -> bool:
    """Whether a cache's layers hold every position, so that it can be cropped to any length."""
    return not any(each.convolves or each.first for each in parts_of(cache))


def copies_anywhere(cache: Any) -> bool:
    """Whether the first positions of a cache, of any number, can be copied."""
    return all(each.croppable for each in parts_of(cache))


def forgets(cache: Any, length: int) -> bool:
    """Whether a layer of a cache of ``length`` positions does not hold all of them."""
    return any(each.forgets(length) for each in parts_of(cache))


def copy_positions(cache: Any, source: Any, length: int, layers: Sequence[int] = ()) -> None:
    """Give ``cache``, empty or ``source``, the first positions of some or all layers."""
    caches.add_layers(cache, len(source.layers))
    for at, layer in enumerate(source.layers):
        if (layers and at not in layers) or caches.kind_of(layer) == caches.EMPTY:
            continue
        if cache is source:
            layer.crop(min(length - int(layer.get_seq_length()), 0))
        elif layer.is_initialized:
            cache.layers[at].update(layer.keys[:, :, :length], layer.values[:, :, :length])


class Snapshot:
    """The state of a dynamic cache with one row at one length, but for croppable layers."""

    def __init__(self, cache: Any) -> None:
        self.length = int(cache.get_seq_length())  # positions in the cache
        kept = {id(each.layer) for each in parts_of(cache) if not each.croppable}
        self._layers = {
            at: _copied(layer) for at, layer in enumerate(cache.layers) if id(layer) in kept
        }

    @property
    def nbytes(self) -> int:
        return sum(map(memory, self._layers.values()))

    def restore(self, cache: Any, source: Any) -> None:
        """Give ``cache``, empty or ``source``, the first ``length`` positions of ``source``."""
        caches.add_layers(cache, len(source.layers))
        for at, layer in self._layers.items():
            cache.layers[at] = _copied(layer)
        others = [at for at in range(len(source.layers)) if at not in self._layers]
        if others:
            copy_positions(cache, source, self.length, others)


def memory(layer: Any) -> int:
    """Return the bytes of a layer's tensors, including their unused capacity in their rows."""
    return sum(
        _in_rows(each)
        for value in vars(layer).values()
        for each in (value.values() if isinstance(value, dict) else (value,))
        if isinstance(each, torch.Tensor)
    )


def _in_rows(states: torch.Tensor) -> int:
    """Return the bytes of the rows that a tensor is or views, with their unused capacity."""
    whole: int = states.untyped_storage().nbytes()
    if states.ndim == 0:
        return whole
    return min(whole, len(states) * states.stride(0) * states.element_size())


def _copied(layer: Any) -> Any:
    """Return a copy of a layer that does not record what it overwrites."""
    twin = copy.deepcopy(layer)
    if hasattr(twin, "record_past"):
        twin.record_past = False
    return twin
