"""transformers' models: classes recognized by their names, and what follows from a model alone.

If a supported version lacks a name, a default is used. Tests check every name against the installed
version (``tests/transformers_names.py``). Models have the type ``Any``.
"""

from __future__ import annotations

import inspect
import math
import sys
from collections.abc import Sequence
from typing import Any

import torch

from ngramspec.errors import UnsupportedError
from ngramspec.hf_model.compat.configs import position_limit, rope_changes_at, ropes, text_config
from ngramspec.hf_model.compat.package import PACKAGE

BY_SLOT = frozenset(
    {
        "GPTNeoForCausalLM",  # its windows are counted in slots of the cache
        "GitForCausalLM",  # its mask leaves out the image before the text until the prefill is over
        "GlmImageForConditionalGeneration",  # it counts positions itself
    }
)
# They drop their cache at config.original_max_position_embeddings tokens.
REREADS = frozenset({"Phi3ForCausalLM", "Phi4MultimodalForCausalLM", "PhimoeForCausalLM"})
ONE_AT_A_TIME = {
    "BltForCausalLM": "it divides the bytes of each forward into patches separately",
    "CpmAntForCausalLM": "it computes relative positions for one new token only",
    "FlaubertWithLMHeadModel": "it reads a mask token after the text in every step",
    "FSMTForConditionalGeneration": "new tokens attend to later ones",
    "MoshiForCausalLM": "its attention window is longer in a wider forward",
    "ProphetNetForCausalLM": "it accepts one new token",
    "ProphetNetForConditionalGeneration": "it accepts one new token",
    "XLMWithLMHeadModel": "it reads a mask token after the text in every step",
}
# The same with one value of a setting: the setting, the value and the reason.
ONE_AT_A_TIME_WITH = {
    "DoryForCausalLM": (
        "recurrent_kv_cache_mode",
        "last_loop",
        "in earlier loops a token attends to states of these loops for the tokens of its forward"
        " only; use recurrent_kv_cache_mode='per_loop'",
    )
}
OWN_CACHE = {
    "DeepseekV4ForCausalLM": "its compressors merge several tokens into one entry of the cache,"
    " from which a rejected token cannot be removed",
    "MiniMaxForCausalLM": "its linear attention adds every token to states in a MiniMaxCache, which"
    " can be neither truncated nor saved and restored",
    "xLSTMForCausalLM": "each forward overwrites its states in an xLSTMCache, which cannot be saved"
    " and restored",
}
# Their baseline output differs between a dynamic and a static cache.
NOT_STATIC = frozenset({"GPTNeoForCausalLM", "LEDForConditionalGeneration"})
# They apply the decoder's mask in forwards over several tokens only.
MASKS_SEVERAL = frozenset({"LEDForConditionalGeneration"})
# Before transformers 5.19 it gives a single token another position than in a wider forward.
PLACES_ONE_TOKEN_ELSEWHERE = frozenset({"GitForCausalLM"})
# Its attention under sdpa depends on output_attentions.
ATTENDS_BY_OUTPUT = frozenset({"FalconForCausalLM"})
# They pass on positions, which ``generate`` does not give them.
PASSES_POSITIONS = frozenset(
    {
        *("EncoderDecoderModel", "MossTranscribeDiarizeForConditionalGeneration"),
        "VibeVoiceAsrForConditionalGeneration",
    }
)
# Modules whose result for a position depends on the others of a forward. Doge's experts mix their
# routers' logits, and NLLB-MoE's routers read the attention mask as one of padding. torch's dynamic
# quantization, named by its Python modules, has one scale for all.
MIXES_POSITIONS = frozenset({"DogeCDMoE", "NllbMoeTop2Router"})
SCALES_TOGETHER = ("torch.ao.nn.intrinsic.quantized.dynamic", "torch.ao.nn.quantized.dynamic")
WEIGHT_QUANTIZERS = frozenset({"GgufHfQuantizer"})  # they do not quantize activations
# Methods of a model that determine the inputs and outputs of its forwards. A subclass that
# overrides none of them behaves like its base class.
STEP_METHODS = (
    *("__call__", "_prefill", "_update_model_kwargs_for_generation", "create_masks_for_generate"),
    *("forward", "get_decoder", "prepare_inputs_for_generation"),
)
ROUTER_LOGITS = "output_router_logits"  # an argument of forwards, and the field of a config
# Methods of the baseline that the decode loop, its beam search and ``carried_kwargs`` replace.
LOOP_METHODS = ("_sample", "_has_unfinished_sequences")
BEAM_METHODS = ("_beam_search",)
UPDATE_METHODS = ("_update_model_kwargs_for_generation",)


