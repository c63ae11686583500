"""What attention costs by kernel, and on the host at a number of keys that is new to it.

The shape is Llama-3.1-8B's. Keys and values are views of larger tensors, like those of a cache that
grows in place. Successive steps have different numbers of keys, and cuDNN prepares for each.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from itertools import product
from statistics import median
from time import perf_counter
from typing import Any

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention as attend

from ngramspec.measure.machine import synchronize

HEADS, GROUPS, SIZE = 32, 8, 128
ROOM = 128  # free positions of the cache
WITHOUT = [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]
# Plain steps; with a mask as in transformers, which repeats keys and values for each query head;
# and with the heads of a group as further positions.
WAYS = (("plain", 1), ("repeated", 8), ("folded", 8), ("repeated", 33), ("folded", 33))
Tensor = torch.Tensor


def attention(way: str, q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    """Attention of n positions, (1, HEADS, n, SIZE), by one of WAYS."""
    if way == "plain":
        return attend(q, k, v, enable_gqa=True)
    if way == "folded":
        mask = mask.repeat(1, 1, HEADS // GROUPS, 1)
        return attend(q.reshape(1, GROUPS, -1, SIZE), k, v, attn_mask=mask).reshape(q.shape)
    k, v = (each.repeat_interleave(HEADS // GROUPS, dim=1) for each in (k, v))
    return attend(q, k, v, attn_mask=mask)


def attention_costs(
    device: torch.device, contexts: Sequence[int], layers: int
) -> Iterator[list[dict[str, Any]]]:
    """Milliseconds of the first call at each of four lengths, and of a model's layers at the last.

    Yields all rows so far.
    """
    rows: list[dict[str, Any]] = []
    for context, (way, n), cudnn in product(contexts, WAYS, (True, False)):
        row: dict[str, Any] = {"way": way, "n": n, "context": context, "cudnn": cudnn}
        try:
            with nullcontext() if cudnn else sdpa_kernel(WITHOUT):
                found = [timed(way, n, context + 7 * at, device, layers) for at in range(4)]
            row |= {"new_ms": [first for first, _ in found], "ms": found[-1][1]}
        except RuntimeError as error:
            row["error"] = str(error).partition("\n")[0]
        rows.append(row)
        yield rows


def timed(way: str, n: int, keys: int, device: torch.device, layers: int) -> tuple[float, float]:
    """Milliseconds of the first call, and of ``layers`` further ones."""
    given: dict[str, Any] = {"device": device, "dtype": torch.bfloat16}
    q = torch.randn(1, HEADS, n, SIZE, **given)
    k, v = torch.randn(2, 1, GROUPS, keys + ROOM, SIZE, **given)[:, :, :, :keys]
    last = torch.arange(n, device=device)[:, None] + keys - n
    mask = (torch.arange(keys, device=device)[None] <= last)[None, None]

    def run(times: int) -> float:
        synchronize(device)
        begin = perf_counter()
        for _ in range(times):
            attention(way, q, k, v, mask)
        synchronize(device)
        return 1000 * (perf_counter() - begin)

    return run(1), median(run(layers) for _ in range(3))
