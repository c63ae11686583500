"""Try whether a recurrent model's forward over several tokens continues from its state.

Some models begin such a forward with an empty state, keep it where a cache does not reach, or clamp
step sizes in that forward only. That is found out at the first use of a model: a forward over a few
tokens, undone, and the same tokens one by one must leave the same states.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from weakref import WeakKeyDictionary

import torch

from ngramspec.errors import UnsupportedError
from ngramspec.hf_model.cache.recurrent_state import Checkpoint
from ngramspec.hf_model.compat.classes import least_step_size
from ngramspec.hf_model.compat.layers import drop_last, is_linear, linear_states

BEFORE, TOGETHER = 4, 3  # tokens before those that are tried, and how many these are
TOLERANCE = {torch.float64: 1e-3, torch.float32: 1e-3}  # of the norm; chunks round differently,
COARSE = 0.1  # and in other dtypes more so

_found: WeakKeyDictionary[Any, str | None] = WeakKeyDictionary()  # by model, what is wrong with it


def check_recurrent(model: Any) -> None:
    """Raise an UnsupportedError if drafts cannot be checked on a model's recurrent state.

    A model is tried once, with five forwards over a few tokens. What it keeps of a text in its own
    modules is left as it was: whoever decodes it plainly may go on with that text.

    Args:
        model: a transformers model that keeps a recurrent state.
    """
    if model not in _found:
        with modules_left_alone(model):
            _found[model] = why_not_continued(model)
    reason = _found[model]
    if reason is not None:
        raise UnsupportedError(f"{type(model).__name__} cannot check several tokens: {reason}")


@contextmanager
def modules_left_alone(model: Any) -> Iterator[None]:
    """Put back the attributes that forwards set on a model's modules."""
    before = [(module, dict(vars(module))) for module in model.modules()]
    try:
        yield
    finally:
        for module, own in before:
            now = vars(module)
            for name in now.keys() - own.keys():
                del now[name]
            now.update(own)


@torch.no_grad()
def why_not_continued(model: Any) -> str | None:
    """Why a forward over several tokens differs from one after another; None: it does not."""
    from transformers import DynamicCache

    least = least_step_size(model)
    if least > 0:
        return f"it clamps their step sizes to at least {least}, and not those of a single one"
    decoder = model.get_decoder()
    cache = DynamicCache(config=decoder.config)
    linear = [layer for layer in cache.layers if is_linear(layer)]
    tokens = torch.arange(BEFORE + TOGETHER, device=decoder.device)[None]
    before, new = tokens[:, :BEFORE], tokens[:, BEFORE:]
    _run(decoder, before, cache)
    checkpoint = Checkpoint(linear)
    checkpoint.save()
    recurrent = (state for layer in linear for state in linear_states(layer)[1].values())
    if all(each is None for each in recurrent):
        return "its recurrent state is not in its cache"
    together = [_run(decoder, new, cache), *_states(linear)]
    checkpoint.restore()
    for layer in cache.layers:
        if hasattr(layer, "get_seq_length"):
            drop_last(layer, TOGETHER)
    single = [_run(decoder, each, cache) for each in torch.split(new, 1, dim=1)]
    apart = [torch.cat(single, dim=1), *_states(linear)]
    tolerance = TOLERANCE.get(model.dtype, COARSE)
    if all(map(lambda a, b: near(a, b, tolerance), together, apart)):
        return None
    return "its forward over several tokens does not continue from its recurrent state"


def _run(decoder: Any, tokens: torch.Tensor, cache: Any) -> torch.Tensor:
    """The last hidden states, (1, n, size), of a forward over n of the tokens 0, 1, 2, ..."""
    known = inspect.signature(decoder.forward).parameters
    kwargs: dict[str, Any] = {"use_cache": True, "return_dict": True}
    kwargs["past_key_values" if "past_key_values" in known else "cache_params"] = cache
    if "position_ids" in known:
        kwargs["position_ids"] = tokens
    vocab = int(decoder.get_input_embeddings().weight.shape[0])
    states: torch.Tensor = decoder(input_ids=tokens % vocab, **kwargs).last_hidden_state
    return states


def _states(layers: list[Any]) -> list[torch.Tensor]:
    """Copies of all states of some layers."""
    kinds = [states for layer in layers for states in linear_states(layer)]
    return [state.clone() for kind in kinds for state in kind.values() if state is not None]


def near(one: torch.Tensor, other: torch.Tensor, tolerance: float) -> bool:
    """Whether two tensors differ by at most a share of the norm."""
    difference = (one.float() - other.float()).norm()
    return bool(difference <= tolerance * other.float().norm().clamp(min=1e-6))
