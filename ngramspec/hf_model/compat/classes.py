"""The table of transformers' classes that are recognized by their names, and functions that do so.

Classes are compared by name, so that their modules do not have to be imported. Tests check every
group against the installed transformers (``tests/transformers_names.py``).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from inspect import signature
from typing import Any

PACKAGE = "transformers"
CACHE_MODULE = "cache_utils"
PROCESSOR_MODULE = "generation.logits_process"
CRITERION_MODULE = "generation.stopping_criteria"
CAPTURE_MODULE = "utils.output_capturing"

# Layers and caches, by what a rollback needs.

DYNAMIC = "DynamicLayer"
INDEXED = "DynamicIndexedLayer"
STATIC = "StaticLayer"  # its length is reduced in place
EMPTY = "DummyLayer"  # it stores nothing: it uses another layer's keys, or has no attention
STATIC_SLIDING = "StaticSlidingWindowLayer"  # it overwrites its oldest positions: no rollback
SLIDING = "DynamicSlidingWindowLayer"
CROPPED = frozenset({DYNAMIC, INDEXED, SLIDING})
LINEAR = frozenset(  # with a convolution or a recurrent state
    {
        "LinearAttentionLayer",
        "LinearAttentionAndFullAttentionLayer",
        "LinearAttentionAndSlidingWindowAttentionLayer",
    }
)
KNOWN_CACHES = frozenset({"DynamicCache", "StaticCache", "EncoderDecoderCache"})

# Models. For those that are refused, the reason is part of the message.

BY_SLOT = frozenset(
    {
        "GPTNeoForCausalLM",  # its windows are counted in slots of the cache
        "GitForCausalLM",  # its mask leaves out the image before the text
        "GlmImageForConditionalGeneration",  # it counts positions itself
    }
)
# After the prefill, it widens the mask over an image in the cache.
WIDENS_MASK = frozenset({"GitForCausalLM"})
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
    ),
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
        "EncoderDecoderModel",
        "MossTranscribeDiarizeForConditionalGeneration",
        "VibeVoiceAsrForConditionalGeneration",
    }
)

# Modules of decoders that compute positions from the cache's length. The growing tables are
# enlarged when the cache grows.

GROWING_EMBEDDINGS = frozenset(
    {
        "Kosmos2TextSinusoidalPositionalEmbedding",
        "Kosmos2_5TextSinusoidalPositionalEmbedding",
        "M2M100SinusoidalPositionalEmbedding",
        "NllbMoeSinusoidalPositionalEmbedding",
    }
)
POSITION_EMBEDDINGS = GROWING_EMBEDDINGS | {
    "BartLearnedPositionalEmbedding",
    "BigBirdPegasusLearnedPositionalEmbedding",
    "BlenderbotLearnedPositionalEmbedding",
    "BlenderbotSmallLearnedPositionalEmbedding",
    "MBartLearnedPositionalEmbedding",
    "MarianSinusoidalPositionalEmbedding",
    "MvpLearnedPositionalEmbedding",
    "PLBartLearnedPositionalEmbedding",
    "PegasusSinusoidalPositionalEmbedding",
    "PegasusXSinusoidalPositionalEmbedding",
    "Speech2TextSinusoidalPositionalEmbedding",
    "TrOCRLearnedPositionalEmbedding",
    "TrOCRSinusoidalPositionalEmbedding",
    "WhisperPositionalEmbedding",
}
# Attentions that take a position bias for each row.
POSITION_BIASES = frozenset(
    {"LongT5Attention", "MT5Attention", "SwitchTransformersAttention", "T5Attention"}
)
READS_MASKS = frozenset({"NllbMoeTop2Router"})  # it reads the attention mask as one of padding
# Modules whose result for a position depends on the others of a forward. Doge's experts mix their
# routers' logits. torch's dynamic quantization, named by its Python modules, has one scale for all.
MIXES_POSITIONS = frozenset({"DogeCDMoE"})
SCALES_TOGETHER = ("torch.ao.nn.intrinsic.quantized.dynamic", "torch.ao.nn.quantized.dynamic")
WEIGHT_QUANTIZERS = frozenset({"GgufHfQuantizer"})  # they do not quantize activations

# Processors whose result depends on neither the other rows nor the committed tokens.
HISTORY_FREE = frozenset(
    {
        "EpsilonLogitsWarper",
        "EtaLogitsWarper",
        "InfNanRemoveLogitsProcessor",
        "LogitNormalization",
        "MinPLogitsWarper",
        "SuppressTokensLogitsProcessor",
        "TemperatureLogitsWarper",
        "TopHLogitsWarper",
        "TopKLogitsWarper",
        "TopPLogitsWarper",
        "TypicalLogitsWarper",
    }
)
# Processors whose result for a row does not depend on the other rows.
BY_ROW = HISTORY_FREE | {
    "ExponentialDecayLengthPenalty",
    "ForcedBOSTokenLogitsProcessor",
    "ForcedEOSTokenLogitsProcessor",
    "MinLengthLogitsProcessor",
    "MinNewTokensLengthLogitsProcessor",
    "NoBadWordsLogitsProcessor",
    "NoRepeatNGramLogitsProcessor",
    "RepetitionPenaltyLogitsProcessor",
    "SequenceBiasLogitsProcessor",
    "SuppressTokensAtBeginLogitsProcessor",
}
PROCESSOR_LIST = frozenset({"LogitsProcessorList"})  # it calls each processor
END_OF_SEQUENCE = "EosTokenCriteria"  # decided from the token's id
MAX_LENGTH = "MaxLengthCriteria"  # decided from the length
MAX_TIME = "MaxTimeCriteria"  # called without the tokens


def names_of(model: Any) -> frozenset[str]:
    """Return the names of a model's class and of all its base classes."""
    return frozenset(kind.__name__ for kind in type(model).__mro__)


