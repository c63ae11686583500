"""The inputs of a batch whose rows accept different numbers of tokens.

All rows write to the same slots of the cache, and a slot without a token of the row is a gap: 0 in
the row's attention mask. A token's place in its text is given by ``position_ids``, not by its slot.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from ngramspec.hf_model.compat.caches import CACHE_NAMES
from ngramspec.hf_model.compat.devices import indices
from ngramspec.hf_model.facts import Facts
from ngramspec.hf_model.inputs import TEXT_POSITIONS, Inputs, KeysOf, given, grow

# Bounds on the slots that are gaps in every row: if they exceed both, the cache is compacted.
MAX_GAP_SHARE = 0.25
MIN_GAP_SLOTS = 32

T = TypeVar("T")


class RaggedInputs(Inputs):
    """The keyword arguments of the next forward of a ragged batch.

    ``keeps``: the cache is used after the call, so no position of a row is given up before.
    """

    ragged = True
    _own: OwnSlots  # after the prefill

    def __init__(self, facts: Facts, *, keeps: bool = False) -> None:
        super().__init__(facts)
        self._keeps = keeps

    def begin(self, prompt: torch.Tensor, slots: int) -> None:
        """Add the mask and positions, after ``slots`` ones of the prefill."""
        own = np.ones((len(prompt), slots), np.bool_)
        if self.kwargs.get(self.mask_name) is None:
            self.kwargs[self.mask_name] = prompt.new_ones(len(prompt), slots + 1)
        else:
            own = self.kwargs[self.mask_name][:, :-1].bool().numpy(force=True)
        self._own = OwnSlots(own, slots if self._keeps else None)
        super().begin(prompt, slots)
        mask = self.kwargs[self.mask_name]
        if self._padding is not None:
            places = torch.arange(mask.shape[1], device=mask.device)
            self.kwargs[TEXT_POSITIONS] = places - self._padding

    def needed_slots(self, window: int) -> int:
        return self._own.needed(window)

    def grown(self, count: int, lengths: Sequence[int] = ()) -> dict[str, Any]:
        return self.kwargs | self._with_gaps(count, lengths, committed=False)

    def commit(self, kept: Sequence[int]) -> None:
        count = max(kept)
        if min(kept) == count:
            self.kwargs |= self._lengthened(count)
        else:
            self.kwargs |= self._with_gaps(count, [each + 1 for each in kept], committed=True)
            self._extended.clear()
        self._own.commit(kept)

    def _with_gaps(
        self, count: int, lengths: Sequence[int], *, committed: bool
    ) -> dict[str, torch.Tensor]:
        return {
            name: grow_ragged(name, value, count, lengths, committed=committed)
            for name, value in given(self.kwargs, self._per_token)
        }

    @property
    def hides(self) -> bool:  # type: ignore[override]
        return not self._own.full

    @property
    def rows_may_leave(self) -> bool:
        """Whether every argument of a forward that depends on rows can be reduced to some rows."""
        known = (*CACHE_NAMES, "cache_position", *self._of_rows)
        others = [value for name, value in self.kwargs.items() if name not in known]
        plain = all(each is None or isinstance(each, bool | int | float | str) for each in others)
        return plain and not self._facts.reads_text

    def keep_rows(self, order: Sequence[int]) -> None:
        self._extended.clear()
        self._passed_on = None
        self.kwargs |= self._selected(order)
        self._own.keep_rows(order)

    def run_ahead(self, leads: Sequence[int]) -> None:
        """Note how many of each row's last tokens ``drop`` may be called for."""
        self._own.leads = leads

    def drop(self, counts: Sequence[int]) -> None:
        """Give up each row's last ``counts`` tokens in the cache."""
        places = self._own.drop(counts)
        self._extended.clear()
        own = indices(counts)
        for name, value in given(self.kwargs, self._per_token):
            changed = self.kwargs[name] = value.clone()
            if name == self.mask_name:
                row, column = indices(places)(value.device)
                changed[row, column] = 0
            elif name.endswith("position_ids"):
                changed[..., -1] -= own(value.device).to(value.dtype)

    def level(self) -> None:
        """Give up what not every row has, after an interrupt."""
        shared = min(self._own.used)
        if max(self._own.used) > shared:
            self.drop([each - shared for each in self._own.used])

    def keys_of(self, slots: int, *, static: bool) -> KeysOf:
        return self._own.columns

    def slots_to_keep(self, slots: int, most: float | None = None) -> torch.Tensor | None:
        """Return the slots that each row keeps if the cache has more than ``most`` gaps, or None.

        By default, ``most`` depends on the number of slots.
        """
        start, used = self._own.start, self._own.start + self._own.most
        if slots - used <= (max(MAX_GAP_SHARE * slots, MIN_GAP_SLOTS) if most is None else most):
            return None
        mask = self.kwargs[self.mask_name][:, start:-1]  # the last token is not in the cache yet
        generated = start + used_slots(mask, used - start)
        prompt = torch.arange(start, device=mask.device).expand(len(mask), -1)
        return torch.cat((prompt, generated), dim=1)

    def compact(self, slots: torch.Tensor) -> None:
        """Keep the columns of the cache positions ``slots``, int64 (batch, kept), in that order."""
        self._extended.clear()
        for name, value in given(self.kwargs, self._per_token):
            index = slots.expand(*value.shape[:-1], slots.shape[1])
            kept = value[..., :-1].gather(-1, index)
            self.kwargs[name] = torch.cat((kept, value[..., -1:]), dim=-1)
        self._own.compact(slots.shape[1])


