"""Trial forwards over a few tokens: what a model does that its class does not tell."""

from __future__ import annotations

import inspect
from collections.abc import Callable, MutableMapping, Sequence
from contextlib import suppress
from copy import deepcopy
from typing import Any
from weakref import WeakKeyDictionary

import torch

from ngramspec.errors import UnsupportedError
from ngramspec.hf_model.cache.kinds import states_of
from ngramspec.hf_model.cache.layers import parts_of
from ngramspec.hf_model.compat import models
from ngramspec.hf_model.compat.caches import cache_argument, cache_names, new_cache, parameter_of
from ngramspec.hf_model.compat.devices import device_of
from ngramspec.hf_model.compat.factories import new_encoder_decoder_cache
from ngramspec.hf_model.compat.models import layer_count, least_step_size
from ngramspec.hf_model.compat.resources import is_first_notice

PREFIX_TOKENS = 4  # tokens in the cache before the forwards that are compared
PROBE_TOKENS = 3  # tokens of these forwards
# Maximum difference relative to the norm, well above what rounding in wider forwards changes.
TOLERANCE = {torch.float64: 1e-3, torch.float32: 1e-3}
COARSE_TOLERANCE = 0.1  # in other dtypes

# By model, whether it was in training mode when it was tested, and why it is unsupported.
TestResults = MutableMapping[Any, tuple[bool, str | None]]

_found: TestResults = WeakKeyDictionary()


def check_recurrent(model: Any, rows: int) -> None:
    """Raise an UnsupportedError if drafts cannot be verified with a model's recurrent state."""
    reason = tested_once(model, lambda model: why_not_continued(model, rows), _found)
    if reason is not None:
        raise UnsupportedError(f"{type(model).__name__} cannot check several tokens: {reason}")


def tested_once(model: Any, test: Callable[[Any], str | None], found: TestResults) -> str | None:
    """Return a model's result in ``found``; if there is none, run ``test`` and store its result.

    In training mode, layers may get no cache, so a result holds in one mode. A test that raises
    rules the model out for this call. A baseline generation may continue with states kept in
    attributes of the model's modules, so these are restored; what another thread sets meanwhile,
    such as the mode or a ``generate``, is no such state.
    """
    training = any(module.training for module in model.modules())
    if found.get(model, (None,))[0] != training:
        before = [(module, dict(vars(module))) for module in model.modules()]
        try:
            found[model] = training, test(model)
        except Exception as error:
            _unload(model)
            return f"a forward that tests it failed: {type(error).__name__}: {error}"
        finally:
            for module, own in before:
                _restore_states(module, own)
    return found[model][1]


STATES = (torch.Tensor, list, tuple)


def _restore_states(module: Any, own: dict[str, Any]) -> None:
    """Give attributes that hold or held a state their earlier values back."""
    now = vars(module)
    for name in own.keys() | now.keys():
        held, holds = own.get(name), now.get(name)
        if held is holds or not (isinstance(held, STATES) or isinstance(holds, STATES)):
            continue
        if name in own:
            now[name] = held
        else:
            del now[name]


def _unload(model: Any) -> None:
    """Offload the weights that an interrupted forward left loaded."""
    for module in model.modules():
        hook: Any = getattr(module, "_hf_hook", None)
        loaded = any(not each.is_meta for each in module.parameters(recurse=False))
        if loaded and getattr(hook, "offload", False):
            hook.post_forward(module, None)


@torch.no_grad()
def why_not_continued(model: Any, rows: int = 1) -> str | None:
    """Why a forward over several tokens differs from forwards of single ones; None: it does not."""
    least = least_step_size(model)
    if least > 0:
        return f"it clamps their step sizes to at least {least}, but not that of a single token"
    decoder = model.get_decoder()
    cache = new_cache(decoder.config)
    tokens = torch.arange(PREFIX_TOKENS + PROBE_TOKENS, device=device_of(model)).expand(rows, -1)
    before, new = tokens[:, :PREFIX_TOKENS], tokens[:, PREFIX_TOKENS:]
    _run(decoder, before, cache)
    recurrent = (states_of(layer)[1].values() for layer in _linear(cache))
    if all(each is None for states in recurrent for each in states):
        return "its recurrent state is not in its cache"
    other = deepcopy(cache)
    together = [_run(decoder, new, cache), *_states(cache)]
    single = [_run(decoder, each, other) for each in torch.split(new, 1, dim=1)]
    if alike(together, [torch.cat(single, dim=1), *_states(other)], model.dtype):
        return None
    return "its forward over several tokens does not continue from its recurrent state"


@torch.no_grad()
def give_notices(model: Any, device: torch.device) -> None:
    """Let a model log once what the baseline's forwards of one position do, in a forward of that.

    There, linear layers use other kernels, and log that a fast one is not installed. Forwards over
    drafts, or over convolutions that record, do not use these.
    """
    if is_first_notice(type(model)):
        decoder = model.get_decoder()
        cache, token = (
            new_cache(decoder.config),
            torch.zeros((1, 1), dtype=torch.int64, device=device),
        )
        with suppress(Exception):  # the call itself may still work
            for _ in range(2):  # the second one has a state to continue from
                _run(decoder, token, cache)