def names_of(model: Any) -> frozenset[str]:
    """Return the names of a model's class and of all its base classes."""
    return frozenset(kind.__name__ for kind in type(model).__mro__)


def routes_tokens(model: Any) -> bool:
    """Whether a model routes tokens to experts."""
    return any(
        name.rpartition(".")[2] == "experts"
        or any(part in type(module).__name__ for part in ("Expert", "Moe"))
        for name, module in model.named_modules()
    )


def quantizes_activations(model: Any) -> bool:
    """Whether a model is quantized, unless it is known that only its weights are."""
    quantizer = getattr(model, "hf_quantizer", None)
    return quantizer is not None and type(quantizer).__name__ not in WEIGHT_QUANTIZERS


def mixes_positions(model: Any) -> bool:
    """Whether a token may attend to later ones, or modules of the listed classes mix positions."""
    config = text_config(model)
    ahead = getattr(config, "use_bidirectional_attention", None) in (True, "all")
    kinds = {type(each) for each in model.modules()}
    return (
        ahead
        or getattr(config, "is_causal", True) is False
        or any(
            kind.__name__ in MIXES_POSITIONS or kind.__module__.startswith(SCALES_TOGETHER)
            for kind in kinds
        )
        # bitsandbytes chooses the columns that it does not quantize for all positions together.
        or any(float(getattr(each, "threshold", 0) or 0) > 0 for each in _int8_states(model))
    )


def _int8_states(model: Any) -> list[Any]:
    layers = (each for each in model.modules() if type(each).__name__ == "Linear8bitLt")
    return [getattr(each, "state", None) for each in layers]


def scaled_from(model: Any) -> float:
    """Return the slots of the cache from which on they scale attention (Llama 4), or infinity."""
    config = text_config(model)
    tuned = getattr(config, "attn_temperature_tuning", False)
    return float(getattr(config, "floor_scale", math.inf)) if tuned else math.inf


def reports_routing(model: Any) -> bool:
    """Whether forwards return routers' logits, and so compute a loss from the attention mask."""
    asked = getattr(text_config(model), ROUTER_LOGITS, False)
    return bool(asked) and ROUTER_LOGITS in inspect.signature(model.forward).parameters


def is_stateful(model: Any) -> bool:
    """Whether a model keeps a recurrent state, which cropping a cache does not restore."""
    return bool(getattr(model, "_is_stateful", False))


def overridden(kind: type, names: Sequence[str]) -> str | None:
    """Return the first of some methods of the baseline that a model's class overrides, or None."""
    from transformers.generation.utils import GenerationMixin

    for name in names:
        if getattr(kind, name, None) is not getattr(GenerationMixin, name):
            return name
    return None


def stock_class(model: Any) -> type | None:
    """Return a model's class or base class in transformers whose step methods it has, or None."""
    for kind in type(model).__mro__:
        if kind.__module__.startswith(f"{PACKAGE}.models."):
            return kind
        if any(name in vars(kind) for name in STEP_METHODS):
            return None
    return None


def prepares_inputs_outside(model: Any) -> bool:
    """Whether a model's function that prepares its inputs is not one of transformers."""
    own = type(model).prepare_inputs_for_generation
    return not own.__module__.startswith(f"{PACKAGE}.")


