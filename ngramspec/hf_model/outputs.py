"""What a generation keeps of its forwards besides tokens: outputs to return, states for heads."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import numpy as np
import torch

from ngramspec.draft import Int64
from ngramspec.hf_model.compat.caches import cache_argument
from ngramspec.hf_model.compat.devices import Indices, indices
from ngramspec.hf_model.compat.factories import output_class
from ngramspec.hf_model.compat.hooks import call_after
from ngramspec.hf_model.facts import Facts
from ngramspec.hf_model.inputs import KeysOf


class OutputRecorder:
    """Keeps the requested attentions and hidden states of committed tokens, and returns them."""

    def __init__(self, facts: Facts) -> None:
        self._encodes, self._streams_first = facts.encodes, facts.streams_first
        self._prompt: dict[str, Any] = {}  # by name: the layers of the prefill
        # By name, and then by row: the layers of each position.
        self._rows: dict[str, list[list[Any]]] = {
            name: [[] for _ in range(facts.rows)] for name in facts.states
        }

    def keep_prefill(self, outputs: Any) -> None:
        """Keep the states of the prompt, as one entry."""
        self._prompt = {name: getattr(outputs, name) for name in self._rows}

    def keep(
        self, outputs: Any, paths: Sequence[Sequence[int]], keys_of: KeysOf, *, whole: bool
    ) -> None:
        """Keep the states of each row's accepted positions of a forward.

        ``whole``: it read all tokens again. Otherwise a part is a copy, because a view would keep
        the states of the whole forward in memory.
        """
        for name, rows in self._rows.items():
            layers = getattr(outputs, name)
            for row, path in enumerate(paths):
                for at, position in enumerate(path):
                    if not layers:  # None or empty: not computed
                        rows[row].append(layers)
                        continue
                    keys, axis = None, self._axis(name, layers[0])
                    if "attentions" in name and name != "cross_attentions":
                        own_keys = keys_of(row, path[: at + 1])
                        keys = None if own_keys is None else indices(own_keys)
                    own = [each.narrow(axis, row, 1) for each in layers]
                    if not whole:
                        own = [self._of_position(name, each, position, keys) for each in own]
                    rows[row].append(tuple(own))

    def drop(self, counts: Sequence[int]) -> None:
        """Forget the last ``counts`` positions of each row."""
        for rows in self._rows.values():
            for kept, count in zip(rows, counts, strict=True):
                del kept[len(kept) - count :]

    def _axis(self, name: str, layer: torch.Tensor) -> int:
        """Return the dimension of rows."""
        return int("attentions" not in name and layer.ndim == 4 and self._streams_first)

    def _of_position(
        self, name: str, layer: torch.Tensor, position: int, keys: Indices | None
    ) -> torch.Tensor:
        """Return a copy of one position's part of a layer's states, as its own forward would."""
        if "attentions" not in name:
            axis = 1 if layer.ndim == 4 and not self._streams_first else -2
            return layer.narrow(axis, position, 1).clone()
        part = layer[:, :, position : position + 1]
        return part.clone() if keys is None else part.index_select(-1, keys(part.device))

    def _of_name(self, name: str) -> Iterator[Any]:
        """Yield the layers of the prompt and of each position, of all rows together."""
        yield self._prompt[name]
        for parts in zip(*self._rows[name], strict=True):
            if not parts[0]:
                yield parts[0]
            else:
                axis = self._axis(name, parts[0][0])
                yield tuple(torch.cat(layer, dim=axis) for layer in zip(*parts, strict=True))

    def output(
        self,
        cache: Any,
        kwargs: dict[str, Any],
        sequences: torch.Tensor,
        scores: list[torch.Tensor] | None,
        logits: list[torch.Tensor] | None,
        ranking: dict[str, Any] | None,
    ) -> Any:
        """Build the return value of ``generate``, with the output fields of a beam search."""
        states = {name: tuple(self._of_name(name)) for name in self._rows}
        encoder = kwargs.get("encoder_outputs") if self._encodes else None
        if encoder is not None:
            for name in ("attentions", "hidden_states"):
                if kwargs.get(f"output_{name}"):
                    states[f"encoder_{name}"] = encoder.get(name)
        kind = output_class(beams=ranking is not None, encodes=self._encodes)
        return kind(
            **(ranking or {}),
            sequences=sequences,
            scores=None if scores is None else tuple(scores),
            logits=None if logits is None else tuple(logits),
            **cache_argument(cache),
            **states,
        )


# States for heads


class _Thread(threading.local):
    """The states that one thread's forwards collect, by module: its inputs and its outputs."""

    def __init__(self) -> None:
        self.inputs: dict[Any, list[torch.Tensor]] = {}
        self.outputs: dict[Any, list[torch.Tensor]] = {}


_thread = _Thread()


def _keep_input(module: Any, args: tuple[Any, ...], _: Any) -> None:
    if module in _thread.inputs:
        _thread.inputs[module] += args[:1]


def _keep_output(module: Any, _: Any, output: Any) -> None:
    if module in _thread.outputs:
        states = getattr(output, "last_hidden_state", None)
        _thread.outputs[module].append(output[0] if states is None else states)


@contextmanager
def _collected(by_module: dict[Any, list[torch.Tensor]], module: Any) -> Iterator[Any]:
    """Collect a module's states in this thread; other threads may run the same model."""
    by_module[module] = []
    try:
        yield by_module[module]
    finally:
        del by_module[module]


def head_inputs(model: Any) -> AbstractContextManager[list[torch.Tensor]]:
    """Collect the inputs of the model's head, (batch, positions, d), in this thread's forwards."""
    head = model.get_output_embeddings()
    if not isinstance(head, torch.nn.Module):
        return nullcontext([])
    call_after(head, _keep_input)
    return _collected(_thread.inputs, head)


class StateChannel:
    """The decoder's last hidden states of each row, until its head takes them."""

    def __init__(self, model: Any, mask: Int64 | None, rows: int) -> None:
        self._decoder, self._mask = model.get_decoder(), mask
        self._kept: list[list[torch.Tensor]] = [[] for _ in range(rows)]
        self._found: list[torch.Tensor] = []
        self._last: torch.Tensor | None = None  # (batch, positions, d) of the last forward

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Collect the states of this thread's forwards inside the block."""
        self._last = None
        call_after(self._decoder, _keep_output)
        with _collected(_thread.outputs, self._decoder) as self._found:
            yield

    def keep_prompt(self, drafted: int) -> None:
        """Keep the prompt's states; those of its last token and of a draft only if accepted.

        There are none if the user compiled the forward before: such a graph calls no hook.
        """
        if not self._found:
            return
        states = torch.cat(self._found, dim=1)
        last = states.shape[1] - drafted
        for row, kept in enumerate(self._kept):
            own = states[row, :last]
            if self._mask is not None and self._mask.shape[1] >= last:
                there = np.flatnonzero(self._mask[row, -last:])
                own = own.index_select(0, indices(there.tolist())(own.device))
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
                own = self._last[row]
                self._kept[row].append(own.index_select(0, indices(positions)(own.device)))
        self._last = None

    def take(self, row: int) -> list[torch.Tensor]:
        """A row's states since the last time, each (positions, d)."""
        taken, self._kept[row] = self._kept[row], []
        return taken
