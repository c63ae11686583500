"""What cannot be speculated with, by name, with the reason and a remedy."""

from __future__ import annotations

import inspect
from typing import Any

import torch

from ngramspec.errors import UnsupportedError
from ngramspec.target.kv_cache import transformers_before
from ngramspec.target.padding import (
    rope_types,
)
from ngramspec.target.traits import embedding_count, makes_standard_masks
from ngramspec.target.tree_attention import (
    ATTENTIONS,
    attention_of,
    has_alibi,
    has_windows,
    takes_masks,
)

# Models whose forward over several tokens is not that of one after another.
ONE_AT_A_TIME = {
    "BltForCausalLM": "it cuts each forward's bytes into patches anew",
    "CpmAntForCausalLM": "its relative positions are of one new token",
    "FSMTForConditionalGeneration": "new tokens see those behind them",
    "MoshiForCausalLM": "its attention sees further behind its window in a wider forward",
    "ProphetNetForCausalLM": "it takes one new token",
    "ProphetNetForConditionalGeneration": "it takes one new token",
}


# Models whose plain decoding differs between a dynamic and a static cache: nothing to keep to.
NOT_STATIC = {"GPTNeoForCausalLM", "LEDForConditionalGeneration"}


IMAGES_SINCE = (5, 19)  # before it GIT's forward over several tokens behind an image is another


# Methods of plain decoding in whose place our loop stands.
LOOP = ("_sample", "_has_unfinished_sequences")


def check_model(model: Any, model_kwargs: dict[str, Any]) -> None:
    """Raise an UnsupportedError if the model is of a kind that cannot be speculated with."""
    from transformers.generation.utils import GenerationMixin

    name = type(model).__name__
    names = [kind.__name__ for kind in type(model).__mro__]
    if model_kwargs.get("use_cache") is False:
        raise UnsupportedError("use_cache=False leaves nothing to roll back; pass use_cache=True")
    if getattr(model, "_is_stateful", False):
        raise UnsupportedError(f"{name} keeps a recurrent state that cannot be rolled back")
    for reason in (ONE_AT_A_TIME[each] for each in names if each in ONE_AT_A_TIME):
        raise UnsupportedError(f"{name} cannot check several tokens: {reason}")
    image = model_kwargs.get("pixel_values") is not None
    if "GitForCausalLM" in names and image and transformers_before(IMAGES_SINCE):
        raise UnsupportedError(
            f"{name} cannot check several tokens behind an image before transformers 5.19"
        )
    forwards = [vars(kind)["forward"] for kind in type(model).__mro__ if "forward" in vars(kind)]
    parameters = {each for forward in forwards for each in inspect.signature(forward).parameters}
    if "input_ids" in parameters and "past_key_values" not in parameters:
        raise UnsupportedError(f"{name} keeps no key-value cache; speculation needs one")
    own = getattr(type(model), "_update_model_kwargs_for_generation", None)
    if own is not GenerationMixin._update_model_kwargs_for_generation:
        raise UnsupportedError(f"{name} prepares its inputs between steps in a way of its own")
    for method in LOOP:
        if getattr(type(model), method, None) is not getattr(GenerationMixin, method, None):
            raise UnsupportedError(
                f"{name} has a {method} of its own, which speculation would leave out; pass"
                " Speculator(unsupported='plain') to decode with it"
            )


def plain_method(config: Any) -> str | None:
    """Name of the model's own method for plain decoding under ``config``; None: a remote one."""
    from transformers.generation.utils import GENERATION_MODES_MAPPING

    method = str(GENERATION_MODES_MAPPING[config.get_generation_mode()])
    return None if "/" in method else method


def check_adapter(model: Any) -> None:
    """Raise an UnsupportedError if ``model`` generates under an adapter that goes by the width.

    An adapter of weights leaves its configuration at the model that it changed. One that learned a
    prompt is known by its wrapper, which prepares the model's inputs while it generates.
    """
    wrapper = getattr(model.prepare_inputs_for_generation, "__self__", model)
    configs = getattr(wrapper, "peft_config", None) or {}
    for name, config in configs.items():
        if getattr(config, "is_prompt_learning", False):
            kind = str(getattr(config.peft_type, "value", config.peft_type))
            raise UnsupportedError(
                f"the adapter {name!r} ({kind}) forwards one token at a time behind its own prompt;"
                " use one that changes weights, such as LoRA"
            )
        if getattr(config, "alora_invocation_tokens", None):
            raise UnsupportedError(
                f"the adapter {name!r} is an activated LoRA, whose reach is counted from the end"
                " of each forward; use a LoRA without alora_invocation_tokens"
            )


