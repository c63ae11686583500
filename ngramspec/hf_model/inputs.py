"""The inputs of a generation's forwards, built from the committed tokens and a draft.

The last column of every tensor with a value for each token belongs to the last committed token,
which is not in the cache yet.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

import torch

from ngramspec.hf_model.attention import added
from ngramspec.hf_model.compat import forwards, models
from ngramspec.hf_model.compat.caches import cache_argument
from ngramspec.hf_model.compat.devices import changed, indices
from ngramspec.hf_model.facts import Facts

if TYPE_CHECKING:
    from ngramspec.hf_model.masks import Masks, Trees

# Positions in the text by cache slot, counted from where the padding ends: kept in ragged batches
# of models with windows, and not passed to the model.
TEXT_POSITIONS = "text_position_ids"
ONE_PER_TOKEN = ("attention_mask", "position_ids", "token_type_ids", "mm_token_type_ids")
PER_TOKEN = (*ONE_PER_TOKEN, TEXT_POSITIONS)
PER_DECODER_TOKEN = ("decoder_attention_mask", "decoder_position_ids", TEXT_POSITIONS)
ENCODED = "encoder_outputs"
OF_ENCODER = (ENCODED, "attention_mask")  # of an encoder-decoder model
# The keys that a row's position attends to, given its path in the forward; None: all of them.
KeysOf = Callable[[int, Sequence[int]], "Sequence[int] | None"]
FREE_COLUMNS = 256  # columns by which arguments per token are extended in advance


class Inputs:
    """The keyword arguments of a generation's next forward; all rows accept equally many tokens."""

    ragged = False  # whether rows may accept different numbers of tokens
    hides = True  # whether the mask, if there is one, may hide a position

    def __init__(self, facts: Facts) -> None:
        # What ``generate`` would pass to the forward over the last committed token.
        self.kwargs = dict(facts.kwargs)
        if models.ROUTER_LOGITS in self.kwargs or models.reports_routing(facts.model):
            self.kwargs[models.ROUTER_LOGITS] = False  # nothing of the output needs them
        self._model = facts.model
        self._facts = facts
        self._per_token = PER_DECODER_TOKEN if facts.encodes else PER_TOKEN
        self.mask_name, self._positions_name = self._per_token[:2]  # in ``kwargs``
        # Names of the arguments with values for each row.
        self._of_rows = (*self._per_token, *(OF_ENCODER if facts.encodes else ()))
        # Whether no layer needs the mask of padding if it has a mask of four dimensions.
        known = facts.gap_obstacle is None and (facts.windows is None or facts.windows.known)
        known = known and facts.unaligned is None and not facts.names & models.BY_SLOT
        known = known and facts.counting_hook is None  # it may have shortened the cache
        self._replaces_padding = known and facts.takes_masks and not facts.encodes
        self._padding: torch.Tensor | None = None  # int64 (rows, 1), before each row's text
        self._extended: dict[str, torch.Tensor] = {}  # see ``_lengthened``
        self._passed_on: dict[str, Any] | None = None  # see ``_prepared``
        self._counting: Any = None  # the model's modules that compute positions, once needed
        self.chain: torch.Tensor | None = None  # see ``in_place``

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
        self.kwargs = forwards.carried_kwargs(
            self._model, outputs, self.kwargs, encodes=self._facts.encodes
        )

    def begin(self, prompt: torch.Tensor, slots: int) -> None:
        """Add positions, after ``slots`` ones of the prefill, if they are needed."""
        given = self.kwargs.get(self._positions_name) is not None
        if self._facts.hooks_positions or (self._facts.takes_positions and not given):
            counted = torch.arange(slots + 1, device=prompt.device)
            rows = len(prompt) if self.ragged else 1
            self.kwargs[self._positions_name] = counted.expand(rows, -1)
        self._extended.clear()
        self._passed_on = None
        mask = self.kwargs.get(self.mask_name)
        if mask is not None and self._facts.windows is not None:
            self._padding = (mask.cumsum(dim=-1) == 0).sum(dim=-1, keepdim=True)

    def keys_of(self, slots: int, *, static: bool) -> KeysOf:
        """Return what the positions of a forward after ``slots`` ones attend to, see ``KeysOf``."""
        return lambda _, path: None if static else range(slots + path[-1] + 1)

    def needed_slots(self, window: int) -> int:
        """Return how many of the cache's last slots a layer with a window needs."""
        return window - 1

    def replace_cache(self, cache: Any) -> None:
        self.kwargs |= cache_argument(cache)
        self._passed_on = None

    def grown(self, count: int, lengths: Sequence[int] = ()) -> dict[str, Any]:
        """Return the arguments for ``count`` positions after each row's last committed token."""
        return self.kwargs | self._lengthened(count)

    def commit(self, kept: Sequence[int]) -> None:
        """Grow the arguments by the last forward's positions that stay, ``kept`` of each row."""
        self.kwargs |= self._lengthened(kept[0])

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
        grown = self.grown(positions - 1, lengths) if positions > 1 else dict(self.kwargs)
        branched = len(trees) > 0 and any(parents is not None for parents in trees)
        if branched:
            from ngramspec.hf_model.masks import tree_positions  # most forwards have no branches

            last = self.kwargs[self._positions_name][..., -1:]
            grown[self._positions_name] = tree_positions(last, trees, lengths)
        if width > positions:
            block, grown = self._padded(block, grown, width - positions)
        grown.pop(TEXT_POSITIONS, None)
        masks: Masks | None = None
        self.chain, own = None, grown.get(self.mask_name)
        # transformers would copy the cache's length from the device to the host for a mask over a
        # constant number of keys. A model that drops its cache in this forward makes its own mask;
        # no draft extends past that point.
        if keys is not None and facts.takes_masks and not facts.encodes:
            masked = masked or facts.rereads_at != slots
        # The model would warn of padding if a draft, maybe a wrong one, ends with such a token.
        masked = masked or (width > 1 and own is None and facts.padding_notice is not None)
        # It would also read a mask of padding before a forward of one position.
        padding = width == 1 and own is not None
        # Attention recognises the mask of a chain that is made here, and a GPU needs none then.
        chain = width > 1 and facts.attention == "sdpa" and block.device.type == "cuda"
        chain = chain and keys is None and not branched and (own is None or not self.hides)
        if (padding or chain) and self._replaces_padding and facts.rereads_at != slots:
            masked = masked or chain or self.hides
            if not masked:
                grown[self.mask_name] = None
        # transformers would count a row's gaps as a part of its windows.
        if branched or masked or (self.ragged and facts.windows is not None):
            masks = self._masks(block, trees if branched else (), lengths, slots, keys, held)
            # A dict is set below, because the model's preparation takes tensors only.
            grown[self.mask_name] = (
                masks if isinstance(masks, torch.Tensor) else next(iter(masks.values()))
            )
        if committed is not None:
            block = torch.cat((committed[:, :-1], block.to(committed.dtype)), dim=1)
        inputs = self._prepared(block, grown, width, fixed=keys is not None)
        if facts.hooks_positions:  # the model's preparation may drop them
            inputs[self._positions_name] = grown[self._positions_name][..., -width:]
        if isinstance(masks, dict):
            inputs[self.mask_name] = masks
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
        for name, value in given(kwargs, self._per_token):
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
        from ngramspec.hf_model.masks import tree_mask  # the model makes those of most forwards

        rows, width = block.shape
        past = self.kwargs.get(self.mask_name)
        mask = tree_mask(trees, width, past, slots, block.device, keys).expand(rows, -1, -1, -1)
        masks: Masks = mask
        if not trees and keys is None and (past is None or not self.hides):
            self.chain = mask
        if self._facts.windows is not None:
            before, last = self._text_positions(slots, block.device)
            queries = self._facts.windows.queries(last, trees, lengths, width)
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

    def _selected(self, rows: Sequence[int]) -> dict[str, Any]:
        """Return the arguments by row, for some rows only."""
        index = indices(rows)

        def select(dim: int) -> Callable[[torch.Tensor], torch.Tensor]:
            return lambda tensor: tensor.index_select(dim, index(tensor.device))

        return {
            name: changed(value, select(0 if name == ENCODED else -2))
            for name, value in given(self.kwargs, self._of_rows)
        }


def given(kwargs: dict[str, Any], names: Sequence[str]) -> list[tuple[str, Any]]:
    """Return the arguments of these names that are not None."""
    return [(name, kwargs[name]) for name in names if kwargs.get(name) is not None]


def for_rows(kwargs: dict[str, Any], rows: int) -> dict[str, Any]:
    """Return the arguments with a value for each token that hold one row for all, in ``rows``."""
    return {
        name: value.expand(*value.shape[:-2], rows, -1)
        for name, value in given(kwargs, (*ONE_PER_TOKEN, *PER_DECODER_TOKEN))
        if 1 < value.ndim < 4 and value.shape[-2] == 1 < rows
    }


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
