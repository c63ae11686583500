"""Twin of the choice among a batch's drafts."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt


def worthwhile_heads(
    confidences: Sequence[npt.NDArray[np.float32]],
    curve: npt.NDArray[np.float32],
    chains: bool = True,
) -> list[int]:
    """How long the heads of a batch's drafts are where its expected tokens per cost are highest."""
    rows = len(confidences)
    if not rows:
        return []
    exact = [each.astype(np.float64) for each in confidences]
    reach = np.concatenate([np.cumprod(each) if chains else each for each in exact])
    row = np.repeat(np.arange(rows), [len(each) for each in confidences])
    order = np.argsort(-reach, kind="stable")[: len(curve) - 1]
    expected = np.cumsum(np.concatenate(([rows], reach[order])))
    value = expected / curve[: len(expected)]
    best = len(value) - 1 - int(value[::-1].argmax())
    lengths: list[int] = np.bincount(row[order[:best]], minlength=rows).tolist()
    return lengths