def grow_ragged(
    name: str, value: torch.Tensor, count: int, lengths: Sequence[int], *, committed: bool
) -> torch.Tensor:
    """Extend an argument by ``count`` positions, some of which are gaps in some rows.

    ``lengths`` are how many columns are each row's own, counted from the last committed token's.
    ``committed``: the last column of the result belongs to each row's last committed token.
    """
    if count == 0:
        return value
    if not name.endswith(("attention_mask", "position_ids")):
        return grow(name, value, count)
    own = indices(lengths)(value.device)[:, None]  # (batch, 1)
    column = torch.arange(1, count + 1, device=value.device)
    if name.endswith("position_ids"):
        steps = torch.minimum(column, own - 1)  # a gap's position stays in the model's range
        return torch.cat((value, value[..., -1:] + steps.to(value.dtype)), dim=-1)
    if committed:  # from the old last column on: columns in the cache, then the new last one
        column = torch.arange(count, device=value.device)
        there = (column < own - 1).to(value.dtype)
        return torch.cat((value[..., :-1], there, value.new_ones(len(value), 1)), dim=-1)
    return torch.cat((value, (column < own).to(value.dtype)), dim=-1)


def used_slots(mask: torch.Tensor, used: int) -> torch.Tensor:
    """Return the slots of each row's own positions, ascending, after gaps in shorter rows."""
    order = mask.to(torch.int64).argsort(dim=1, stable=True)  # gaps first, then the row's own
    return order[:, mask.shape[1] - used :]


class OwnSlots:
    """Which slots of the cache hold a token of each row in a ragged batch; kept on the host.

    Attributes:
        start: how many slots of the prompt, padding included, stay in place; 0: none has to.
        used: each row's tokens in the others.
        leads: how many of each row's last tokens may be dropped; empty: none.

    Args:
        mask: the slots of the prefill, (rows, slots).
        prompt: how many of them the cache keeps, with all rows' texts, until the end; None: none.
    """

    def __init__(self, mask: NDArray[np.bool_], prompt: int | None = None) -> None:
        self._mask, self.start, self._keeps = mask, prompt or 0, prompt is not None
        self._unfinished = np.ones(len(mask), np.bool_)  # rows that have not ended
        self.used: list[int] = mask[:, self.start :].sum(axis=1).tolist()
        self.leads: Sequence[int] = ()
        self.full = bool(mask.all())  # whether all slots hold a token of every row

    @property
    def most(self) -> int:
        """Tokens of the row that has most of them and is still needed."""
        needed = [n for n, going in zip(self.used, self._unfinished, strict=True) if going]
        return max(self.used if self._keeps or not needed else needed)

    def commit(self, kept: Sequence[int]) -> None:
        """Add the positions of a forward that stay, for each row; 0 if the row has ended."""
        counts = np.array(kept)
        own = np.arange(max(kept)) < counts[:, None]
        self._mask = np.concatenate((self._mask, own), axis=1)
        self.full = self.full and bool(own.all())
        self._unfinished = counts > 0
        self.used = [tokens + more for tokens, more in zip(self.used, kept, strict=True)]

    def drop(self, counts: Sequence[int]) -> tuple[list[int], list[int]]:
        """Make gaps of each row's last ``counts`` tokens; return their rows and slots."""
        rows, slots = list[int](), list[int]()
        for row, count in enumerate(counts):
            if count:
                places = np.flatnonzero(self._mask[row])[-count:].tolist()
                self._mask[row, places] = False
                rows += [row] * count
                slots += places
        self.full = False
        self.used = [each - count for each, count in zip(self.used, counts, strict=True)]
        return rows, slots

    def columns(self, row: int, path: Sequence[int]) -> list[int]:
        """The prompt's slots, the row's others, and positions of a forward after these."""
        own, slots = np.flatnonzero(self._mask[row, self.start :]), self._mask.shape[1]
        return [*range(self.start), *(self.start + own).tolist(), *(slots + at for at in path)]

    def compact(self, slots: int) -> None:
        """Move each row's tokens to the end of ``slots`` slots, those of the prompt excepted."""
        others = slots - self.start
        self.used = [min(each, others) for each in self.used]
        own = np.arange(others) >= others - np.array(self.used)[:, None]
        self._mask = np.concatenate((self._mask[:, : self.start], own), axis=1)
        self.full = bool(self._mask.all())

    def keep_rows(self, order: Sequence[int]) -> None:
        self._mask, self._unfinished = self._mask[list(order)], self._unfinished[list(order)]
        self.used = [self.used[place] for place in order]
        self.full = bool(self._mask.all())

    def needed(self, window: int) -> int:
        """Return how many of the last slots hold ``window - 1`` tokens of each unfinished row."""
        masks = self._mask if self._keeps else self._mask[self._unfinished]
        if not len(masks) or window == 1:
            return 0
        more = np.array(self.leads)[:, None] if self._keeps and len(self.leads) else 0
        fewer = masks[:, ::-1].cumsum(axis=1) < window - 1 + more
        most: int = masks.shape[1]
        return min(int(fewer.sum(axis=1).max()) + 1, most)


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
        return states.index_select(0, indices(places)(states.device))

    def keep(self, rows: Collection[int]) -> list[int]:
        """Remove all other rows; return for each new place the place where its row was."""
        stay = [row in rows for row in self._rows]
        kept = sum(stay)
        movable = [place for place in range(kept, len(stay)) if stay[place]]
        order = [place if stay[place] else movable.pop() for place in range(kept)]
        self._rows = [self._rows[place] for place in order]
        return order
