"""The rows of a batch that its forwards still run, after finished rows have left.

A row from the end of the batch fills the place of a row that leaves, so that few rows of the cache
are copied.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, TypeVar

import torch

from ngramspec.hf_model.compat.classes import captures_states

T = TypeVar("T")


def select_rows(value: Any, rows: Sequence[int], dim: int) -> Any:
    """Select rows of a tensor, or of each tensor in a model's outputs."""
    if isinstance(value, torch.Tensor):
        index = torch.tensor(rows, device="cpu").to(value.device, non_blocking=True)
        return value.index_select(dim, index)
    if isinstance(value, dict):
        return type(value)(**{name: select_rows(each, rows, dim) for name, each in value.items()})
    if isinstance(value, tuple | list):
        return type(value)(select_rows(each, rows, dim) for each in value)
    return value


def has_hooks(model: Any) -> bool:
    """Whether a module has forward hooks, which may rely on every row of the batch.

    Adapters that are chosen by row use such hooks (``adapter_names`` of PEFT). Hooks that ngramspec
    sets for a single forward do not count; another thread may have set them. transformers' hooks
    that capture states do not count either. They stay on a model after the first call that asked
    for states, and do nothing in calls that ask for none.
    """
    return any(
        not captures_states(hook)
        for module in model.modules()
        for hook in (*module._forward_pre_hooks.values(), *module._forward_hooks.values())
        if not str(getattr(hook, "__module__", "")).startswith("ngramspec.hf_model.")
    )


class PresentRows:
    """The present rows of a batch, at first all, by their place in the forwards."""

    def __init__(self, rows: int) -> None:
        self._count = rows
        self._rows = list(range(rows))  # the row at each place

    def __len__(self) -> int:
        return len(self._rows)

    def of(self, values: Sequence[T]) -> Sequence[T]:
        """Select the present rows' values, by place, from one value for each row of the batch."""
        return [values[row] for row in self._rows]

    def select(self, block: torch.Tensor) -> torch.Tensor:
        """Select the present rows of (batch, ...), by place."""
        return block[self._rows]

    def spread(self, states: torch.Tensor) -> torch.Tensor:
        """Expand (present, ...) to (batch, ...); rows that have left repeat the first place."""
        places = [0] * self._count
        for place, row in enumerate(self._rows):
            places[row] = place
        index = torch.tensor(places, device="cpu").to(states.device, non_blocking=True)
        return states.index_select(0, index)

    def keep(self, rows: Collection[int]) -> list[int]:
        """Remove all other rows; return for each new place the place where its row was.

        Example:
            >>> present = PresentRows(5)
            >>> present.keep([0, 3, 4]), present.of("abcde")
            ([0, 4, 3], ['a', 'e', 'd'])
        """
        stay = [row in rows for row in self._rows]
        kept = sum(stay)
        movable = [place for place in range(kept, len(stay)) if stay[place]]
        order = [place if stay[place] else movable.pop() for place in range(kept)]
        self._rows = [self._rows[place] for place in order]
        return order
