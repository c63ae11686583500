"""transformers' names: classes recognized by them, private attributes, and fields of configs.

Classes are compared by name, so that their modules do not have to be imported. Names that some
supported versions lack are read with a default. Tests check every name against the installed
version (``tests/transformers_names.py``). Models and configs are ``Any``: there are no types.
"""

from __future__ import annotations

import copy
import inspect
import math
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple

import torch
from packaging.version import Version

PACKAGE = "transformers"
PROCESSOR_MODULE = "generation.logits_process"
CRITERION_MODULE = "generation.stopping_criteria"
CAPTURE_MODULE = "utils.output_capturing"

# Versions


class Change(NamedTuple):
    """A change of behaviour in transformers, and the first version with it."""

    version: str
    what: str


OLDEST_SUPPORTED = "5.16.1"
NEWEST_TESTED = "5.24.0"

MARKS_CACHES = Change("5.19", "generate marks every cache that a caller passed")
PLACES_TOKENS = Change("5.19", "GIT places a single token where it places one of several")
KEEPS_SELECTION = Change("5.17", "a mask of bools keeps the selection of an index under sdpa")


def before(version: str) -> bool:
    """Whether the installed transformers is older than a version; pre-releases of it are older."""
    from transformers import __version__

    return Version(__version__) < Version(version)


def has(change: Change) -> bool:
    """Whether the installed transformers has a change of behaviour."""
    return not before(change.version)


def untested() -> str | None:
    """Return the installed transformers' version if no test covers it, older or newer; or None."""
    from transformers import __version__

    covered = Version(OLDEST_SUPPORTED) <= Version(__version__) <= Version(NEWEST_TESTED)
    return None if covered else __version__


# Models. For those that are refused, the reason is part of the message.

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

END_OF_SEQUENCE = "EosTokenCriteria"  # decided from the token's id
MAX_LENGTH = "MaxLengthCriteria"  # decided from the length
MAX_TIME = "MaxTimeCriteria"  # called without the tokens
STOP_STRING = "StopStringCriteria"  # called with the tokens on the host

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


def stock_name(each: Any, module: str) -> str:
    """Return the name of an object's class if a module of transformers defines it, or ""."""
    kind = type(each)
    return kind.__name__ if kind.__module__ == f"{PACKAGE}.{module}" else ""


# Modules of models


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
    )


def scaled_from(model: Any) -> float:
    """Return the slots of the cache from which on they scale attention (Llama 4), or infinity."""
    config = text_config(model)
    tuned = getattr(config, "attn_temperature_tuning", False)
    return float(getattr(config, "floor_scale", math.inf)) if tuned else math.inf


def reports_routing(model: Any) -> bool:
    """Whether forwards return routers' logits, and so compute a loss from the attention mask."""
    asked = getattr(text_config(model), ROUTER_LOGITS, False)
    return bool(asked) and ROUTER_LOGITS in inspect.signature(model.forward).parameters


def captures_states(hook: Any) -> bool:
    """Whether a hook is transformers' own, which captures states in calls that ask for them."""
    module = getattr(hook, "__module__", None)
    return bool(module == f"{PACKAGE}.{CAPTURE_MODULE}")


# Models


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


# Forwards


def prefill(model: Any, input_ids: Any, config: Any, kwargs: dict[str, Any]) -> Any:
    """Run a prompt as the baseline does; return the outputs of the last forward."""
    return model._prefill(input_ids, config, kwargs)


def carried_kwargs(
    model: Any, outputs: Any, kwargs: dict[str, Any], *, encodes: bool
) -> dict[str, Any]:
    """Return the keyword arguments of the next forward, over one token, from the last one's."""
    carried: dict[str, Any] = model._update_model_kwargs_for_generation(
        outputs, kwargs, is_encoder_decoder=encodes
    )
    return carried


def decode_context(model: Any) -> AbstractContextManager[Any]:
    """Return the context in which ``generate`` runs the forwards after the prefill."""
    context: AbstractContextManager[Any]
    context = getattr(model, "_optimize_model_for_decode", nullcontext)()
    return context


_sdpa: list[Any] = []  # our function, once it is made
_lock = threading.Lock()


def register_sdpa(make: Callable[[Any], Any]) -> bool:
    """Register ``make(sdpa)`` in place of transformers' sdpa; return whether it is registered."""
    from transformers.integrations.sdpa_attention import sdpa_attention_forward
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS, AttentionInterface

    with _lock:
        if not _sdpa:
            _sdpa.append(make(sdpa_attention_forward))
        if ALL_ATTENTION_FUNCTIONS["sdpa"] is sdpa_attention_forward:
            AttentionInterface.register("sdpa", _sdpa[0])
        return ALL_ATTENTION_FUNCTIONS["sdpa"] is _sdpa[0]


