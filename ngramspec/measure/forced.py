"""Making a model generate a given text, so that a measurement does not depend on what it generates.

The model's own logits are changed so that the text is most probable. A logits processor would make
every decoder choose its tokens one by one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import wraps
from typing import Any

import torch

from ngramspec.hf_model.compat.caches import cache_of
from ngramspec.hf_model.compat.names import forget_compiled_call
from ngramspec.hf_model.compat.positions import given_positions

TARGETS = "_forced_targets"
POSITIONS_AFTER_TEXT = 4352  # for the longest draft that may be asked for, and padding


@contextmanager
def forced_model(model: Any, capacity: int) -> Iterator[Callable[[Sequence[int] | None], None]]:
    """Make a text's tokens the most probable ones of ``model``'s forward, by position.

    The logits are computed as usual. Then the token of the text that follows each position gets the
    highest logit. Positions are ``position_ids``, those that ngramspec gives a model which counts
    them itself, or counted on from the cache, so that drafts, trees, static caches and compiled
    forwards see the same text. The model's class is replaced by a subclass of the same name for the
    length of the block. All rows of a batch have the same text, and prompt, text and drafts after
    its end have at most ``capacity`` tokens.

    Yields:
        A function that sets the text: the sequence's token ids from position 0 on, or None for the
        model's own text, which is the initial state. It may be called repeatedly.
    """
    kind = type(model)
    targets = torch.zeros(capacity, dtype=torch.int64, device=model.device)
    forcing = [False]

    @wraps(kind.forward)
    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        positions = kwargs.get("position_ids", given_positions())
        if positions is None:  # before the forward: it moves the cache's length
            positions = _positions(args[0] if args else kwargs["input_ids"], kwargs)
        outputs = kind.forward(self, *args, **kwargs)
        if not forcing[0]:
            return outputs
        logits = outputs.logits  # (batch, n, vocab)
        wanted = getattr(self, TARGETS)[positions[:, -logits.shape[1] :]]
        highest = torch.finfo(logits.dtype).max / 2
        index = wanted[..., None].expand(*logits.shape[:2], 1)
        logits.scatter_(-1, index, highest)
        return outputs

    def set_text(tokens: Sequence[int] | None) -> None:
        forcing[0] = tokens is not None
        if tokens is None:
            return
        if not 2 <= len(tokens) <= capacity:
            raise ValueError(f"a text must have 2..{capacity} tokens, got {len(tokens)}")
        following = torch.tensor([*tokens[1:], tokens[-1]], device=targets.device)
        targets[: len(following)] = following
        targets[len(following) :] = following[-1]

    members = {"forward": forward, "__module__": kind.__module__}  # which decides abilities
    model.__class__ = type(kind.__name__, (kind,), members)
    model.register_buffer(TARGETS, targets, persistent=False)
    try:
        yield set_text
    finally:
        model.__class__ = kind
        delattr(model, TARGETS)
        forget_compiled_call(model)  # it was compiled for the subclass


def _positions(input_ids: torch.Tensor, kwargs: dict[str, Any]) -> torch.Tensor:
    """Positions of a forward's tokens that follow what its cache holds, int64 (1, n)."""
    cache = cache_of(kwargs)
    before = 0 if cache is None else cache.get_seq_length()
    return (torch.arange(input_ids.shape[1], device=input_ids.device) + before)[None]
