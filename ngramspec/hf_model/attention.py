"""Attention: masks of trees and windows, and replacements of transformers' functions.

A forward's position 0 is the last committed token, and position i + 1 is node i of the draft. A
node attends to the committed text, to its ancestors and to itself, and its depth determines its
position in the text (SpecInfer, Miao et al. 2024, section 4.2). transformers counts windows and
chunks in slots of the cache, which fails if rows have gaps or siblings share a position. Here they
are counted by positions in the text.

With a mask, transformers' sdpa attention first repeats a layer's keys and values for all query
heads of their group. Here query heads of a group become further positions of one head, so that
nothing is repeated and a key is read once for all of them. On a GPU a chain without hidden
positions needs no mask: FlashAttention's causal mask ends at the last key. The configs of the
model's layers name our function during such forwards. Another thread that runs the model at that
time finds the same function, which then calls transformers' one, and the name equals "sdpa".
"""

from __future__ import annotations

import functools
import inspect
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from math import ceil
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn.functional import pad, scaled_dot_product_attention

from ngramspec.draft import Int32
from ngramspec.hf_model.compat import names

# Trees


Trees = Sequence[Int32 | None]  # the parents of each row's draft; None: it is a chain


def ancestry(parents: Int32) -> tuple[NDArray[np.bool_], NDArray[np.int64]]:
    """Return which positions attend to which, bool (n + 1, n + 1), and their depths, (n + 1,)."""
    n = len(parents)
    sees = np.eye(n + 1, dtype=np.bool_)
    depths = np.zeros(n + 1, np.int64)
    for node, parent in enumerate(parents.tolist(), 1):
        sees[node] |= sees[parent + 1]
        depths[node] = depths[parent + 1] + 1
    return sees, depths


def tree_positions(last: torch.Tensor, trees: Trees, lengths: Sequence[int]) -> torch.Tensor:
    """Return the text positions of each row's last token, (..., rows, 1), and its draft."""
    depths = np.zeros((len(trees), max(lengths)), np.int64)
    for row, parents, length in zip(depths, trees, lengths, strict=True):
        row[:length] = np.arange(length) if parents is None else ancestry(parents)[1]
        row[length:] = row[length - 1]
    return last + torch.from_numpy(depths).to(last.device, non_blocking=True)


def tree_mask(
    trees: Trees,
    width: int,
    past: torch.Tensor | None,
    length: int,
    device: torch.device,
    keys: int | None = None,
) -> torch.Tensor:
    """Return the mask of a forward of ``width`` after ``length`` positions, (rows, 1, width, keys).

    Positions after a row's draft attend to all before them, so that their scores are finite.
    ``past``, (rows, length or more), is 0 at masked positions. Columns after its own are masked.
    """
    new = torch.ones((1, width, width), dtype=torch.bool, device=device).tril()
    if trees:
        sees = np.tri(width, dtype=np.bool_)[None].repeat(len(trees), axis=0)
        for own, parents in zip(sees, trees, strict=True):
            if parents is not None:
                known = len(parents) + 1
                own[:known, :known] = ancestry(parents)[0]
        new = torch.from_numpy(sees).to(device, non_blocking=True)
    there = new.new_ones((1, length)) if past is None else past[:, :length].to(torch.bool)
    rows = max(len(there), len(new))
    mask = torch.cat((there[:, None].expand(rows, width, -1), new.expand(rows, -1, -1)), dim=2)
    if keys is not None:
        mask = pad(mask, (0, keys - length - width))
    return mask[:, None]


# Windows and chunks

Masks = torch.Tensor | dict[str, torch.Tensor]  # one for all layers, or one for each type of layers


@dataclass(frozen=True, slots=True)
class Reach:
    """How far back a layer attends; without limits, to all positions before its own."""

    window: int | None = None  # to itself and to the ``window - 1`` positions before it
    chunk: int | None = None  # to the positions of its own chunk of this size

    @property
    def limit(self) -> int | None:
        """Maximum number of positions that a position attends to; None: no limit."""
        return self.chunk if self.window is None else self.window

    def within(self, queries: torch.Tensor, keys: torch.Tensor) -> torch.Tensor:
        """Return which keys are included, by text positions, bool (rows, 1, width, keys)."""
        one, other = queries[:, None, :, None], keys[:, None, None, :]
        if self.window is not None:
            return other > one - self.window
        assert self.chunk is not None
        return one.div(self.chunk, rounding_mode="floor") == other.div(
            self.chunk, rounding_mode="floor"
        )