def embedding_count(model: Any) -> int | None:
    """Number of tokens that a model, or its decoder, has embeddings for; None: unknown."""
    embedder = model.get_decoder() if model.config.is_encoder_decoder else model
    weight = getattr(embedder.get_input_embeddings(), "weight", None)
    return None if weight is None else int(weight.shape[0])


def head_size(model: Any) -> int | None:
    """Number of tokens that a model's output layer computes logits for; None: unknown."""
    weight = getattr(model.get_output_embeddings(), "weight", None)
    if isinstance(weight, torch.Tensor) and weight.ndim == 2 and weight.is_floating_point():
        return int(weight.shape[0])
    return None


def model_facts(model: Any) -> dict[str, Any]:
    """Return the fields of ``Facts`` that follow from a model alone."""
    from transformers.generation.utils import GenerationMixin

    kinds, stock, config = names_of(model), stock_class(model), text_config(model)
    prepare = getattr(model.prepare_inputs_for_generation, "__func__", None)
    reads_text = prepare is not GenerationMixin.prepare_inputs_for_generation
    # Masks are made in the model's own module, or in that of the decoder to which a model of
    # transformers passes its masks. A forward defined elsewhere may change them before.
    makers = (type(model),) if stock is None else (stock, type(model.get_decoder()))
    # ALiBi adds biases by distance, computed from the mask of padding.
    alibi = getattr(config, "alibi", False) or config.model_type in ("bloom", "mpt")
    at = getattr(model.config, "original_max_position_embeddings", None)
    known = position_limit(model.config)
    if not kinds & REREADS or (known is not None and at is not None and at >= known):
        at = None
    routers = (each for each in model.get_decoder().modules() if hasattr(each, "expert_capacity"))
    capacities = [each.expert_capacity or 1 for each in routers]
    return {
        "model": model,
        "names": kinds,
        "encodes": is_encoder_decoder(model),
        "attention": attention_of(model),
        "standard_masks": not alibi
        and any(hasattr(sys.modules.get(kind.__module__), "create_causal_mask") for kind in makers),
        "own_masks": getattr(type(model), "create_masks_for_generate", None) is not None,
        "reads_text": reads_text,
        "foreign": reads_text and stock is None,
        "passes_positions": stock is not None and bool(kinds & PASSES_POSITIONS),
        "skips_padding": any(
            hasattr(each, "create_position_ids_from_input_ids") for each in model.modules()
        ),
        "position_limit": position_limit(config),
        "embeddings": embedding_count(model),
        "rope_changes_at": rope_changes_at(config),
        "rope_grows": any(each["rope_type"] == "dynamic" for each in ropes(config)),
        "recurrent": is_stateful(model),
        "rereads_at": None if at is None else int(at),
        "token_capacity": min(capacities, default=None),
        "streams_first": hasattr(config, "altup_num_inputs"),
    }


def is_encoder_decoder(model: Any) -> bool:
    """Whether a model is an encoder-decoder model."""
    return bool(getattr(model.config, "is_encoder_decoder", False))


def attention_of(model: Any) -> str:
    """Return the name of the attention implementation of a model's decoder, such as "sdpa"."""
    return str(getattr(text_config(model), "_attn_implementation", ""))


def check_adapters(configs: dict[str, Any]) -> None:
    """Raise an UnsupportedError if the effect of a PEFT adapter depends on a forward's width."""
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


def least_step_size(model: Any) -> float:
    """Return the largest lower bound on step sizes among a model's recurrent layers; 0: none."""
    bounds = (getattr(module, "time_step_limit", (0.0,))[0] for module in model.modules())
    return max(bounds, default=0.0)


def device_mesh(model: Any) -> Any:
    """Return the torch DeviceMesh that a model was loaded on, or None."""
    return getattr(model, "_device_mesh", None)


def layer_count(model: Any) -> int:
    """Return the number of layers of a model's decoder, or 1 if its config does not have it."""
    return int(getattr(text_config(model), "num_hidden_layers", 1))


def vocab_size(model: Any) -> int:
    """Return the number of tokens that a model's config states."""
    return int(model.config.get_text_config().vocab_size)