def why_no_tree(target: Any, rows: int) -> str | None:
    """Why a target cannot verify trees, in a few words; None if it can."""
    attention = attention_of(target.model)
    if rows > 1:
        return f"a batch of {rows} rows"
    if target.encodes:
        return "an encoder-decoder model"
    if target.cache.slides or has_windows(target.model):
        return "sliding-window attention"
    if attention not in ATTENTIONS:
        return f"attention implementation {attention}"
    if target.states:
        return "attentions or hidden states asked for"
    if target.traits.by_slot:
        return "a model that finds tokens by their slots in the cache"
    if not target.traits.places:
        return "a model that counts its positions itself"
    if has_alibi(target.model):
        return "a model with ALiBi"
    if not (makes_standard_masks(target.model) and target.traits.passes_masks):
        return "a model that makes its masks itself"
    return None


def why_not_fixed(target: Any, rows: int) -> str | None:
    """Why a fixed width would not keep the drafts out of the arithmetic, and the remedy; or None.

    Args:
        target: not yet prefilled.
        rows: of the batch.
    """
    config = target.model.config.get_text_config(decoder=True)
    attention = attention_of(target.model)
    static = target.cache.capacity is not None
    if target.encodes:
        return "an encoder-decoder model; use width='fit'"
    if rows > 1:
        return f"a batch of {rows} rows; generate them one by one"
    if target.cache.slides or has_windows(target.model):
        return "sliding-window attention; use width='fit'"
    if attention not in ATTENTIONS:
        return f"attention implementation {attention}; load the model with sdpa or eager"
    if not static and attention == "sdpa":
        return (
            "a dynamic cache with sdpa, whose arithmetic changes with the length; use"
            " cache_implementation='static' or attn_implementation='eager'"
        )
    if target.traits.by_slot:
        return "a model that finds tokens by their slots in the cache; use width='fit'"
    if any("attentions" in name for name in target.states):
        return "attentions asked for, which show the cache's size; pass output_attentions=False"
    if not target.traits.places:
        return "a model that counts its positions itself; use width='fit'"
    if target.unaligned is not None:
        return f"a prefill whose positions masks do not know: {target.unaligned}"
    if not (takes_masks(target.model) and target.traits.passes_masks):
        return "a model that makes its masks itself; use width='fit'"
    if target.turns or "dynamic" in rope_types(config):
        return "rotary positions that change with the length; use width='fit'"
    if any(_routes(name, module) for name, module in target.model.named_modules()):
        return "experts, which take each as many tokens as are routed to it; use width='fit'"
    quantizer = getattr(target.model, "hf_quantizer", None)
    if quantizer is not None and type(quantizer).__name__ != "GgufHfQuantizer":  # weights only
        return "a quantized model, whose scales may be of all positions; use width='fit'"
    return None


def _routes(name: str, module: Any) -> bool:
    kind = type(module).__name__
    return name.rpartition(".")[2] == "experts" or "Expert" in kind or "Moe" in kind


def require_fixed(target: Any, width: int) -> None:
    """Raise an UnsupportedError if ``why_not_fixed`` knows a reason."""
    reason = why_not_fixed(target, target.prompt.shape[0])
    if reason is not None:
        raise UnsupportedError(f"width={width} is not supported with {reason}")


def wants_graphs(target: Any, compiled: bool | None) -> bool:
    """Whether a target's forwards are to be compiled.

    Args:
        target: not yet prefilled.
        compiled: True, False, or None: where plain ``generate`` would.

    Raises:
        UnsupportedError: they cannot be, and compiled=True.
    """
    if compiled is False or target.config.disable_compile:
        return False
    reason = why_no_graphs(target)
    if compiled and reason is not None:
        raise UnsupportedError(f"compiled=True is not supported with {reason}")
    if compiled or reason is not None:
        return reason is None
    criteria = getattr(target.model, "_valid_auto_compile_criteria", None)
    return criteria is not None and bool(criteria(target.kwargs, target.config))