@dataclass(frozen=True, slots=True)
class Windows:
    """The masks of a model that has layers with windows or chunks."""

    reaches: Mapping[str, Reach]  # by type of layers; by "" if it takes one mask for all layers
    known: bool = True  # whether all types of its layers are known
    layers: tuple[str, ...] = ()  # the type of each; empty if it takes one mask for all layers

    @property
    def shortest(self) -> int:
        """The least limit: a text that is no longer has full attention in all layers."""
        limits = (each.limit for each in self.reaches.values())
        return min((each for each in limits if each is not None), default=0)

    def masks(
        self, mask: torch.Tensor, past: torch.Tensor, queries: torch.Tensor, held: int | None
    ) -> Masks:
        """Return the mask or masks that the model takes, from the ``mask`` without windows.

        ``past`` and ``queries``, int64 (rows or 1, n), are the text positions of the cache's slots
        and of the forward. Layers with limits hold the last ``held`` keys; None: all.
        """
        rows, made = max(len(past), len(queries)), {}
        keys = torch.cat((past.expand(rows, -1), queries.expand(rows, -1)), dim=1)
        keys = pad(keys, (0, mask.shape[-1] - keys.shape[1]))
        for kind, reach in self.reaches.items():
            if reach.limit is None:
                made[kind] = mask
                continue
            first = 0 if held is None else mask.shape[-1] - held
            made[kind] = mask[..., first:] & reach.within(queries, keys[:, first:])
        return made if self.layers else made[""]


def windows_of(config: Any) -> Windows | None:
    """Return the windows of a text model's config; None: it has none."""
    limits, layers = names.attention_limits(config)
    known = {kind: Reach(*each) for kind, each in limits.items() if each is not None}
    return Windows(known, len(known) == len(limits), layers) if limits else None


def query_positions(
    last: torch.Tensor, trees: Trees, lengths: Sequence[int], width: int
) -> torch.Tensor:
    """Return the text positions of a forward's tokens, int64 (rows or 1, width)."""
    steps = torch.arange(width, device=last.device)
    if not trees:
        return last + steps
    queries = tree_positions(last, trees, lengths)
    return queries[:, steps.clamp(max=queries.shape[1] - 1)]


def added(masks: Any, dtype: torch.dtype) -> Any:
    """Return masks of bools as eager attention adds them to its scores: 0 or the lowest value."""
    if isinstance(masks, dict):
        return {kind: added(each, dtype) for kind, each in masks.items()}
    zeros = torch.zeros(masks.shape, dtype=dtype, device=masks.device)
    return zeros.masked_fill(~masks, torch.finfo(dtype).min)


# Attention without copies

Attention = Callable[..., tuple[torch.Tensor, torch.Tensor | None]]
# Attention in a forward over several sequences, see ``JointForward.attend``.
Splits = Callable[..., torch.Tensor]


# Arguments that ``grouped`` handles, and arguments that it leaves to the original function.
HANDLED = ("module", "query", "key", "value", "attention_mask", "dropout", "scaling", "is_causal")
UNHANDLED = ("softcap", "output_attentions")
BLOCK = 32  # positions of one head that torch's CPU kernel handles at once
KEYS_COST = 8  # what reading the keys adds to the cost of such a block, in positions
ALIGNMENT = 16  # CUDA's kernels copy masks whose rows do not begin at multiples of it


class _Thread(threading.local):
    on = False  # whether this thread's forwards attend without copies
    chain: torch.Tensor | None = None  # the mask of its forward, if it hides only later positions
    splits: Splits | None = None  # splits their attention by sequences

    def __init__(self) -> None:
        # Of the current forward, by identity, dtype and number of repetitions of its positions:
        # the mask as given, and as added to the scores.
        self.masks: dict[tuple[int, torch.dtype, int], tuple[torch.Tensor, torch.Tensor]] = {}


class _Name(str):
    """The name of our function. It equals "sdpa", because models compare it to choose masks.

    torch.compile traces these methods, and it cannot trace those of ``str`` called by a subclass.
    """

    __slots__ = ()

    def __hash__(self) -> int:
        return hash("ngramspec")

    def __eq__(self, other: object) -> bool:
        return other == "sdpa" or other == "ngramspec"

    def __ne__(self, other: object) -> bool:
        return not self == other


NAME = _Name("ngramspec")
_thread = _Thread()


def in_place(
    model: Any, device: torch.device, chain: torch.Tensor | None = None
) -> AbstractContextManager[None]:
    """Let this thread's forwards attend without copies inside the block, on a CPU or on CUDA.

    ``chain``: the forward's mask, if it hides from each position those after it and no others.
    """
    known = device.type in ("cpu", "cuda")
    return attending(model, on=True, chain=chain) if known else nullcontext()