def _run(decoder: Any, tokens: torch.Tensor, cache: Any) -> torch.Tensor:
    """Return the last hidden states, (rows, n, size), of a forward over n tokens of each row."""
    kwargs: dict[str, Any] = {"use_cache": True, "return_dict": True}
    kwargs[parameter_of(decoder.forward) or cache_names()[0]] = cache
    if "position_ids" in inspect.signature(decoder.forward).parameters:
        kwargs["position_ids"] = tokens
    vocab = int(decoder.get_input_embeddings().weight.shape[0])
    states: torch.Tensor = decoder(input_ids=tokens % vocab, **kwargs).last_hidden_state
    return states


def _linear(cache: Any) -> list[Any]:
    return [each.layer for each in parts_of(cache) if each.convolves]


def _states(cache: Any) -> list[torch.Tensor]:
    kinds = [states for layer in _linear(cache) for states in states_of(layer)]
    return [state for kind in kinds for state in kind.values() if state is not None]


def alike(ones: Sequence[torch.Tensor], others: Sequence[torch.Tensor], dtype: torch.dtype) -> bool:
    """Whether tensors differ by no more, relative to their norm, than ``dtype`` allows."""
    tolerance = TOLERANCE.get(dtype, COARSE_TOLERANCE)
    return all(
        bool((one.float() - other.float()).norm() <= tolerance * other.float().norm().clamp(1e-6))
        for one, other in zip(ones, others, strict=True)
    )


# Input preparation


def try_preparation(
    model: Any, input_ids: torch.Tensor, kwargs: dict[str, Any], length: int
) -> tuple[bool, bool]:
    """Whether a model's input preparation passes on position ids, and masks of four dimensions.

    It prepares two tokens after a prompt of ``length`` ones, over a cache of zeros. Both get the
    same position, which a function that counts positions itself never returns. An UnsupportedError
    says that the method drops one of the tokens, or raises.
    """
    prefix = "decoder_" if models.is_encoder_decoder(model) else ""
    rows = input_ids.shape[0]
    grown = kwargs | cache_argument(_zeros(model, rows, length))
    mask, positions = (kwargs.get(f"{prefix}{name}") for name in ("attention_mask", "position_ids"))
    if positions is None:  # ``Inputs.begin`` adds them
        positions = torch.arange(length, device=input_ids.device).expand(rows, -1)
    if isinstance(mask, torch.Tensor) and mask.ndim == 2:
        grown[f"{prefix}attention_mask"] = torch.cat((mask, mask.new_ones((rows, 2))), dim=1)
    last = positions[..., -1:] + 1
    grown[f"{prefix}position_ids"] = torch.cat((positions, last, last), dim=-1)
    inputs = _prepared(model, input_ids, grown)
    ids, out = (inputs.get(f"{prefix}{name}") for name in ("input_ids", "position_ids"))
    if not isinstance(ids, torch.Tensor) or ids.shape[1] != 2:
        method = f"{type(model).__name__}.prepare_inputs_for_generation"
        raise UnsupportedError(
            f"{method} does not return two new tokens; have it use next_sequence_length"
        )
    same = out is not None and bool((out[..., -2:] == last).all())
    return same, same and _passes_mask(model, input_ids, grown, length)


def _passes_mask(model: Any, input_ids: torch.Tensor, grown: dict[str, Any], length: int) -> bool:
    rows = input_ids.shape[0]
    mask = torch.ones((rows, 1, 2, length + 2), dtype=torch.bool, device=input_ids.device)
    try:
        inputs = _prepared(model, input_ids, grown | {"attention_mask": mask})
    except UnsupportedError:
        return False
    return inputs.get("attention_mask") is mask


def _prepared(model: Any, input_ids: torch.Tensor, grown: dict[str, Any]) -> dict[str, Any]:
    text = torch.cat((input_ids, input_ids.new_zeros((input_ids.shape[0], 2))), dim=1)
    try:
        return dict(model.prepare_inputs_for_generation(text, next_sequence_length=2, **grown))
    except Exception as error:
        method = f"{type(model).__name__}.prepare_inputs_for_generation"
        raise UnsupportedError(f"{method} fails with two new tokens: {error}") from error


def _zeros(model: Any, rows: int, length: int) -> Any:
    """Return a cache with keys and values of zeros, (rows, 1, length, 1), for each layer."""
    cache = new_cache()
    states = torch.zeros((rows, 1, length, 1), dtype=model.dtype, device=device_of(model))
    for layer in range(layer_count(model)):
        cache.update(states, states, layer)
    return new_encoder_decoder_cache(cache) if models.is_encoder_decoder(model) else cache
