"""One forward for several generations of a model, each with its own cache.

The positions of all generations are concatenated in one row. Only attention keeps them apart
(selective batching: Orca, Yu et al. 2022, section 3.2): it runs over the rows of shared memory, or
separately over each generation's own keys and values. A model may mix positions outside its
attention, or attend to other states than its cache returns. This is tested at the first use of a
model (``why_not_tried``).
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from copy import deepcopy
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

import torch

from ngramspec.errors import UnsupportedError
from ngramspec.hf_model.attention import AttentionFunction, attending, available, in_place
from ngramspec.hf_model.cache.rows import Placement, SharedRows
from ngramspec.hf_model.compat import models
from ngramspec.hf_model.compat.caches import cache_argument, cache_of, new_cache, replace_update
from ngramspec.hf_model.compat.devices import device_of, is_transient
from ngramspec.hf_model.facts import Ability, why_unsupported
from ngramspec.hf_model.masks import Windows, tree_mask
from ngramspec.hf_model.outputs import head_inputs
from ngramspec.hf_model.target import Target
from ngramspec.hf_model.trials import TestResults, alike, tested_once


def why_not_joint(target: Target) -> str | None:
    """Why a generation's forwards cannot be joined with those of others; None: they can."""
    if target.widths and not target.facts.static:
        return "forwards of a fixed width"
    return why_unsupported(Ability.JOINT, target.facts)


def why_not_attending() -> str | None:
    """Why attention cannot be split now, or None."""
    return None if available() else "another attention registered as sdpa"


@dataclass(frozen=True, slots=True)
class ForwardShare:
    """One generation's share of a joint forward."""

    cache: Any  # of transformers, with one row of keys and values in each layer
    ids: torch.Tensor  # int64 (1, n), its tokens
    positions: torch.Tensor  # int64 (..., 1, n), their positions in its text
    # Bool (1, 1, n, length + n), over its cache and its own positions, or one for each layer; None:
    # it has one position, which attends to all of them.
    masks: torch.Tensor | list[torch.Tensor] | None


def piece_of(cache: Any, ids: torch.Tensor) -> ForwardShare:
    """Return the share of a piece of a prompt, int64 (1, n), after what the cache holds of it."""
    held, count = int(cache.get_seq_length()), ids.shape[1]
    positions = torch.arange(held, held + count, device=ids.device)[None]
    return ForwardShare(cache, ids, positions, tree_mask((), count, None, held, ids.device))


def share_of(inputs: dict[str, Any], windows: Windows | None = None) -> ForwardShare:
    """Return the share of a generation, from the arguments of its separate forward."""
    ids, cache, mask = inputs["input_ids"], cache_of(inputs), inputs.get("attention_mask")
    if mask is None or (isinstance(mask, torch.Tensor) and mask.ndim < 4):
        width = ids.shape[1]
        length = int(cache.get_seq_length())
        hides = mask is not None and not bool(mask.all())
        plain = width == 1 and not hides
        mask = None if plain else tree_mask((), width, mask if hides else None, length, ids.device)
    if isinstance(mask, dict):  # by type of layers
        mask = [mask[kind] for kind in windows.layers] if windows is not None else None
    return ForwardShare(cache, ids, inputs["position_ids"], mask)


@dataclass(frozen=True, slots=True)
class JointResult:
    """One generation's result of a joint forward."""

    logits: torch.Tensor  # (1, n, vocab), in the model's dtype
    hidden: torch.Tensor | None  # input of the model's head, (1, n, d)


