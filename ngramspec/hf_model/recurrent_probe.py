"""Test whether a recurrent model's forward over several tokens continues from its state.

Some models begin such a forward with an empty state, keep the state outside the cache, or clamp
step sizes in that forward only. This is tested at the first use of a model: one forward over a few
tokens and forwards over the same tokens one by one must give the same states.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, MutableMapping, Sequence
from typing import Any
from weakref import WeakKeyDictionary

import torch

from ngramspec.errors import UnsupportedError
from ngramspec.hf_model.cache.kv_cache import kv_cache_for
from ngramspec.hf_model.compat.cache_name import cache_names, parameter_of
from ngramspec.hf_model.compat.classes import least_step_size
from ngramspec.hf_model.compat.layers import is_linear, linear_states

PREFIX_TOKENS = 4  # tokens in the cache before the forwards that are compared
PROBE_TOKENS = 3  # tokens of these forwards
# Maximum difference relative to the norm, because wider forwards round differently. Not tuned.
TOLERANCE = {torch.float64: 1e-3, torch.float32: 1e-3}
COARSE_TOLERANCE = 0.1  # in other dtypes

# By model, whether it was in training mode when it was tested, and why it is unsupported.
Found = MutableMapping[Any, tuple[bool, str | None]]

_found: Found = WeakKeyDictionary()


def check_recurrent(model: Any, rows: int) -> None:
    """Raise an UnsupportedError if drafts cannot be verified with a model's recurrent state.

    The test's forwards have ``rows`` rows, which the model's hooks may rely on.
    """
    reason = tested_once(model, lambda model: why_not_continued(model, rows), _found)
    if reason is not None:
        raise UnsupportedError(f"{type(model).__name__} cannot check several tokens: {reason}")


def tested_once(model: Any, test: Callable[[Any], str | None], found: Found) -> str | None:
    """Return a model's result in ``found``; if there is none, run ``test`` and store its result.

    A result holds in training mode or in evaluation mode only: in training mode, layers may get no
    cache. A test that raises an error rules the model out for this call. After a test, the
    attributes of the model's modules are restored, because a baseline generation may continue with
    states kept there.
    """
    training = any(module.training for module in model.modules())
    if found.get(model, (None,))[0] != training:
        before = [(module, dict(vars(module))) for module in model.modules()]
        try:
            found[model] = training, test(model)
        except Exception as error:
            return f"a forward that tests it failed: {type(error).__name__}: {error}"
        finally:
            for module, own in before:
                now = vars(module)
                for name in now.keys() - own.keys():
                    del now[name]
                now.update(own)
    return found[model][1]


@torch.no_grad()
def why_not_continued(model: Any, rows: int = 1) -> str | None:
    """Why a forward over several tokens differs from forwards of single ones; None: it does not."""
    from transformers import DynamicCache

    least = least_step_size(model)
    if least > 0:
        return f"it clamps their step sizes to at least {least}, but not that of a single token"
    decoder = model.get_decoder()
    cache = DynamicCache(config=decoder.config)
    kv_cache = kv_cache_for(cache, recurrent=True)
    kv_cache.record()
    linear, checkpoint = [each for each in cache.layers if is_linear(each)], kv_cache.checkpoint
    assert checkpoint is not None
    tokens = torch.arange(PREFIX_TOKENS + PROBE_TOKENS, device=decoder.device).expand(rows, -1)
    before, new = tokens[:, :PREFIX_TOKENS], tokens[:, PREFIX_TOKENS:]
    _run(decoder, before, cache)
    kv_cache.truncate(0)
    checkpoint.save()
    recurrent = (state for layer in linear for state in linear_states(layer)[1].values())
    if all(each is None for each in recurrent):
        return "its recurrent state is not in its cache"
    together = [_run(decoder, new, cache)]
    kv_cache.truncate(0)
    together += _states(linear)
    checkpoint.restore()
    kv_cache.truncate(PROBE_TOKENS)
    single = []
    for each in torch.split(new, 1, dim=1):
        single.append(_run(decoder, each, cache))
        kv_cache.truncate(0)
    apart = [torch.cat(single, dim=1), *_states(linear)]
    if alike(together, apart, model.dtype):
        return None
    return "its forward over several tokens does not continue from its recurrent state"


def _run(decoder: Any, tokens: torch.Tensor, cache: Any) -> torch.Tensor:
    """Return the last hidden states, (rows, n, size), of a forward over n tokens of each row."""
    known = inspect.signature(decoder.forward).parameters
    kwargs: dict[str, Any] = {"use_cache": True, "return_dict": True}
    kwargs[parameter_of(decoder.forward) or cache_names()[0]] = cache
    if "position_ids" in known:
        kwargs["position_ids"] = tokens
    vocab = int(decoder.get_input_embeddings().weight.shape[0])
    states: torch.Tensor = decoder(input_ids=tokens % vocab, **kwargs).last_hidden_state
    return states


def _states(layers: list[Any]) -> list[torch.Tensor]:
    """Return copies of all states of some layers."""
    kinds = [states for layer in layers for states in linear_states(layer)]
    return [state.clone() for kind in kinds for state in kind.values() if state is not None]


def alike(ones: Sequence[torch.Tensor], others: Sequence[torch.Tensor], dtype: torch.dtype) -> bool:
    """Whether tensors differ by no more, relative to their norm, than ``dtype`` allows."""
    tolerance = TOLERANCE.get(dtype, COARSE_TOLERANCE)
    return all(
        bool((one.float() - other.float()).norm() <= tolerance * other.float().norm().clamp(1e-6))
        for one, other in zip(ones, others, strict=True)
    )
