"""Grouped-query attention on a CPU without a copy of the cache for every query head.

A forward over several positions has a mask, and under a mask transformers' sdpa attention first
repeats a layer's keys and values for all query heads of their group, because some GPU kernels need
that. torch's CPU kernel reads them in place, with the same arithmetic in the same order. The copies
alone are some 8 % of such a forward (SmolLM2-135M, two cores). So ngramspec replaces "sdpa" by a
function that leaves the copies out inside ngramspec's own forwards, with bitwise equal results. In
all other forwards it calls transformers' own function.

In 16 bits that kernel spends most of its time on converting keys and values, for every query head
anew. So the query heads of a group are taken as one head with more positions, whose rows are as
independent of each other: with 4000 positions of context, the attention of 2 to 8 positions takes
half to two thirds of the time.
"""

from __future__ import annotations

import functools
import inspect
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.nn.functional import scaled_dot_product_attention

Attention = Callable[..., tuple[torch.Tensor, torch.Tensor | None]]

TAKEN = ("module", "query", "key", "value", "attention_mask", "dropout", "scaling", "is_causal")
HALVES = (torch.bfloat16, torch.float16)
ROWS = 32  # positions of a head that torch's kernel works on at a time
FEWER = 0.67  # share of the rounds of its threads that must be enough for heads taken together
REFUSED = ("softcap", "output_attentions")  # arguments that are left to the original function


class _Thread(threading.local):
    """What a thread's forwards are doing.

    Attributes:
        on: whether they attend without copies.
        mask: the current forward's last mask, as it was given and as it is added to the scores.
    """

    on = False
    mask: tuple[torch.Tensor | None, torch.Tensor | None] = (None, None)


_thread = _Thread()


@contextmanager
def in_place(device: torch.device) -> Iterator[None]:
    """The context in which this thread's forwards attend without copies, on a CPU.

    Args:
        device: of the forwards; on others than a CPU nothing changes.
    """
    if device.type != "cpu":
        yield
        return
    _install()
    before = _thread.on
    _thread.on = True
    try:
        yield
    finally:
        _thread.on, _thread.mask = before, (None, None)


def grouped(original: Attention) -> Attention:
    """transformers' sdpa attention, which makes no copies inside ``in_place``.

    Args:
        original: transformers' function.

    Returns:
        A function of the same arguments: query (batch, heads, n, size), key and value (batch, key
        heads, keys, size), attention_mask (batch or 1, 1, n, keys). It returns (batch, n, heads,
        size), and None in place of attention weights.
    """
    parameters = inspect.signature(original).parameters.values()
    beside = [each.name for each in parameters if each.kind is not each.VAR_KEYWORD]
    others = (*(name for name in beside if name not in TAKEN), *REFUSED)

    @functools.wraps(original)
    def attend(
        module: torch.nn.Module,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attention_mask: torch.Tensor | None,
        dropout: float = 0.0,
        scaling: float | None = None,
        is_causal: bool | None = None,
        **kwargs: Any,
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        if (
            torch.compiler.is_compiling()
            or not _thread.on
            or attention_mask is None
            or query.device.type != "cpu"
            or query.shape[2] == 1
            or getattr(module, "num_key_value_groups", 1) * key.shape[1] != query.shape[1]
            or not all(kwargs.get(name) is None or kwargs[name] is False for name in others)
        ):
            return original(
                module,
                query,
                key,
                value,
                attention_mask,
                dropout=dropout,
                scaling=scaling,
                is_causal=is_causal,
                **kwargs,
            )
        groups = query.shape[1] // key.shape[1]
        times = groups if _reads_keys_once(query, key, attention_mask) else 1
        out = scaled_dot_product_attention(
            query.reshape(query.shape[0], -1, times * query.shape[2], query.shape[3]),
            key,
            value,
            attn_mask=_added(attention_mask, query.dtype, times),
            dropout_p=dropout,
            scale=scaling,
            enable_gqa=groups != times,
        )
        return out.reshape(query.shape).transpose(1, 2).contiguous(), None

    return attend


def _reads_keys_once(query: torch.Tensor, key: torch.Tensor, mask: torch.Tensor) -> bool:
    """Whether the query heads of a group attend as one head with as many times the positions.

    torch's kernel converts 16-bit keys and values to what it multiplies, for every head and every
    ``ROWS`` of its positions, which is most of a narrow forward's attention in a long context. As
    one head the conversion is done once for a group. That pays where it leaves every thread work.
    """
    batch, heads, n, _ = query.shape
    if query.dtype not in HALVES or heads == key.shape[1] or mask.shape[1] != 1:
        return False
    apart = batch * heads * -(-n // ROWS)
    together = batch * key.shape[1] * -(-n * (heads // key.shape[1]) // ROWS)
    threads = torch.get_num_threads()
    return -(-together // threads) <= FEWER * -(-apart // threads)


def _added(mask: torch.Tensor, dtype: torch.dtype, times: int) -> torch.Tensor:
    """A mask as torch adds it to the scores, made once for all layers with the same mask.

    Args:
        mask: (batch or 1, 1, n, keys), bool or what is added.
        dtype: of the scores.
        times: how often its rows are repeated, all in turn.
    """
    if mask.dtype != torch.bool and times == 1:
        return mask
    known, added = _thread.mask
    rows = times * mask.shape[2]
    if added is None or known is not mask or added.dtype != dtype or added.shape[2] != rows:
        added = mask
        if mask.dtype == torch.bool:
            added = torch.zeros((), dtype=dtype, device=mask.device).masked_fill(~mask, -torch.inf)
        added = added.repeat(1, 1, times, 1) if times > 1 else added
        _thread.mask = mask, added
    return added


def _install() -> None:
    """Register ``grouped`` as "sdpa", unless "sdpa" is no longer transformers' own function."""
    from transformers.integrations.sdpa_attention import sdpa_attention_forward
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS, AttentionInterface

    if ALL_ATTENTION_FUNCTIONS["sdpa"] is sdpa_attention_forward:
        AttentionInterface.register("sdpa", grouped(sdpa_attention_forward))
