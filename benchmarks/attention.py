"""Attention over a few positions on a CPU: query heads of a group one by one, and folded.

    python benchmarks/attention.py --json attention.json

Times are medians of calls in turn, in one process, of ngramspec's own function with folding and
without, for a layer of SmolLM2-135M's shape (9 query heads, 3 heads of keys, 64 channels).
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from statistics import median
from time import perf_counter
from types import SimpleNamespace
from typing import Any

import torch
from first_look import machine
from transformers.integrations.sdpa_attention import sdpa_attention_forward

from ngramspec.hf_model.attention import gqa_attention

HEADS, OF_KEYS, SIZE = 9, 3, 64


def main() -> None:
    """Measure, print a table, write the JSON."""
    parser = argparse.ArgumentParser(description="attention folded and not, in turn")
    parser.add_argument("--rows", nargs="+", type=int, default=[1, 4, 8, 16])
    parser.add_argument("--positions", nargs="+", type=int, default=[2, 4, 8])
    parser.add_argument("--keys", type=int, default=400, help="positions in the cache")
    parser.add_argument("--repeats", type=int, default=40)
    parser.add_argument("--json", type=Path, help="where to write the times")
    arguments = parser.parse_args()
    found = []
    print(f"{'rows':>5}{'positions':>10}{'one by one':>12}{'folded':>9}   µs")
    for rows in arguments.rows:
        for positions in arguments.positions:
            row = measure(rows, positions, arguments.keys, arguments.repeats)
            found.append(row)
            print(f"{rows:>5}{positions:>10}{row['apart']:>12.0f}{row['folded']:>9.0f}")
    if arguments.json:
        settings = {name: str(value) for name, value in vars(arguments).items()}
        result = {"settings": settings, "machine": machine(), "rows": found}
        arguments.json.write_text(json.dumps(result, indent=1) + "\n")


def measure(rows: int, positions: int, keys: int, repeats: int) -> dict[str, Any]:
    """Median microseconds of a layer's attention, both ways."""
    make = torch.Generator().manual_seed(rows * positions)
    query = torch.randn(rows, HEADS, positions, SIZE, generator=make).bfloat16()
    key, value = torch.randn(2, rows, OF_KEYS, keys, SIZE, generator=make).bfloat16()
    mask = torch.ones(rows, 1, positions, keys, dtype=torch.bool).tril(keys - positions)
    attend = gqa_attention.grouped(sdpa_attention_forward)
    module: Any = SimpleNamespace(num_key_value_groups=HEADS // OF_KEYS, is_causal=True)
    most = gqa_attention.FOLDED
    seconds: dict[str, list[float]] = {"apart": [], "folded": []}
    outputs = {}
    with gqa_attention.in_place(torch.device("cpu")):
        for _ in range(repeats + 1):
            for way, limit in (("apart", 0), ("folded", most)):
                gqa_attention.FOLDED = limit
                attend(module, query, key, value, mask)  # makes the mask that is added
                begin = perf_counter()
                outputs[way] = attend(module, query, key, value, mask)[0]
                seconds[way].append(perf_counter() - begin)
    gqa_attention.FOLDED = most
    times = {way: 1e6 * median(each[1:]) for way, each in seconds.items()}
    same = torch.equal(outputs["apart"], outputs["folded"])
    return {"rows": rows, "positions": positions, "keys": keys, **times, "same_bits": same}


if __name__ == "__main__":
    main()