# Facts about models


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
        "rope_grows": any(each["rope_type"] == "dynamic" for each in _ropes(config)),
        "recurrent": is_stateful(model),
        "rereads_at": None if at is None else int(at),
        "token_capacity": min(capacities, default=None),
        "streams_first": hasattr(config, "altup_num_inputs"),
    }


# Configs of models


def text_config(model: Any) -> Any:
    """Return the config of a model's decoder."""
    return model.config.get_text_config(decoder=True)


def is_encoder_decoder(model: Any) -> bool:
    """Whether a model is an encoder-decoder model."""
    return bool(getattr(model.config, "is_encoder_decoder", False))


def position_limit(config: Any) -> int | None:
    """Return the number of positions that a config supports, or None if it sets no limit."""
    whisper, led = "max_target_positions", "max_decoder_position_embeddings"
    known = (getattr(config, name, None) for name in ("max_position_embeddings", led, whisper))
    return next((limit for limit in known if limit is not None), None)


# How far back each type of layers attends: names of the fields of its window and of its chunk.
LAYER_TYPES: dict[str, tuple[str | None, str | None]] = {
    "full_attention": (None, None),
    "sliding_attention": ("sliding_window", None),
    "chunked_attention": (None, "attention_chunk_size"),
}
AttentionLimits = tuple[int | None, int | None]  # the sizes of a window and of a chunk


def attention_limits(config: Any) -> tuple[dict[str, AttentionLimits | None], tuple[str, ...]]:
    """Return each type of layers with its limits, None if unknown, and the type of each layer.

    A model whose config has no types of layers has one, "", and its layers are not listed. The
    first result is empty if no layer has a limit.
    """
    kinds = getattr(config, "layer_types", None)
    if kinds is None:
        window = getattr(config, "sliding_window", None)
        chunk = None if window is not None else getattr(config, "attention_chunk_size", None)
        return {} if window is None and chunk is None else {"": (window, chunk)}, ()
    if not any("sliding" in kind or "chunked" in kind for kind in kinds):
        return {}, ()
    found: dict[str, AttentionLimits | None] = dict.fromkeys(kinds)
    for kind in found.keys() & LAYER_TYPES.keys():
        window, chunk = LAYER_TYPES[kind]
        found[kind] = getattr(config, window or "", None), getattr(config, chunk or "", None)
    return found, tuple(kinds)


def rope_changes_at(config: Any) -> int | None:
    """Return the length from which on a forward's rotary frequencies are different, or None."""
    thresholds = [
        int(each["original_max_position_embeddings"])
        for each in _ropes(config)
        if each.get("rope_type") == "longrope" and "original_max_position_embeddings" in each
    ]
    return min(thresholds, default=None)


def _ropes(config: Any) -> list[dict[str, Any]]:
    """The rotary parameters of a text config, or of each kind of its layers."""
    given = getattr(config, "rope_parameters", None) or {}
    each = [given, *given.values()]
    return [one for one in each if isinstance(one, dict) and "rope_type" in one]


def attention_of(model: Any) -> str:
    """Return the name of the attention implementation of a model's decoder, such as "sdpa"."""
    return str(getattr(text_config(model), "_attn_implementation", ""))


# transformers' defaults for these settings in a prepared GenerationConfig.
DEFAULT_SETTINGS = {
    "num_assistant_tokens": 20,
    "num_assistant_tokens_schedule": "constant",
    "assistant_confidence_threshold": 0.4,
}
# Prepared GenerationConfigs


def plain_method(config: Any) -> str | None:
    """Name of the baseline's decoding method under ``config``; None: it is loaded from the hub."""
    from transformers.generation.utils import GENERATION_MODES_MAPPING

    method = str(GENERATION_MODES_MAPPING[config.get_generation_mode()])
    return None if "/" in method else method


def pad_token(config: Any) -> int | None:
    """Return the padding token, by default the first end-of-sequence token, or None."""
    found = _tokens(config.pad_token_id) or eos_tokens(config)
    return found[0] if found else None


def eos_tokens(config: Any) -> tuple[int, ...]:
    """Return the end-of-sequence tokens."""
    return _tokens(config.eos_token_id)


def _tokens(given: Any) -> tuple[int, ...]:
    """Token ids that a config has as one number, several, a tensor or None."""
    if isinstance(given, torch.Tensor):
        given = given.tolist()
    return () if given is None else tuple(given) if isinstance(given, list | tuple) else (given,)


def mask_length(config: Any) -> int | None:
    """Return the length of the mask of ones that ``generate`` left out, or None."""
    length = getattr(config, "_mask_length", None)
    return None if length is None else int(length)


def with_longer_mask(config: Any, count: int) -> Any:
    """Return ``config``, or a copy whose left-out mask, which the prefill compares, is longer."""
    length = mask_length(config)
    if length is None:
        return config
    config = copy.copy(config)
    config._mask_length = length + count
    return config
