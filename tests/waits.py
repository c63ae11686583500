"""Where a step waits for the device, without what an older transformers waits for by itself."""

from __future__ import annotations

from typing import Any

from ngramspec.hf_model.compat.names import MARKS_CACHES, has

MASKS = "masking_utils"  # reads the padding of a plain step, where the cache may be the caller's


def check_one_wait(found: dict[str, Any]) -> None:
    """That each step waited once, by what ``syncs_per_step`` found."""
    counts, places = found["counts"], found["places"]
    if has(MARKS_CACHES):
        assert set(counts) == {1}, places
        return
    assert sum(n for at, n in places.items() if not at.startswith(MASKS)) == len(counts), places
    assert set(counts) <= {1, 2}, places
