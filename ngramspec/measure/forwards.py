"""The time of a forward of n positions over a cache of a given length."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from time import perf_counter
from typing import Any

import torch

from ngramspec.hf_model.attention import in_place
from ngramspec.hf_model.cache.kv_cache import kv_cache_for
from ngramspec.hf_model.compat.caches import cache_argument, new_cache
from ngramspec.measure.machine import synchronize

PREFILL_CHUNK_POSITIONS = 2048  # positions of a prefill's forward


@torch.inference_mode()
def forward_seconds(
    model: Any, context: int, widths: Sequence[int], repeats: int = 7, rows: int = 1
) -> dict[int, float]:
    """Median wall time in seconds of a forward of n >= 1 positions, for each n in ``widths``.

    The widths take turns, so that a slow moment of the machine affects all of them; a turn before
    the ``repeats`` timed ones warms up. After each forward the dynamic cache of the causal language
    model is truncated to ``context`` positions.
    """
    device = model.device
    generator = torch.Generator().manual_seed(0)
    vocab = model.get_input_embeddings().weight.shape[0]
    count = max(context, *widths)
    tokens = torch.randint(vocab, (rows, count), generator=generator).to(device)
    cache = new_cache(model.config)
    for begin in range(0, context, PREFILL_CHUNK_POSITIONS):
        block = tokens[:, begin : min(begin + PREFILL_CHUNK_POSITIONS, context)]
        model(input_ids=block, **cache_argument(cache), use_cache=True, logits_to_keep=1)
    rolled = kv_cache_for(cache)
    rolled.record()
    seconds: dict[int, list[float]] = {width: [] for width in sorted(set(widths))}
    for turn in range(repeats + 1):
        for width, times in seconds.items():
            block = tokens[:, :width]
            synchronize(device)
            began = perf_counter()
            with in_place(model, device):
                model(
                    input_ids=block, **cache_argument(cache), use_cache=True, logits_to_keep=width
                )
            synchronize(device)
            if turn:
                times.append(perf_counter() - began)
            rolled.truncate(width)
    return {width: median(times) for width, times in seconds.items()}
