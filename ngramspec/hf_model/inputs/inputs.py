"""The inputs of a generation's forwards, built from the committed tokens and a draft."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch

from ngramspec.hf_model.attention.tree_attention import Trees, attended, tree_mask, tree_positions
from ngramspec.hf_model.attention.windows import Masks, added, query_positions
from ngramspec.hf_model.compat import hf_private
from ngramspec.hf_model.compat.cache_name import CACHE_NAMES, cache_argument
from ngramspec.hf_model.inputs.growth import OwnSlots, grow, grow_ragged, padding_of, used_slots
from ngramspec.hf_model.inputs.present_rows import select_rows
from ngramspec.hf_model.traits import Traits

# Positions in the text by cache slot, counted from where the padding ends: kept in ragged batches
# of models with windows, and not passed to the model.
TEXT_POSITIONS = "text_position_ids"
ONE_PER_TOKEN = ("attention_mask", "position_ids", "token_type_ids", "mm_token_type_ids")
PER_TOKEN = (*ONE_PER_TOKEN, TEXT_POSITIONS)
PER_DECODER_TOKEN = ("decoder_attention_mask", "decoder_position_ids", TEXT_POSITIONS)
ENCODED = "encoder_outputs"
OF_ENCODER = (ENCODED, "attention_mask")  # of an encoder-decoder model
# The cache is compacted if the slots that are gaps in every row exceed both limits; not tuned.
MAX_GAP_SHARE = 0.25
MIN_GAP_SLOTS = 32
FREE_COLUMNS = 256  # columns by which arguments per token are extended in advance; not tuned


class Inputs:
    """The keyword arguments of a generation's next forward."""

    def __init__(self, model: Any, traits: Traits, kwargs: dict[str, Any]) -> None:
        # What ``generate`` would pass to the forward over the last committed token.
        self.kwargs = dict(kwargs)
        self.ragged = False  # whether rows may accept different numbers of tokens
        self._model = model
        self._traits = traits
        self._per_token = PER_DECODER_TOKEN if traits.encodes else PER_TOKEN
        self._mask_name, self._positions_name = self._per_token[:2]
        # Names of the arguments with values for each row.
        self._by_row = (*self._per_token, *(OF_ENCODER if traits.encodes else ()))
        self._own: OwnSlots | None = None  # of a ragged batch, after the prefill
        self._padding: torch.Tensor | None = None  # int64 (rows, 1), before each row's text
        self._extended: dict[str, torch.Tensor] = {}  # see ``_lengthened``
        self._passed_on: dict[str, Any] | None = None  # see ``_prepared``

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
        self.kwargs = hf_private.carried_kwargs(
            self._model, outputs, self.kwargs, encodes=self._traits.encodes
        )

    def begin(self, prompt: torch.Tensor, slots: int) -> None:
        """Add what ``generate`` left out: the mask of a ragged batch, and positions.

        ``slots`` positions are in the cache after the prefill of ``prompt``, int64 (batch, prompt).
        """
        rows, kwargs = len(prompt), self.kwargs
        if self.ragged and kwargs.get(self._mask_name) is None:
            kwargs[self._mask_name] = prompt.new_ones(rows, slots + 1)
        given = kwargs.get(self._positions_name) is not None
        if self._traits.hooked or (self._traits.takes_positions and not given):
            counted = torch.arange(slots + 1, device=prompt.device)
            kwargs[self._positions_name] = counted.expand(rows if self.ragged else 1, -1)
        self._extended.clear()
        self._passed_on = None
        mask = kwargs.get(self._mask_name)
        if mask is None:  # the batch is not ragged, and no token is padding
            return
        if self.ragged:
            self._own = OwnSlots(mask[:, :-1].bool().numpy(force=True))
        if self._traits.windows is not None:
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
        """Return the arguments for ``count`` positions after each row's last committed token.

        ``lengths``, used in a ragged batch only, are those of ``grow_ragged``.
        """
        if not count:
            return dict(self.kwargs)
        if not self.ragged:
            return self.kwargs | self._lengthened(count)
        return self.kwargs | self._grown_by_row(count, lengths, committed=False)

    def commit(self, kept: Sequence[int]) -> None:
        """Grow the arguments by the positions of the last forward that stay, ``kept`` of each row.

        The numbers are equal for all rows unless the batch is ragged.
        """
        count = max(kept)
        if min(kept) == count:
            self.kwargs |= self._lengthened(count)
        else:
            own = [each + 1 for each in kept]
            self.kwargs |= self._grown_by_row(count, own, committed=True)
            self._extended.clear()
        if self._own is not None:
            self._own.commit(kept)

    def _lengthened(self, count: int) -> dict[str, torch.Tensor]:
        """Return the arguments per token with ``count`` more tokens in every row.

        Their columns do not depend on the tokens, so larger blocks are added in advance.
        """
        found = {}
        for name in self._per_token if count else ():
            held, more = self.kwargs.get(name), self._extended.get(name)
            if held is None:
                continue
            length = held.shape[-1] + count
            if more is None or more.shape[-1] < length:
                more = self._extended[name] = grow(name, held, count + FREE_COLUMNS)
            found[name] = more[..., :length].contiguous()
        return found

    def _grown_by_row(
        self, count: int, lengths: Sequence[int], *, committed: bool
    ) -> dict[str, torch.Tensor]:
        """Return the arguments per token of a ragged batch, extended by ``grow_ragged``."""
        return {
            name: grow_ragged(name, value, count, lengths, committed=committed)
            for name in self._per_token
            if (value := self.kwargs.get(name)) is not None
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

        Args:
            block, lengths, trees, committed: as in ``Target.forward``.
            width: positions of the forward, >= those of the block.
            slots: positions in the cache.
            keys: number of positions that the forward attends to, including masked ones; None: the
                cache's and the forward's own.
            held: positions that layers with windows hold; None: all.
            masked: whether the masks must be made here.
        """
        positions = block.shape[1]
        grown = self.grown(positions - 1, lengths)
        branched = any(parents is not None for parents in trees)
        if branched:
            last = self.kwargs[self._positions_name][..., -1:]
            grown[self._positions_name] = tree_positions(last, trees, lengths)
        if width > positions:
            block, grown = self._padded(block, grown, width - positions)
        grown.pop(TEXT_POSITIONS, None)
        masks: Masks | None = None
        masked = masked or (keys is not None and self._makes_masks(slots))
        # transformers would count a row's gaps as a part of its windows.
        if branched or masked or (self.ragged and self._traits.windows is not None):
            masks = self._masks(block, trees if branched else (), lengths, slots, keys, held)
            # A dict is set below, because the model's preparation takes tensors only.
            grown[self._mask_name] = (
                masks if isinstance(masks, torch.Tensor) else next(iter(masks.values()))
            )
        if committed is not None:
            block = torch.cat((committed[:, :-1], block.to(committed.dtype)), dim=1)
        inputs = self._prepared(block, grown, width, fixed=keys is not None)
        if self._traits.hooked:  # the model's preparation may drop them
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
        own["decoder_input_ids" if self._traits.encodes else "input_ids"] = block
        if self._passed_on is not None:
            return self._passed_on | own
        prepare = self._model.prepare_inputs_for_generation
        made: dict[str, Any] = prepare(block, next_sequence_length=width, **kwargs)
        others = {name: value for name, value in made.items() if name not in own}
        cut = all(getattr(made.get(name), "shape", None) == own[name].shape for name in own)
        unchanged = all(name in kwargs and value is kwargs[name] for name, value in others.items())
        if cut and unchanged and not (fixed or self._traits.reads_text):
            self._passed_on = others
        return made

    def take_positions(self, inputs: dict[str, Any]) -> AbstractContextManager[None]:
        """Remove positions that a model does not take; return a context in which they are used."""
        if not self._traits.hooked:
            return nullcontext()
        from ngramspec.hf_model.compat.positions import placed  # most models take positions

        own = inputs.pop(self._positions_name)  # (rows, width)
        past = self.kwargs[self._positions_name][:, :-1]
        return placed(self._counting, past.expand(len(own), -1), own)

    def _padded(
        self, block: torch.Tensor, kwargs: dict[str, Any], count: int
    ) -> tuple[torch.Tensor, dict[str, Any]]:
        """Repeat the block's last token ``count`` times at the same position.

        This keeps all positions within the model's limit. ``kwargs`` are changed in place.
        """
        for name in self._per_token:
            if (value := kwargs.get(name)) is not None:
                more = value[..., -1:].expand(*value.shape[:-1], count)
                kwargs[name] = torch.cat((value, more), dim=-1)
        return torch.cat((block, block[:, -1:].expand(-1, count)), dim=1), kwargs

    def _makes_masks(self, slots: int) -> bool:
        """Whether the mask over a constant number of keys is made here instead of by transformers.

        transformers would copy the cache's length from the device to the host for it. A model that
        drops its cache in this forward makes its own mask; no draft extends past that point.
        """
        traits = self._traits
        return traits.takes_masks and not traits.encodes and traits.rereads_at != slots

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
        if self._traits.windows is not None:
            before, last = self._text_positions(slots, block.device)
            queries = query_positions(last, trees, lengths, width)
            held = None if held is None else held + width
            masks = self._traits.windows.masks(mask, before, queries, held)
        return masks if self._traits.attention != "eager" else added(masks, self._model.dtype)

    def _text_positions(
        self, slots: int, device: torch.device
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the positions in the text of the cache's slots and of the last committed tokens.

        They are int64 (rows or 1, slots) and (rows or 1, 1), counted from where the padding ends.
        """
        places = self.kwargs.get(TEXT_POSITIONS)
        if places is None:
            places = torch.arange(slots + 1, device=device)[None]
            if self._padding is not None:
                places = places - self._padding
        return places[:, :-1], places[:, -1:]

    @functools.cached_property
    def _counting(self) -> Any:
        """The model's modules that compute positions."""
        from ngramspec.hf_model.compat.positions import counting_modules

        return counting_modules(self._model)

    @property
    def rows_may_leave(self) -> bool:
        """Whether every argument of a forward that depends on rows can be reduced to some rows."""
        known = (*CACHE_NAMES, "cache_position", *self._by_row)
        others = [value for name, value in self.kwargs.items() if name not in known]
        plain = all(each is None or isinstance(each, bool | int | float | str) for each in others)
        return self.ragged and plain and not self._traits.reads_text

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
            for name in self._by_row
            if (value := self.kwargs.get(name)) is not None
        }

    def slots_to_keep(self, slots: int) -> torch.Tensor | None:
        """Return the slots that each row keeps, as ``used_slots``, if the cache is to be compacted.

        The result is None if too few of the ``slots`` in the cache are unused by all rows.
        """
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
        for name in self._per_token:
            if (value := self.kwargs.get(name)) is not None:
                index = slots.expand(*value.shape[:-1], slots.shape[1])
                kept = value[..., :-1].gather(-1, index)
                self.kwargs[name] = torch.cat((kept, value[..., -1:]), dim=-1)
        if self._own is not None:
            self._own.compact(slots.shape[1])
