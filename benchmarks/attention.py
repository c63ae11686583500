"""What attention costs a forward, by kernel, and on the host at a length that is new to it.

The shape is Llama-3.1-8B's. Keys and values are views of larger tensors, like those of a cache that
grows in place. Successive steps have different numbers of keys, and cuDNN prepares for each.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from itertools import product
from statistics import median
from time import perf_counter
from typing import Any

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.attention.bias import causal_lower_right
from torch.nn.functional import scaled_dot_product_attention as attend

from ngramspec.measure.machine import synchronize

HEADS, GROUPS, SIZE = 32, 8, 128
ROOM = 128  # free positions of the cache
NEW_LENGTHS = 4  # numbers of keys, 7 apart
Tensor = torch.Tensor


def repeated(keys: Tensor) -> Tensor:
    """Keys or values, once for each query head."""
    return keys.repeat_interleave(HEADS // GROUPS, dim=1)


def plain(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    """A forward of one position."""
    return attend(q, k, v, enable_gqa=True)


def masked(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    """What transformers does with a mask: it repeats keys and values."""
    return attend(q, repeated(k), repeated(v), attn_mask=mask)


def folded(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    """The heads of a group as further positions."""
    wide = q.reshape(1, GROUPS, -1, SIZE)
    found = attend(wide, k, v, attn_mask=mask.repeat(1, 1, HEADS // GROUPS, 1))
    return found.reshape(q.shape)


def lower_right(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    """A chain without a mask."""
    bias = causal_lower_right(q.shape[2], k.shape[2])
    return attend(q, k, v, attn_mask=bias, enable_gqa=True)


Way = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]
WAYS: tuple[tuple[Way, int], ...] = (
    *((plain, 1), (masked, 8), (folded, 8), (lower_right, 8)),
    *((masked, 33), (folded, 33)),
)
WITHOUT = [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]
KERNELS: dict[str, Callable[[], AbstractContextManager[Any]]] = {
    "default": nullcontext,
    "no cuDNN": lambda: sdpa_kernel(WITHOUT),
}


def attention_costs(
    device: torch.device, contexts: Sequence[int], layers: int
) -> Iterator[list[Any]]:
    """Milliseconds of a call at each new length, and of a model's layers at the last one.

    Yields all rows so far.
    """
    rows: list[Any] = []
    for context, (way, n), name in product(contexts, WAYS, KERNELS):
        row: dict[str, Any] = {"way": way.__name__, "n": n, "context": context, "kernels": name}
        try:
            with KERNELS[name]():
                found = [
                    timed(way, n, context + 7 * at, device, layers) for at in range(NEW_LENGTHS)
                ]
        except RuntimeError as error:
            rows.append(row | {"error": str(error).partition("\n")[0]})
        else:
            rows.append(row | {"new_ms": [first for first, _ in found], "ms": found[-1][1]})
        yield rows


def timed(way: Way, n: int, keys: int, device: torch.device, layers: int) -> tuple[float, float]:
    """Milliseconds of the first call, and of ``layers`` further ones."""
    q = torch.randn(1, HEADS, n, SIZE, device=device, dtype=torch.bfloat16)
    k, v = (
        torch.randn(1, GROUPS, keys + ROOM, SIZE, device=device, dtype=torch.bfloat16)[:, :, :keys]
        for _ in range(2)
    )
    last = torch.arange(n, device=device)[:, None] + keys - n
    mask = (torch.arange(keys, device=device)[None] <= last)[None, None]

    def run(times: int) -> float:
        synchronize(device)
        begin = perf_counter()
        for _ in range(times):
            way(q, k, v, mask)
        synchronize(device)
        return 1000 * (perf_counter() - begin)

    return run(1), median(run(layers) for _ in range(3))
