"""The inputs of a generation's forwards, built from the committed tokens and a draft.

In a ragged batch, rows accept different numbers of tokens. All rows write to the same slots of the
cache, and a slot without a token of the row is a gap: 0 in the row's attention mask. A token's
place in its text is given by ``position_ids``, not by its slot. The last column of every tensor
with a value for each token belongs to the last committed token, which is not in the cache yet.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from contextlib import AbstractContextManager
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from ngramspec.hf_model.attention import (
    Masks,
    Trees,
    added,
    attended,
    query_positions,
    tree_mask,
    tree_positions,
)
from ngramspec.hf_model.compat import names
from ngramspec.hf_model.compat.caches import CACHE_NAMES, cache_argument
from ngramspec.hf_model.facts import Facts

# Positions in the text by cache slot, counted from where the padding ends: kept in ragged batches
# of models with windows, and not passed to the model.
TEXT_POSITIONS = "text_position_ids"
ONE_PER_TOKEN = ("attention_mask", "position_ids", "token_type_ids", "mm_token_type_ids")
PER_TOKEN = (*ONE_PER_TOKEN, TEXT_POSITIONS)
PER_DECODER_TOKEN = ("decoder_attention_mask", "decoder_position_ids", TEXT_POSITIONS)
ENCODED = "encoder_outputs"
OF_ENCODER = (ENCODED, "attention_mask")  # of an encoder-decoder model
# Bounds on the slots that are gaps in every row: if they exceed both, the cache is compacted.
MAX_GAP_SHARE = 0.25
MIN_GAP_SLOTS = 32
FREE_COLUMNS = 256  # columns by which arguments per token are extended in advance


class Inputs:
    """The keyword arguments of a generation's next forward."""

    def __init__(self, facts: Facts) -> None:
        # What ``generate`` would pass to the forward over the last committed token.
        self.kwargs = dict(facts.kwargs)
        self.ragged = False  # whether rows may accept different numbers of tokens
        self._model = facts.model
        self._facts = facts
        self._per_token = PER_DECODER_TOKEN if facts.encodes else PER_TOKEN
        self._mask_name, self._positions_name = self._per_token[:2]
        # Names of the arguments with values for each row.
        self._of_rows = (*self._per_token, *(OF_ENCODER if facts.encodes else ()))
        self._own: OwnSlots | None = None  # of a ragged batch, after the prefill
        self._padding: torch.Tensor | None = None  # int64 (rows, 1), before each row's text
        self._extended: dict[str, torch.Tensor] = {}  # see ``_lengthened``
        self._passed_on: dict[str, Any] | None = None  # see ``_prepared``
        self._counting: Any = None  # the model's modules that compute positions, once needed

    def with_prefill_draft(self, count: int) -> dict[str, Any]:
        """Return the prefill's arguments for the prompt and ``count`` draft tokens after it."""
        kwargs = self.grown(count)
        if kwargs.get("logits_to_keep") is not None:
            kwargs["logits_to_keep"] = 1 + count
        return kwargs

    def every(self, step: int, rows: int) -> dict[str, Any]:
        """Return the prefill's arguments for every ``step``-th of ``rows`` rows only."""
        return self.kwargs | self._selected(range(0, rows, step))

    def carry(self, outputs: Any) -> None:
        """Update the arguments from the prefill, with its outputs, to the first forward after."""
        self.kwargs = names.carried_kwargs(
            self._model, outputs, self.kwargs, encodes=self._facts.encodes
        )

    def begin(self, prompt: torch.Tensor, slots: int) -> None:
        """Add the mask of a ragged batch and positions, after ``slots`` ones of the prefill."""
        rows, kwargs = len(prompt), self.kwargs
        if self.ragged and kwargs.get(self._mask_name) is None:
            kwargs[self._mask_name] = prompt.new_ones(rows, slots + 1)
        given = kwargs.get(self._positions_name) is not None
        if self._facts.hooks_positions or (self._facts.takes_positions and not given):
            counted = torch.arange(slots + 1, device=prompt.device)
            kwargs[self._positions_name] = counted.expand(rows if self.ragged else 1, -1)
        self._extended.clear()
        self._passed_on = None
        mask = kwargs.get(self._mask_name)
        if mask is None:  # the batch is not ragged, and no token is padding
            return
        if self.ragged:
            self._own = OwnSlots(mask[:, :-1].bool().numpy(force=True))
        if self._facts.windows is not None:
            self._padding = padding_of(mask)
            if self.ragged:
                places = torch.arange(mask.shape[1], device=mask.device)
                self.kwargs[TEXT_POSITIONS] = places - self._padding

    def needed_slots(self, window: int) -> int:
        """Return how many of the cache's last slots a layer with a window needs."""
        return window - 1 if self._own is None else self._own.needed(window)

    def replace_cache(self, cache: Any) -> None:
        """Use another cache in later forwards."""
        self.kwargs |= cache_argument(cache)
        self._passed_on = None

    def grown(self, count: int, lengths: Sequence[int] = ()) -> dict[str, Any]:
        """Return the arguments for ``count`` positions after each row's last committed token."""
        if not count:
            return dict(self.kwargs)
        if not self.ragged:
            return self.kwargs | self._lengthened(count)
        return self.kwargs | self._grown_ragged(count, lengths, committed=False)

    def commit(self, kept: Sequence[int]) -> None:
        """Grow the arguments by the last forward's positions that stay, ``kept`` of each row."""
        count = max(kept)
        if min(kept) == count:
            self.kwargs |= self._lengthened(count)
        else:
            own = [each + 1 for each in kept]
            self.kwargs |= self._grown_ragged(count, own, committed=True)
            self._extended.clear()
        if self._own is not None:
            self._own.commit(kept)

    def _lengthened(self, count: int) -> dict[str, torch.Tensor]:
        """Return the arguments per token with more tokens in every row, from larger blocks."""
        found = {}
        for name in self._per_token if count else ():
            if (held := self.kwargs.get(name)) is None:
                continue
            length, more = held.shape[-1] + count, self._extended.get(name)
            if more is None or more.shape[-1] < length:
                more = self._extended[name] = grow(name, held, count + FREE_COLUMNS)
            found[name] = more[..., :length].contiguous()
        return found

    def _grown_ragged(
        self, count: int, lengths: Sequence[int], *, committed: bool
    ) -> dict[str, torch.Tensor]:
        """Return the arguments per token of a ragged batch, extended by ``grow_ragged``."""
        return {
            name: grow_ragged(name, value, count, lengths, committed=committed)
            for name, value in _given(self.kwargs, self._per_token)
        }

    def prepare(
        self,
        block: torch.Tensor,
        lengths: Sequence[int],
        trees: Trees,
        committed: torch.Tensor | None,
        *,
        width: int,
        slots: int,
        keys: int | None,
        held: int | None = None,
        masked: bool = False,
    ) -> dict[str, Any]:
        """Have the model prepare a forward over a block, padded to a width; return its arguments.

        ``slots`` positions are in the cache; layers with windows hold ``held`` of them, None: all.
        The forward attends to ``keys``, None: to these and its own. ``masked``: it needs our masks.
        """
        facts, positions = self._facts, block.shape[1]
        grown = self.grown(positions - 1, lengths)
        branched = len(trees) > 0 and any(parents is not None for parents in trees)
        if branched:
            last = self.kwargs[self._positions_name][..., -1:]
            grown[self._positions_name] = tree_positions(last, trees, lengths)
        if width > positions:
            block, grown = self._padded(block, grown, width - positions)
        grown.pop(TEXT_POSITIONS, None)
        masks: Masks | None = None
        # transformers would copy the cache's length from the device to the host for a mask over a
        # constant number of keys. A model that drops its cache in this forward makes its own mask;
        # no draft extends past that point.
        if keys is not None and facts.takes_masks and not facts.encodes:
            masked = masked or facts.rereads_at != slots
        # transformers would count a row's gaps as a part of its windows.
        if branched or masked or (self.ragged and facts.windows is not None):
            masks = self._masks(block, trees if branched else (), lengths, slots, keys, held)
            # A dict is set below, because the model's preparation takes tensors only.
            grown[self._mask_name] = (
                masks if isinstance(masks, torch.Tensor) else next(iter(masks.values()))
            )
        if committed is not None:
            block = torch.cat((committed[:, :-1], block.to(committed.dtype)), dim=1)
        inputs = self._prepared(block, grown, width, fixed=keys is not None)
        if facts.hooks_positions:  # the model's preparation may drop them
            inputs[self._positions_name] = grown[self._positions_name][..., -width:]
        if isinstance(masks, dict):
            inputs[self._mask_name] = masks
        if "logits_to_keep" in inputs:
            inputs["logits_to_keep"] = width
        return inputs

    def _prepared(
        self, block: torch.Tensor, kwargs: dict[str, Any], width: int, *, fixed: bool
    ) -> dict[str, Any]:
        """Return what the model's ``prepare_inputs_for_generation`` returns for a block.

        transformers' own one cuts the arguments per token to the block, and passes the others on
        unchanged, unless it makes a mask over a ``fixed`` number of keys. If its first result shows
        this, it is not called again.
        """
        own = {
            name: value if name.endswith("attention_mask") else value[..., -width:].contiguous()
            for name in self._per_token
            if (value := kwargs.get(name)) is not None
        }
        own["decoder_input_ids" if self._facts.encodes else "input_ids"] = block
        if self._passed_on is not None:
            return self._passed_on | own
        prepare = self._model.prepare_inputs_for_generation
        made: dict[str, Any] = prepare(block, next_sequence_length=width, **kwargs)
        others = {name: value for name, value in made.items() if name not in own}
        cut = all(getattr(made.get(name), "shape", None) == own[name].shape for name in own)
        unchanged = all(name in kwargs and value is kwargs[name] for name, value in others.items())
        if cut and unchanged and not (fixed or self._facts.reads_text):
            self._passed_on = others
        return made

    def take_positions(self, inputs: dict[str, Any]) -> AbstractContextManager[None]:
        """Remove positions that a model does not take; return a context in which they are used."""
        from ngramspec.hf_model.compat.positions import counting_modules, placed

        own = inputs.pop(self._positions_name)  # (rows, width)
        past = self.kwargs[self._positions_name][:, :-1]
        self._counting = self._counting or counting_modules(self._model)
        return placed(self._counting, past.expand(len(own), -1), own)

    def _padded(
        self, block: torch.Tensor, kwargs: dict[str, Any], count: int
    ) -> tuple[torch.Tensor, dict[str, Any]]:
        """Repeat the block's last token at its own position, within the model's limit."""
        for name, value in _given(kwargs, self._per_token):
            more = value[..., -1:].expand(*value.shape[:-1], count)
            kwargs[name] = torch.cat((value, more), dim=-1)
        return torch.cat((block, block[:, -1:].expand(-1, count)), dim=1), kwargs

    def _masks(
        self,
        block: torch.Tensor,
        trees: Trees,
        lengths: Sequence[int],
        slots: int,
        keys: int | None,
        held: int | None,
    ) -> Masks:
        """Return the masks of a forward over ``block``, (batch, width), as the model takes them."""
        rows, width = block.shape
        sees = attended(trees, width, block.device)
        past = self.kwargs.get(self._mask_name)
        mask = tree_mask(sees, past, slots, block.device, keys).expand(rows, -1, -1, -1)
        masks: Masks = mask
        if self._facts.windows is not None:
            before, last = self._text_positions(slots, block.device)
            queries = query_positions(last, trees, lengths, width)
            held = None if held is None else held + width
            masks = self._facts.windows.masks(mask, before, queries, held)
        return masks if self._facts.attention != "eager" else added(masks, self._model.dtype)

    def _text_positions(
        self, slots: int, device: torch.device
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the text positions of the cache's slots and of the last committed tokens."""
        places = self.kwargs.get(TEXT_POSITIONS)
        if places is None:
            places = torch.arange(slots + 1, device=device)[None]
            if self._padding is not None:
                places = places - self._padding
        return places[:, :-1], places[:, -1:]

    @property
    def rows_may_leave(self) -> bool:
        """Whether every argument of a forward that depends on rows can be reduced to some rows."""
        known = (*CACHE_NAMES, "cache_position", *self._of_rows)
        others = [value for name, value in self.kwargs.items() if name not in known]
        plain = all(each is None or isinstance(each, bool | int | float | str) for each in others)
        return self.ragged and plain and not self._facts.reads_text

    def keep_rows(self, order: Sequence[int]) -> None:
        """Keep some rows of the batch; see ``KVCache.keep_rows``."""
        self._extended.clear()
        self._passed_on = None
        self.kwargs |= self._selected(order)
        if self._own is not None:
            self._own.keep_rows(order)

    def _selected(self, rows: Sequence[int]) -> dict[str, Any]:
        """Return the arguments by row, for some rows only."""
        return {
            name: select_rows(value, rows, 0 if name == ENCODED else -2)
            for name, value in _given(self.kwargs, self._of_rows)
        }

    def slots_to_keep(self, slots: int) -> torch.Tensor | None:
        """Return the slots that each row keeps if the cache is to be compacted, or None."""
        if self._own is None:
            return None
        used = max(self._own.used)
        if slots - used <= max(MAX_GAP_SHARE * slots, MIN_GAP_SLOTS):
            return None
        mask = self.kwargs[self._mask_name][:, :-1]  # the last token is not in the cache yet
        return used_slots(mask, used)

    def compact(self, slots: torch.Tensor) -> None:
        """Keep the columns of the cache positions ``slots``, int64 (batch, kept), in that order."""
        self._extended.clear()
        for name, value in _given(self.kwargs, self._per_token):
            index = slots.expand(*value.shape[:-1], slots.shape[1])
            kept = value[..., :-1].gather(-1, index)
            self.kwargs[name] = torch.cat((kept, value[..., -1:]), dim=-1)
        if self._own is not None:
            self._own.compact(slots.shape[1])


def _given(kwargs: dict[str, Any], names: Sequence[str]) -> list[tuple[str, Any]]:
    return [(name, kwargs[name]) for name in names if kwargs.get(name) is not None]


def next_position(position_ids: torch.Tensor | None) -> int:
    """Return 1 + the greatest position of the rows' last prompt tokens; 0 if there are none."""
    if position_ids is None or not position_ids.numel():
        return 0
    return int(position_ids[..., -1].max()) + 1


def grow(name: str, value: torch.Tensor, count: int) -> torch.Tensor:
    """Extend an argument, (..., batch, length), by ``count`` tokens as ``generate`` does by one."""
    if count == 0:
        return value
    last = value[..., -1:]
    shape = (*value.shape[:-1], count)
    if name.endswith("position_ids"):
        steps = torch.arange(1, count + 1, dtype=value.dtype, device=value.device)
        more = last + steps
    elif name.endswith("attention_mask"):
        more = value.new_ones(shape)
    elif name == "mm_token_type_ids":
        more = value.new_zeros(shape)
    else:
        more = last.expand(shape)
    return torch.cat((value, more), dim=-1)


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
    own = torch.tensor(lengths, device="cpu").to(value.device, non_blocking=True)
    own = own[:, None]  # (batch, 1)
    column = torch.arange(1, count + 1, device=value.device)
    if name.endswith("position_ids"):
        steps = torch.minimum(column, own - 1)  # a gap's position stays in the model's range
        return torch.cat((value, value[..., -1:] + steps.to(value.dtype)), dim=-1)
    if committed:  # from the old last column on: columns in the cache, then the new last one
        column = torch.arange(count, device=value.device)
        there = (column < own - 1).to(value.dtype)
        last = (own > 1).to(value.dtype)  # 0 in rows that had finished
        return torch.cat((value[..., :-1], there, last), dim=-1)
    return torch.cat((value, (column < own).to(value.dtype)), dim=-1)


def padding_of(mask: torch.Tensor) -> torch.Tensor:
    """Return how many zeros each row of a mask begins with, int64 (batch, 1)."""
    return (mask.cumsum(dim=-1) == 0).sum(dim=-1, keepdim=True)


def used_slots(mask: torch.Tensor, used: int) -> torch.Tensor:
    """Return the slots of each row's own positions, ascending, after gaps in shorter rows."""
    order = mask.to(torch.int64).argsort(dim=1, stable=True)  # gaps first, then the row's own
    return order[:, mask.shape[1] - used :]


class OwnSlots:
    """Which slots of the cache hold a token of each row in a ragged batch; kept on the host."""

    def __init__(self, mask: NDArray[np.bool_]) -> None:
        self._mask = mask  # (rows, slots), at first those of the prefill
        self._unfinished = np.ones(len(mask), np.bool_)  # rows that have not ended
        self.used: list[int] = mask.sum(axis=1).tolist()  # each row's tokens in the cache

    def commit(self, kept: Sequence[int]) -> None:
        """Add the positions of a forward that stay, for each row; 0 if the row has ended."""
        counts = np.array(kept)
        own = np.arange(max(kept)) < counts[:, None]
        self._mask = np.concatenate((self._mask, own), axis=1)
        self._unfinished = counts > 0
        self.used = [used + more for used, more in zip(self.used, kept, strict=True)]

    def compact(self, slots: int) -> None:
        """Move each row's tokens to the end of ``slots`` slots."""
        self._mask = np.arange(slots) >= slots - np.array(self.used)[:, None]

    def keep_rows(self, order: Sequence[int]) -> None:
        """Keep some rows of the batch; see ``KVCache.keep_rows``."""
        self._mask, self._unfinished = self._mask[list(order)], self._unfinished[list(order)]
        self.used = [self.used[place] for place in order]

    def needed(self, window: int) -> int:
        """Return how many of the last slots hold ``window - 1`` tokens of each unfinished row."""
        masks = self._mask[self._unfinished]
        if not len(masks) or window == 1:
            return 0
        fewer = masks[:, ::-1].cumsum(axis=1) < window - 1
        most: int = masks.shape[1]
        return min(int(fewer.sum(axis=1).max()) + 1, most)


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
