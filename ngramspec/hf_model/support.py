"""Checks that refuse unsupported models and calls of ``generate``, with the reason and a remedy."""

from __future__ import annotations

import inspect
from collections.abc import Callable, MutableMapping, Sequence
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch.nn.modules.dropout import _DropoutNd

from ngramspec.errors import UnsupportedError
from ngramspec.hf_model.cache.kv_cache import KVCache, kv_cache_for
from ngramspec.hf_model.cache.linear import states_of
from ngramspec.hf_model.compat import names
from ngramspec.hf_model.compat.caches import cache_names, cache_of, new_cache, parameter_of
from ngramspec.hf_model.compat.versions import KEEPS_SELECTION, PLACES_TOKENS, has
from ngramspec.hf_model.traits import CallTraits, Traits

# Arguments of decoding modes that transformers loads from its hub with trust_remote_code=True, and
# the value other than None that switches each off.
HUB_MODES_OFF = {
    "constraints": None,
    "dola_layers": None,
    "force_words_ids": None,
    "num_beam_groups": 1,
    "penalty_alpha": 0,
}
# Arguments that are refused before transformers sees the call, which it might not accept.
REFUSED_AT_ONCE = HUB_MODES_OFF | {"assistant_early_exit": None}
# Arguments of ``generate`` that rule speculation out, and the value that switches each off.
OFF_VALUES = REFUSED_AT_ONCE | {
    "cache_implementation": "dynamic",
    "prompt_lookup_num_tokens": None,
    "token_healing": False,
}


def check_model(model: Any, model_kwargs: dict[str, Any]) -> None:
    """Raise an UnsupportedError if the model does not support speculation."""
    name, kinds = type(model).__name__, names.names_of(model)
    if model_kwargs.get("use_cache") is False:
        raise UnsupportedError("use_cache=False leaves nothing to roll back; pass use_cache=True")
    recurrent = names.is_stateful(model)
    for one in sorted(kinds & names.ONE_AT_A_TIME.keys()):
        raise UnsupportedError(f"{name} cannot check several tokens: {names.ONE_AT_A_TIME[one]}")
    for one in sorted(kinds & names.ONE_AT_A_TIME_WITH.keys()):
        setting, value, reason = names.ONE_AT_A_TIME_WITH[one]
        if getattr(getattr(model, "config", None), setting, None) == value:  # a class has none
            raise UnsupportedError(f"{name} cannot check several tokens: {reason}")
    for one in sorted(kinds & names.OWN_CACHE.keys()):
        raise UnsupportedError(f"{name} cannot roll tokens back: {names.OWN_CACHE[one]}")
    if kinds & names.PLACES_ONE_TOKEN_ELSEWHERE and not has(PLACES_TOKENS):
        raise UnsupportedError(
            f"{name} cannot check several tokens before transformers {PLACES_TOKENS.version}"
        )
    forwards = [vars(kind)["forward"] for kind in type(model).__mro__ if "forward" in vars(kind)]
    parameters = {each for forward in forwards for each in inspect.signature(forward).parameters}
    if recurrent and not parameters & {*cache_names()}:
        raise UnsupportedError(
            f"{name} keeps a recurrent state outside the caches of transformers, where it cannot be"
            " rolled back"
        )
    if "input_ids" in parameters and cache_names()[0] not in parameters and not recurrent:
        raise UnsupportedError(f"{name} keeps no key-value cache; speculation needs one")
    if names.overridden(model, names.UPDATE_METHODS):
        raise UnsupportedError(f"{name} overrides how its inputs are updated between steps")
    method = names.overridden(model, names.LOOP_METHODS)
    if method is not None:
        raise UnsupportedError(
            f"{name} overrides {method}, which speculation would skip; pass"
            " Speculator(unsupported='plain') to decode with it"
        )


