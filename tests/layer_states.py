"""Layers' states after a rollback, beside those of a run that never drafted."""

from __future__ import annotations

from functools import cache

import pytest
import torch
import transformers
from fuzz.state import length_of
from plain_text import PROMPT
from transformers import DynamicCache

from benchmarks import tiny
from ngramspec.hf_model.compat.caches import cache_argument
from ngramspec.hf_model.compat.package import KEEPS_SELECTION, has

GREEDY = {"do_sample": False, "max_new_tokens": 24}


@cache
def model_of(name: str):
    """The tiny model of a class of transformers, built once; the test is skipped without it."""
    if not hasattr(transformers, name):
        pytest.skip(f"transformers {transformers.__version__} has no {name}")
    model = tiny.build(getattr(transformers, name))
    if not has(KEEPS_SELECTION) and name.startswith(("Deepseek", "Glm")):
        model.set_attn_implementation("eager")
    return model


def new_cache(model) -> DynamicCache:
    return DynamicCache(config=model.config)


def cache_after(model, ids: torch.Tensor) -> DynamicCache:
    """The cache of one forward over ``ids`` that never saw anything else.

    With an index, what is after the prompt is run token by token: among equal scores, one forward
    over all would select other keys.
    """
    made = new_cache(model)
    indexed = any(type(layer).__name__ == "DynamicIndexedLayer" for layer in made.layers)
    first = PROMPT.shape[1] if indexed else ids.shape[1]
    with torch.no_grad():
        for part in (ids[:, :first], *ids[:, first:].split(1, dim=1)):
            if part.shape[1]:
                model(part, **cache_argument(made))
    return made


def assert_close(own: torch.Tensor, other: torch.Tensor, within: float = 5e-4) -> None:
    """Equal up to what kernels of several tokens and of one round differently."""
    torch.testing.assert_close(own, other, rtol=within, atol=within)


def assert_same_cache(ours, plain, within: float = 1e-3) -> None:
    """The same layers, and the same states in them; a static cache is compared as far as it goes.

    Those of an encoder-decoder model are their decoder's.
    """
    ours, plain = (getattr(each, "self_attention_cache", each) for each in (ours, plain))
    length = length_of(plain)  # None: no layer has attention
    assert length_of(ours) == length
    for mine, theirs in zip(ours.layers, plain.layers, strict=True):
        for name in ("keys", "values", "indexer_keys", "indexer_position_ids"):
            own, other = (getattr(each, name, None) for each in (mine, theirs))
            assert (own is None) == (other is None)
            if other is not None:
                assert_close(own[..., :length, :], other[..., :length, :], within)
        for name in ("conv_states", "recurrent_states"):
            for at, state in getattr(theirs, name, {}).items():
                if state is not None:
                    assert_close(getattr(mine, name)[at], state, within)