def why_no_graphs(target: Any) -> str | None:
    """Why a target's forwards cannot be compiled, and the remedy; None if they can."""
    attention = attention_of(target.model)
    if target.cache.capacity is None:
        return "a dynamic cache; use cache_implementation='static'"
    if target.encodes:
        return "an encoder-decoder model; remove it"
    if target.states:
        return "attentions or hidden states asked for; do not ask for them"
    if attention not in ATTENTIONS:
        return f"attention implementation {attention}; load the model with sdpa or eager"
    if not target.traits.places:
        return "a model that counts its positions itself; pass compiled=False"
    if target.turns:
        return "rotary positions that change with the length; pass compiled=False"
    if target.unaligned is not None:
        return f"a prefill whose positions masks do not know: {target.unaligned}"
    return None


# Ways to decode that transformers fetches from its hub, with trust_remote_code=True; and what of
# each, beside None, leaves it switched off.
REMOTE = {
    "constraints": None,
    "dola_layers": None,
    "force_words_ids": None,
    "num_beam_groups": 1,
    "penalty_alpha": 0,
}


# Arguments of ``generate`` that rule speculation out, by what switches each off.
OFF = REMOTE | {
    "assistant_early_exit": None,
    "assistant_model": None,
    "assistant_tokenizer": None,
    "cache_implementation": "dynamic",
    "num_beams": 1,
    "prompt_lookup_num_tokens": None,
    "token_healing": False,
    "use_mtp": False,
}


def check_request(config: Any) -> None:
    """Raise an UnsupportedError that names the settings of ``generate`` which rule it out."""
    asked = {
        "num_beams": (config.num_beams or 1) > 1,
        "prompt_lookup_num_tokens": config.prompt_lookup_num_tokens is not None,
        "use_mtp": bool(getattr(config, "use_mtp", False)),
        "assistant_early_exit": config.assistant_early_exit is not None,
    }
    asked |= {name: getattr(config, name, None) not in (None, off) for name, off in REMOTE.items()}
    refused = {name: getattr(config, name) for name, ruled_out in asked.items() if ruled_out}
    if refused:
        raise UnsupportedError(refusal(refused))


def refusal(settings: dict[str, Any]) -> str:
    """What to say of settings that rule speculation out: name -> value, or None not to show it.

    The remedy is an argument, since that also overrides what a checkpoint's own config says.
    """
    shown = (name if value is None else f"{name}={value}" for name, value in settings.items())
    found = ", ".join(shown)
    remedy = ", ".join(f"{name}={OFF[name]!r}" for name in settings)
    return f"{found} cannot be combined with a Speculator; pass {remedy}"


def check_prompt(model: Any, input_ids: torch.Tensor, model_kwargs: dict[str, Any]) -> None:
    """Raise a ValueError for an empty prompt or ids that the model has no embedding for.

    Ids that stand for something else, such as an image, may lie outside its vocabulary.
    """
    if model_kwargs.get("inputs_embeds") is not None:
        return
    if input_ids.shape[1] == 0:
        raise ValueError(f"input_ids must hold at least one token, got shape {(*input_ids.shape,)}")
    vocab = embedding_count(model)
    if vocab is None:  # it does not say
        return
    low, high = int(input_ids.min()), int(input_ids.max())
    if low < 0 or high >= vocab:
        wrong = set(input_ids[(input_ids < 0) | (input_ids >= vocab)].tolist())
        for bad in sorted(wrong - placeholders(model.config)):
            raise ValueError(f"input_ids must lie in 0..{vocab - 1}, got {bad}")


def placeholders(config: Any) -> set[int]:
    """Ids of a model's configuration in whose place something else than a token is embedded."""
    text = ("bos", "eos", "pad", "decoder_start", "sep", "cls", "mask", "unk")
    return {
        value
        for name, value in vars(config).items()
        if name.endswith(("_token_id", "_token_index")) and isinstance(value, int)
        if name.removesuffix("_token_id") not in text
    }