def is_stock_model(kind: type) -> bool:
    """Whether a class is a model of transformers."""
    return kind.__module__.startswith(f"{PACKAGE}.models.")


def stock_name(each: Any, module: str) -> str:
    """Return the name of an object's class if a module of transformers defines it, or ""."""
    kind = type(each)
    return kind.__name__ if kind.__module__ == f"{PACKAGE}.{module}" else ""


# Caches and layers


def kind_of(each: Any) -> str:
    """Return the name of a cache's or layer's class, or of its base class in transformers.

    The base class counts if a subclass overrides none of its methods, because it can then be rolled
    back in the same way.
    """
    kinds = type(each).__mro__
    for place, kind in enumerate(kinds):
        if kind.__module__ == f"{PACKAGE}.{CACHE_MODULE}":
            base = {name for above in kind.__mro__ for name in vars(above)}
            changed = {name for below in kinds[:place] for name in vars(below)}
            return type(each).__name__ if any(map(_matters, changed & base)) else kind.__name__
    return type(each).__name__


def _matters(name: str) -> bool:
    """Whether overriding a name changes behaviour. Python itself sets many special names."""
    special = ("__call__", "__getattr__", "__getattribute__", "__getitem__", "__iter__", "__len__")
    return name in special or not (name.startswith("__") or name == "_abc_impl")


# Processors and criteria


def all_stock(processors: Iterable[Any] | None, names: Collection[str]) -> bool:
    """Whether all processors are of the named classes of transformers; True if there are none."""
    return all(processor_name(each) in names for each in processors or ())


def processor_name(processor: Any) -> str:
    """Return the name of a processor's class if transformers defines it, or ""."""
    return stock_name(processor, PROCESSOR_MODULE)


def caller_of(processors: Any) -> Callable[..., Any]:
    """Return a function that applies a list of processors to tokens and scores.

    A LogitsProcessorList inspects each processor's signature at every call, which takes longer than
    many processors. The function only does so here. If a processor has more parameters, it is
    the list itself, which then raises an error.
    """
    known = processor_name(processors) in PROCESSOR_LIST
    if not known or any(len(signature(each.__call__).parameters) > 2 for each in processors):
        call: Callable[..., Any] = processors
        return call

    def apply(ids: Any, scores: Any) -> Any:
        for processor in processors:
            scores = processor(ids, scores)
        return scores

    return apply


def criterion_name(criterion: Any) -> str:
    """Return the name of a stopping criterion's class if transformers defines it, or ""."""
    return stock_name(criterion, CRITERION_MODULE)


# Modules of models


def indexers_of(model: Any) -> list[Any]:
    """Return the modules of a model that select keys for its indexed attention."""
    return [each for each in model.modules() if type(each).__name__.endswith("Indexer")]


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
    """Whether a model has modules that mix the positions of a forward, of the listed classes."""
    kinds = {type(each) for each in model.modules()}
    return any(
        kind.__name__ in MIXES_POSITIONS or kind.__module__.startswith(SCALES_TOGETHER)
        for kind in kinds
    )


def routes_by_masks(model: Any) -> bool:
    """Whether a model's routers skip the tokens that a mask, as they read it, calls padding."""
    return any(
        type(each).__name__ in READS_MASKS and not each.router_ignore_padding_tokens
        for each in model.get_decoder().modules()
    )


def least_capacity(model: Any) -> int | None:
    """Return how many of a forward's tokens an expert of a decoder takes at least; None: all."""
    found = []
    for each in model.get_decoder().modules():
        if not hasattr(each, "expert_capacity"):
            continue
        share = getattr(each, "moe_eval_capacity_token_fraction", 0)
        if each.training or share <= 0:
            found.append(each.expert_capacity or 1)
        elif share < 1:  # of a single token, all are taken
            found.append(1)
    return min(found, default=None)


def least_step_size(model: Any) -> float:
    """Return the largest lower bound on step sizes among a model's recurrent layers; 0: none."""
    bounds = (getattr(module, "time_step_limit", (0.0,))[0] for module in model.modules())
    return max(bounds, default=0.0)


def skips_padding(model: Any) -> bool:
    """Whether position embeddings of a model count tokens other than padding."""
    return any(hasattr(each, "create_position_ids_from_input_ids") for each in model.modules())


def captures_states(hook: Any) -> bool:
    """Whether a hook is transformers' own, which captures states in calls that ask for them."""
    module = getattr(hook, "__module__", None)
    return bool(module == f"{PACKAGE}.{CAPTURE_MODULE}")
