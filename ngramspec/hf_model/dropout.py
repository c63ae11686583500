"""Check whether a model's forwards are random, because of dropout or jitter in training mode."""

from __future__ import annotations

from typing import Any

from torch.nn.modules.dropout import _DropoutNd

# Parts of the names of attributes that hold a rate: attention_dropout, layerdrop, ...
RATE_NAME_PARTS = ("drop", "jitter")


def drops_out(model: Any) -> bool:
    """Whether a module in training mode has a dropout or jitter rate above 0.

    An adapter added to a model in evaluation mode is itself in training mode.
    """
    return any(
        isinstance(value, float) and value > 0
        for module in model.modules()
        if module.training
        for name, value in vars(module).items()
        if any(each in name for each in RATE_NAME_PARTS)
        or (name == "p" and isinstance(module, _DropoutNd))
    )