class JointForward:
    """A forward over the shares of several generations of a model; see ``why_not_joint``.

    Args:
        model: a transformers model.
        shares: of the generations.
        rows: memory that their caches can share; None: each has its own.
        pieces: of prompts, see ``piece_of``, that are read in the same forward. They come before
            the shares, so that the head runs over the shares only.
    """

    def __init__(
        self,
        model: Any,
        shares: Sequence[ForwardShare],
        rows: SharedRows | None = None,
        pieces: Sequence[ForwardShare] = (),
    ) -> None:
        self._model = model
        self._shares = shares
        self._widths = [each.ids.shape[1] for each in shares]
        self._placement: Placement | None = None
        if rows is not None and not any(isinstance(each.masks, list) for each in shares):
            self._placement = rows.placed([each.cache for each in shares], self._widths)
        # With a cache, an attention and a part of all positions for each.
        self._apart = [*pieces] if self._placement is not None else [*pieces, *shares]
        read = [each.ids.shape[1] for each in pieces]
        self._all, self._read = [*pieces, *shares], sum(read)
        self._parts = [*read, sum(self._widths)] if self._placement else [*read, *self._widths]
        self._mask: torch.Tensor | None = None  # of the rows in shared memory
        # By the id of the keys that a layer passed to ``_update``, and that later ones may share:
        # these keys, the keys and values of each share in that layer, and its index.
        self._added: dict[int, tuple[torch.Tensor, list[Any], int]] = {}

    def run(self, hidden: bool = False) -> list[JointResult]:
        """Run the forward, and return each share's result, with the head's inputs if ``hidden``."""
        ids = torch.cat([each.ids for each in self._all], dim=1)
        total, device = ids.shape[1], ids.device
        model, cache = self._model, new_cache()  # it stores nothing
        replace_update(cache, self._update)
        own, split = in_place(device), attending(splits=self.attend)
        collected: AbstractContextManager[list[torch.Tensor]] = nullcontext([])
        if hidden:
            collected = head_inputs(model)
        with own, split, collected as states:
            outputs = model(
                input_ids=ids,
                position_ids=self._positions(),
                attention_mask=torch.ones((1, 1, total, total), dtype=torch.bool, device=device),
                **cache_argument(cache),
                use_cache=True,
                logits_to_keep=total - self._read,
                return_dict=True,
            )
        if self._placement is not None:
            self._placement.extend([each.cache for each in self._shares])
        logits = torch.split(outputs.logits, self._widths, dim=1)
        inputs = torch.split(states[-1], self._widths, dim=1) if states else [None] * len(logits)
        return [JointResult(*each) for each in zip(logits, inputs, strict=True)]

    def _positions(self) -> torch.Tensor:
        """The positions of all tokens in their texts, int64 (..., 1, total)."""
        shape = self._shares[0].positions.shape[:-1]
        return torch.cat([each.positions.expand(*shape, -1) for each in self._all], dim=-1)

    def _update(
        self, key: torch.Tensor, value: torch.Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Add a layer's new keys and values, (1, heads, total, size), to every share's cache."""
        parts = [
            *zip(*(torch.split(each, self._parts, dim=2) for each in (key, value)), strict=True)
        ]
        if self._placement is not None:
            self._placement.store(layer_idx, *parts[-1])
        states = [
            share.cache.update(*own, layer_idx, *args, **kwargs)
            for share, own in zip(self._apart, parts, strict=False)
        ]
        self._added[id(key)] = key, states, layer_idx
        return key, value

    def attend(
        self,
        own: AttentionFunction,
        module: torch.nn.Module,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        **kwargs: Any,
    ) -> torch.Tensor:
        """Have each share's positions attend to its own keys and values, (1, heads, n, size)."""
        if id(key) not in self._added:
            raise UnsupportedError(f"{type(module).__name__} does not attend to its cache's states")
        _, added, layer = self._added[id(key)]
        kwargs.pop("is_causal", None)
        queries = torch.split(query, self._parts, dim=2)
        masks = [each.masks for each in self._apart]
        at = getattr(module, "layer_idx", layer)  # not the cache's, if layers run in loops
        masks = [each[at] if isinstance(each, list) else each for each in masks]
        found = [
            own(module, part, *states, mask, is_causal=False, **kwargs)[0]
            for part, states, mask in zip(queries, added, masks, strict=False)
        ]
        if self._placement is not None:
            found.append(self._attend_by_rows(own, module, queries[-1], layer, **kwargs))
        return torch.cat(found, dim=1)

    def _attend_by_rows(
        self,
        own: AttentionFunction,
        module: torch.nn.Module,
        query: torch.Tensor,
        layer: int,
        **kwargs: Any,
    ) -> torch.Tensor:
        """Have all shares attend at once, but those that are much wider than the others."""
        placement = self._placement
        assert placement is not None
        masks: list[Any] = [each.masks for each in self._shares]
        if self._mask is None or self._mask.device != query.device:
            self._mask = placement.mask(masks, query.device)
        states = placement.states(layer)
        found, _ = own(
            module, placement.spread(query), *states, self._mask, is_causal=False, **kwargs
        )
        found = placement.gathered(found)
        for at, positions in placement.apart:
            states = placement.states_of(layer, at)
            part = query[:, :, positions]
            found[:, positions] = own(module, part, *states, masks[at], is_causal=False, **kwargs)[
                0
            ]
        return found


# Of each text, tokens in the cache and in the forward: together no more than a window holds.
PROBE_TEXTS = ((5, 3), (3, 2), (4, 1))

_found: TestResults = WeakKeyDictionary()


def why_not_tried(model: Any) -> str | None:
    """Why a transformers model's forwards cannot be joined, by a test run once; None: they can."""
    return tested_once(model, _try, _found)


def is_tried(model: Any) -> bool:
    """Whether that test has had a result, rather than too little memory."""
    return model in _found


@torch.no_grad()
def _try(model: Any) -> str | None:
    try:
        shares = [_share(model, *sizes) for sizes in PROBE_TEXTS]
        alone = [_alone(model, share) for share in shares]
        together = [result.logits for result in JointForward(model, shares).run()]
    except Exception as error:
        if is_transient(error):
            raise
        return f"its joint forward failed: {error}"
    if alike(together, alone, model.dtype):
        return None
    return "its joint forward gives a text other logits than a separate forward"


def _share(model: Any, before: int, new: int) -> ForwardShare:
    """Return the share of a text with ``before`` tokens in its cache and ``new`` further ones."""
    positions = torch.arange(before + new, device=device_of(model))[None]
    tokens = (positions * 7 + before) % (models.embedding_count(model) or 8)
    cache = new_cache(model.config)
    model(input_ids=tokens[:, :before], **cache_argument(cache), use_cache=True)
    ids, places = tokens[:, before:], positions[:, before:]
    return share_of({"input_ids": ids, "position_ids": places} | cache_argument(cache))


def _alone(model: Any, share: ForwardShare) -> torch.Tensor:
    """Return the logits of a separate forward, (1, n, vocab); the share's cache is not changed."""
    cache = deepcopy(share.cache)
    places = {"input_ids": share.ids, "position_ids": share.positions}
    logits: torch.Tensor = model(**cache_argument(cache), use_cache=True, **places).logits
    return logits