def check_adapter(model: Any) -> None:
    """Raise an UnsupportedError if an adapter's effect depends on the width of the forward.

    An adapter that changes weights stores its configuration on the model. One that learned a prompt
    stores it on a wrapper, which prepares the model's inputs during generation.
    """
    wrapper = getattr(model.prepare_inputs_for_generation, "__self__", model)
    configs = getattr(wrapper, "peft_config", None) or {}
    for name, own in configs.items():
        if getattr(own, "is_prompt_learning", False):
            kind = str(getattr(own.peft_type, "value", own.peft_type))
            raise UnsupportedError(
                f"the adapter {name!r} ({kind}) forwards one token at a time after its own prompt;"
                " use one that changes weights, such as LoRA"
            )
        if getattr(own, "alora_invocation_tokens", None):
            raise UnsupportedError(
                f"the adapter {name!r} is an activated LoRA, whose start is counted from the end of"
                " each forward; use a LoRA without alora_invocation_tokens"
            )


def check_cache(traits: Traits, cache: KVCache) -> None:
    """Raise an UnsupportedError if a model's output would differ with a cache of this kind."""
    if cache.capacity is not None and traits.names & names.NOT_STATIC:
        raise UnsupportedError(
            f"{traits.name} decodes differently on a static cache; remove cache_implementation, or"
            " pass a DynamicCache"
        )
    sparse = cache.indexed and not traits.recurrent and traits.attention == "sdpa"
    if sparse and not has(KEEPS_SELECTION):
        raise UnsupportedError(
            f"{traits.name} cannot check several tokens under sdpa before transformers"
            f" {KEEPS_SELECTION.version}: they attend to keys that its index did not select; load"
            " it with attn_implementation='eager'"
        )


def check_states(traits: Traits, call: CallTraits) -> None:
    """Raise an UnsupportedError if the requested attentions differ from those of single tokens."""
    if not any("attentions" in name for name in call.states):
        return
    remedy = "pass output_attentions=False"
    if call.slides or (call.static and traits.windows is not None):
        raise UnsupportedError(
            f"output_attentions=True is not supported with sliding-window attention; {remedy}"
        )
    found = traits.names & names.ATTENDS_BY_OUTPUT
    if found and traits.attention == "sdpa":  # the baseline's output changes, too
        raise UnsupportedError(
            f"{min(found)} attends differently under sdpa with output_attentions=True;"
            f" {remedy}, or load it with attn_implementation='eager'"
        )


def check_prefilled(model: Any, cache: KVCache, call: CallTraits) -> None:
    """Raise an UnsupportedError if the prefill did not store its positions in the cache.

    Up to transformers 5.23, a layer with gradient checkpointing gets no cache in training mode. In
    evaluation mode, some models have layers that store nothing.
    """
    stored = [layer.length > call.cached for layer in cache.attention]
    training = any(module.training for module in model.modules())
    if stored and not (all(stored) if training else any(stored)):
        raise UnsupportedError(
            f"the prefill of {type(model).__name__} stored its keys in {sum(stored)} of"
            f" {len(stored)} layers of the cache, as with gradient checkpointing in training mode;"
            " call model.eval()"
        )


def check_request(config: Any) -> None:
    """Raise an UnsupportedError that names the settings of ``generate`` that are unsupported."""
    beams = config.num_beams or 1
    if beams > 1 and config.do_sample:
        raise UnsupportedError(
            f"num_beams={beams} with do_sample=True cannot be combined with a Speculator; pass"
            " num_beams=1, or do_sample=False"
        )
    if beams > 1 and config.low_memory:
        raise UnsupportedError("low_memory=True is not supported with beams; pass low_memory=False")
    refused = {
        name: getattr(config, name)
        for name, off in ({"prompt_lookup_num_tokens": None} | REFUSED_AT_ONCE).items()
        if getattr(config, name, None) not in (None, off)
    }
    if refused:
        raise UnsupportedError(refusal(refused))


def check_beams_of(model: Any, beams: int) -> None:
    """Raise an UnsupportedError if a model with several beams overrides beam search."""
    if beams > 1 and names.overridden(model, names.BEAM_METHODS):
        name = type(model).__name__
        raise UnsupportedError(
            f"num_beams={beams}: {name} has its own beam search; pass num_beams=1"
        )


