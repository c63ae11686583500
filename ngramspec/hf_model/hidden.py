"""The states that a model's head turns into logits."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch


@contextmanager
def head_inputs(model: Any, wanted: bool) -> Iterator[list[torch.Tensor]]:
    """Collect the inputs of the model's head in this thread's forwards inside the block.

    Args:
        model: a transformers model.
        wanted: False: nothing is collected.

    Yields:
        a list to which each forward appends (batch, positions, d); it stays empty for a model
        without a head (``get_output_embeddings``).
    """
    found: list[torch.Tensor] = []
    head = model.get_output_embeddings() if wanted else None
    if not isinstance(head, torch.nn.Module):
        yield found
        return
    mine = threading.get_ident()  # other threads may run the same model

    def keep(_: Any, inputs: tuple[Any, ...]) -> None:
        if threading.get_ident() == mine and inputs:
            found.append(inputs[0])

    hook = head.register_forward_pre_hook(keep)
    try:
        yield found
    finally:
        hook.remove()