@contextmanager
def attending(model: Any, **state: Any) -> Iterator[None]:
    """Change this thread's ``_Thread``, and let layers that use "sdpa" use our function."""
    before = {name: getattr(_thread, name) for name in state}
    vars(_thread).update(state)
    try:
        with names.attention_renamed(model, "sdpa", NAME) if available() else nullcontext():
            yield
    finally:
        vars(_thread).update(before)
        _thread.masks.clear()


def grouped(original: Attention) -> Attention:
    """Return an sdpa attention that makes no copies inside ``in_place``.

    Its arguments and results are those of ``original``, transformers' function: query (batch,
    heads, n, size), key and value (batch, key heads, keys, size), attention_mask (batch or 1, 1 or
    heads, n, keys); it returns (batch, n, heads, size), and None in place of attention weights.
    """
    parameters = inspect.signature(original).parameters.values()
    named = [each.name for each in parameters if each.kind is not each.VAR_KEYWORD]
    others = (*(name for name in named if name not in HANDLED), *UNHANDLED)

    def attend_row(
        module: torch.nn.Module,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attention_mask: torch.Tensor | None,
        **kwargs: Any,
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        (rows, heads, n, size), key_heads = query.shape, key.shape[1]
        if (
            torch.compiler.is_compiling()
            or not _thread.on
            or attention_mask is None
            or kwargs.get("dropout")
            or getattr(module, "num_key_value_groups", 1) * key_heads != heads
            or not all(kwargs.get(name) is None or kwargs[name] is False for name in others)
        ):
            return original(module, query, key, value, attention_mask, **kwargs)
        scale, fold, on_cpu = kwargs.get("scaling"), heads // key_heads, query.device.type == "cpu"
        if on_cpu:
            fold = _folded(rows * key_heads, fold, n, torch.get_num_threads())
        else:
            from ngramspec.hf_model.compat import kernels  # of CUDA

            if attention_mask is _thread.chain and kernels.skips_mask(query, key, value):
                fold, attention_mask = 1, None
        mask = None if attention_mask is None else _folded_mask(attention_mask, query.dtype, fold)
        query = query.reshape(rows, heads // fold, fold * n, size)
        out = None if on_cpu else kernels.attend(query, key, value, mask, scale)
        if out is None:
            gqa = heads // fold != key_heads
            out = scaled_dot_product_attention(
                query, key, value, attn_mask=mask, scale=scale, enable_gqa=gqa
            )
        return out.reshape(rows, heads, n, -1).transpose(1, 2).contiguous(), None

    @functools.wraps(original)
    def attend(module: torch.nn.Module, *states: Any, **kwargs: Any) -> Any:
        splits = None if torch.compiler.is_compiling() else _thread.splits
        if splits is None:
            return attend_row(module, *states, **kwargs)
        kwargs.pop("attention_mask", None)
        return splits(attend_row, module, *states[:3], **kwargs), None

    return attend


@functools.cache
def _folded(key_heads: int, group: int, n: int, threads: int) -> int:
    """Return how many of a group's query heads make one head of torch's CPU kernel.

    A thread takes blocks of one head and at most ``BLOCK`` positions. ``key_heads``: of all rows.
    """

    def cost(fold: int) -> float:
        blocks = ceil(fold * n / BLOCK)
        turns = ceil(key_heads * group / fold * blocks / threads)
        return turns * (KEYS_COST + fold * n / blocks)

    return min((each for each in range(1, group + 1) if group % each == 0), key=cost)


def _folded_mask(mask: torch.Tensor, dtype: torch.dtype, fold: int) -> torch.Tensor:
    """Return a mask as torch adds it to the scores of folded heads, made once for all layers."""
    known, made = _thread.masks.get((id(mask), dtype, fold), (None, mask))
    if known is None:
        rows, heads, n, keys = mask.shape
        wider = pad(mask, (0, -keys % ALIGNMENT))
        wider = added(wider, dtype) if mask.dtype == torch.bool else wider
        wider = wider.repeat(1, fold if heads == 1 else 1, 1, 1)
        made = wider.reshape(rows, -1, fold * n, wider.shape[-1])[..., :keys]
        _thread.masks[id(mask), dtype, fold] = mask, made
    return made


def available() -> bool:
    """Register our function. Return False if "sdpa" is another function than transformers'."""
    return names.register_attention(NAME, grouped)