def refusal(settings: dict[str, Any]) -> str:
    """Return the message for settings that rule speculation out, with arguments as the remedy."""
    shown = (name if value is None else f"{name}={value}" for name, value in settings.items())
    found = ", ".join(shown)
    remedy = ", ".join(f"{name}={OFF_VALUES[name]!r}" for name in settings)
    if "assistant_early_exit" in settings:
        remedy += ", and a small model as assistant_model if a model should draft"
    return f"{found} cannot be combined with a Speculator; pass {remedy}"


def check_prompt(model: Any, input_ids: torch.Tensor, model_kwargs: dict[str, Any]) -> None:
    """Raise a ValueError for an empty prompt, or for ids that the model has no embedding for.

    Placeholders, for example of an image, may be outside the vocabulary, and so may tokens that a
    given cache holds, for example the padding of an earlier turn. Nothing is checked if
    ``model_kwargs`` include ``inputs_embeds``.
    """
    if model_kwargs.get("inputs_embeds") is not None:
        return
    if input_ids.shape[1] == 0:
        raise ValueError(f"input_ids must hold at least one token, got shape {(*input_ids.shape,)}")
    vocab = names.embedding_count(model)
    if vocab is None:
        return
    low, high = int(input_ids.min()), int(input_ids.max())
    if low < 0 or high >= vocab:
        cache = cache_of(model_kwargs)
        new = input_ids if cache is None else input_ids[:, int(cache.get_seq_length()) :]
        wrong = set(new[(new < 0) | (new >= vocab)].tolist())
        for bad in sorted(wrong - names.placeholders(model.config)):
            raise ValueError(f"input_ids must lie in 0..{vocab - 1}, got {bad}")


# Parts of the names of attributes that hold a rate: attention_dropout, layerdrop, ...
RATE_NAME_PARTS = ("drop", "jitter")


def drops_out(model: Any) -> bool:
    """Whether a module in training mode, such as a new adapter, has a dropout or jitter rate."""
    return any(
        isinstance(value, float) and value > 0
        for module in model.modules()
        if module.training
        for name, value in vars(module).items()
        if any(each in name for each in RATE_NAME_PARTS)
        or (name == "p" and isinstance(module, _DropoutNd))
    )


# Recurrent states

PREFIX_TOKENS = 4  # tokens in the cache before the forwards that are compared
PROBE_TOKENS = 3  # tokens of these forwards
# Maximum difference relative to the norm, because wider forwards round differently. Not tuned.
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
    least = names.least_step_size(model)
    if least > 0:
        return f"it clamps their step sizes to at least {least}, but not that of a single token"
    decoder = model.get_decoder()
    cache = new_cache(decoder.config)
    kv_cache = kv_cache_for(cache, recurrent=True)
    kv_cache.record()
    linear = [each.layer for each in kv_cache.layers if each.convolves]
    checkpoint = kv_cache.checkpoint
    assert checkpoint is not None
    tokens = torch.arange(PREFIX_TOKENS + PROBE_TOKENS, device=decoder.device).expand(rows, -1)
    before, new = tokens[:, :PREFIX_TOKENS], tokens[:, PREFIX_TOKENS:]
    _run(decoder, before, cache)
    kv_cache.truncate(0)
    checkpoint.save()
    recurrent = (state for layer in linear for state in states_of(layer)[1].values())
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
    kinds = [states for layer in layers for states in states_of(layer)]
    return [state.clone() for kind in kinds for state in kind.values() if state is not None]


def alike(ones: Sequence[torch.Tensor], others: Sequence[torch.Tensor], dtype: torch.dtype) -> bool:
    """Whether tensors differ by no more, relative to their norm, than ``dtype`` allows."""
    tolerance = TOLERANCE.get(dtype, COARSE_TOLERANCE)
    return all(
        bool((one.float() - other.float()).norm() <= tolerance * other.float().norm().clamp(1e-6))
        for one, other in zip(ones, others, strict=True)
    )
