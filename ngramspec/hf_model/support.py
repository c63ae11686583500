"""Checks that refuse unsupported models and calls of ``generate``, with the reason and a remedy."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any

import torch
from torch.nn.modules.dropout import _DropoutNd

from ngramspec.errors import UnsupportedError
from ngramspec.hf_model.cache.kv_cache import KVCache
from ngramspec.hf_model.compat import names
from ngramspec.hf_model.compat.caches import cache_names, cache_of
from ngramspec.hf_model.compat.versions import PLACES_TOKENS, has
from ngramspec.hf_model.facts import Facts

# Arguments of decoding modes that transformers loads from its hub with trust_remote_code=True, and
# an argument that is refused before transformers sees the call, which it might not accept. The
# values are those other than None that switch each off.
REFUSED_AT_ONCE = {
    "constraints": None,
    "dola_layers": None,
    "force_words_ids": None,
    "num_beam_groups": 1,
    "penalty_alpha": 0,
    "assistant_early_exit": None,
}
# Arguments of ``generate`` that rule speculation out, and the value that switches each off.
OFF_VALUES = REFUSED_AT_ONCE | {
    "cache_implementation": "dynamic",
    "prompt_lookup_num_tokens": None,
    "token_healing": False,
}
# Parts of the names of attributes that hold a rate: attention_dropout, layerdrop, ...
RATE_NAME_PARTS = ("drop", "jitter")


def check_model(model: Any, model_kwargs: dict[str, Any]) -> None:
    """Raise an UnsupportedError if the model does not support speculation."""
    if model_kwargs.get("use_cache") is False:
        raise UnsupportedError("use_cache=False leaves nothing to roll back; pass use_cache=True")
    reason = next(_reasons_against_model(model), None)
    if reason is not None:
        raise UnsupportedError(f"{type(model).__name__} {reason}")


def _reasons_against_model(model: Any) -> Iterator[str]:
    kinds, config = names.names_of(model), getattr(model, "config", None)  # a class has none
    one_at_a_time = [names.ONE_AT_A_TIME[one] for one in sorted(kinds & {*names.ONE_AT_A_TIME})]
    for one in sorted(kinds & names.ONE_AT_A_TIME_WITH.keys()):
        setting, value, reason = names.ONE_AT_A_TIME_WITH[one]
        if getattr(config, setting, None) == value:
            one_at_a_time.append(reason)
    yield from (f"cannot check several tokens: {reason}" for reason in one_at_a_time)
    for one in sorted(kinds & names.OWN_CACHE.keys()):
        yield f"cannot roll tokens back: {names.OWN_CACHE[one]}"
    if kinds & names.PLACES_ONE_TOKEN_ELSEWHERE and not has(PLACES_TOKENS):
        yield f"cannot check several tokens before transformers {PLACES_TOKENS.version}"
    forwards = [vars(kind)["forward"] for kind in type(model).__mro__ if "forward" in vars(kind)]
    parameters = {each for forward in forwards for each in inspect.signature(forward).parameters}
    if names.is_stateful(model):
        if not parameters & {*cache_names()}:
            yield (
                "keeps a recurrent state outside the caches of transformers, where it cannot be"
                " rolled back"
            )
    elif "input_ids" in parameters and cache_names()[0] not in parameters:
        yield "keeps no key-value cache; speculation needs one"
    if names.overridden(model, names.UPDATE_METHODS):
        yield "overrides how its inputs are updated between steps"
    method = names.overridden(model, names.LOOP_METHODS)
    if method is not None:
        yield (
            f"overrides {method}, which speculation would skip; pass"
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


def check_request(config: Any, model: Any = None) -> None:
    """Raise an UnsupportedError that names the settings of ``generate`` that are unsupported."""
    beams = config.num_beams or 1
    if beams > 1 and config.do_sample:
        raise UnsupportedError(
            f"num_beams={beams} with do_sample=True cannot be combined with a Speculator; pass"
            " num_beams=1, or do_sample=False"
        )
    if beams > 1 and config.low_memory:
        raise UnsupportedError("low_memory=True is not supported with beams; pass low_memory=False")
    if beams > 1 and model is not None and names.overridden(model, names.BEAM_METHODS):
        name = type(model).__name__
        raise UnsupportedError(
            f"num_beams={beams}: {name} has its own beam search; pass num_beams=1"
        )
    refused = {
        name: getattr(config, name)
        for name, off in ({"prompt_lookup_num_tokens": None} | REFUSED_AT_ONCE).items()
        if getattr(config, name, None) not in (None, off)
    }
    if refused:
        raise UnsupportedError(refusal(refused))


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


def check_prefilled(facts: Facts, cache: KVCache) -> None:
    """Raise an UnsupportedError if the prefill did not store its positions in the cache.

    Up to transformers 5.23, a layer with gradient checkpointing gets no cache in training mode. In
    evaluation mode, some models have layers that store nothing.
    """
    stored = [layer.length > facts.cached for layer in cache.attention]
    training = any(module.training for module in facts.model.modules())
    if stored and not (all(stored) if training else any(stored)):
        raise UnsupportedError(
            f"the prefill of {type(facts.model).__name__} stored its keys in {sum(stored)} of"
            f" {len(stored)} layers of the cache, as with gradient checkpointing in training mode;"
            " call model.eval()"
        )
