"""Attention without copies, in place of transformers' function.

With a mask, transformers' sdpa attention first repeats a layer's keys and values for all query
heads of their group. Here query heads of a group become further positions of one head, so that
nothing is repeated and a key is read once for all of them. On a GPU a chain without hidden
positions needs no mask: FlashAttention's causal mask ends at the last key. Our function is
registered as "sdpa" at the first such forward and stays registered. In all other forwards, those of
other threads included, it calls transformers' function.
"""

from __future__ import annotations

import functools
import inspect
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from math import ceil
from typing import Any

import torch
from torch.nn.functional import pad, scaled_dot_product_attention

from ngramspec.hf_model.compat import forwards

AttentionFunction = Callable[..., tuple[torch.Tensor, torch.Tensor | None]]
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


_thread = _Thread()


def in_place(
    device: torch.device, chain: torch.Tensor | None = None
) -> AbstractContextManager[None]:
    """Let this thread's forwards attend without copies inside the block, on a CPU or on CUDA.

    ``chain``: the forward's mask, if it hides from each position those after it and no others.
    """
    known = device.type in ("cpu", "cuda")
    return attending(on=True, chain=chain) if known else nullcontext()


@contextmanager
def attending(**state: Any) -> Iterator[None]:
    """Change this thread's ``_Thread`` for the forwards inside the block."""
    available()
    before = {name: getattr(_thread, name) for name in state}
    vars(_thread).update(state)
    try:
        yield
    finally:
        vars(_thread).update(before)
        _thread.masks.clear()


def grouped(original: AttentionFunction) -> AttentionFunction:
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


@functools.lru_cache(maxsize=1024)
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


def added(masks: Any, dtype: torch.dtype) -> Any:
    """Return masks of bools as eager attention adds them to its scores: 0 or the lowest value."""
    if isinstance(masks, dict):
        return {kind: added(each, dtype) for kind, each in masks.items()}
    zeros = torch.zeros(masks.shape, dtype=dtype, device=masks.device)
    return zeros.masked_fill(~masks, torch.finfo(dtype).min)


def available() -> bool:
    """Register our function as "sdpa", unless it is another function than transformers'.

    Return whether it is registered.
    """
    return forwards.register_sdpa(grouped)
