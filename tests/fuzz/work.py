"""What a process of the fuzzer does: some seeds, one after another."""

from __future__ import annotations

import gc
import logging
import os
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("OMP_NUM_THREADS", "1")


def begin() -> None:
    """Make a process quiet, and one thread."""
    import torch
    import transformers

    torch.set_num_threads(1)
    transformers.utils.logging.set_verbosity(logging.CRITICAL)
    logging.disable(logging.CRITICAL)
    gc.freeze()  # cases run collections, which need not look at what was imported


def some_cases(seeds: range) -> list[dict[str, Any]]:
    return [one_case(seed) for seed in seeds]


def one_case(seed: int) -> dict[str, Any]:
    from fuzz.options import draw
    from fuzz.run import Result, run, shrink

    case = draw(seed)
    try:
        result = run(case)
    except Exception as error:
        result = Result("finding", "harness", f"{type(error).__name__}: {error}")
    smallest = case
    if result.outcome == "finding" and result.kind != "harness":
        smallest, result = shrink(case, result)
    return {
        "seed": seed,
        "family": case.family,
        "outcome": result.outcome,
        "kind": result.kind,
        "detail": result.detail,
        "case": repr(case),
        "smallest": repr(smallest),
    }
