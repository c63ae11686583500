"""The table of names in transformers that ngramspec uses and that may change, with versions.

It lists private names, fields of cache layers, and names in models' modules, and says where the
classes of ``hf_model/compat`` are. Tests check every row against the installed transformers, and
that only ``hf_model/compat`` uses its name. The kinds in ``hf_model/cache`` use fields of layers.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from ngramspec.hf_model.compat import caches, names, processors

CACHES = "cache_utils"
LINEAR = f"{caches.LINEAR} {caches.LINEAR_AND_FULL} {caches.LINEAR_AND_SLIDING}"
SLIDING = f"{caches.SLIDING} {caches.LINEAR_AND_SLIDING}"


@dataclass(frozen=True, slots=True)
class Name:
    """A row of the table.

    Attributes:
        name: in transformers.
        where: the module of transformers that binds it, "" for the package itself, or the classes
            of ``cache_utils`` that have it as a field.
        use: its purpose; for a class, the reason for listing it.
        since: the first version that has it; None: every supported version has it.
        until: the first version that no longer has it; None: no version has removed it.
    """

    name: str
    where: str
    use: str
    since: str | None = None
    until: str | None = None


def rows(where: str, uses: dict[str, str], since: str | None = None) -> dict[str, Name]:
    """Return rows by name, each with a separate use."""
    return {name: Name(name, where, use, since) for name, use in uses.items()}


def listed(where: str, use: str, names: Iterable[str]) -> dict[str, Name]:
    """Return rows by name, all with the same use."""
    return {name: Name(name, where, use) for name in names}


# Private names, used in ``compat`` only.

PRIVATE = {
    **rows(
        "generation.utils",
        {
            "_beam_search": "to find models that override beam search",
            "_has_unfinished_sequences": "to find models that override the decoding loop",
            "_optimize_model_for_decode": "the context of the forwards after the prefill",
            "_prefill": "runs the prompt, in chunks if asked",
            "_sample": "to find models that override the decoding loop",
            "_update_model_kwargs_for_generation": "the arguments of the next forward",
            "_valid_auto_compile_criteria": "whether generate would compile",
        },
    ),
    **rows("generation.utils", {"_is_user_defined": "the mark of a caller's cache"}, "5.17"),
    **rows(
        "generation.configuration_utils",
        {
            "_compile_all_devices": "compiles on a CPU too",
        },
    ),
    **rows(
        "generation.configuration_utils",
        {"_mask_length": "length of an attention mask of ones, which generate leaves out"},
        "5.18",
    ),
    **rows(
        "modeling_utils",
        {
            "_attn_implementation": "name of the attention implementation",
            "_attn_implementation_internal": "the config's field with that name",
            "_compiled_call": "the compiled forward that a model stores",
            "_default_compile_config": "the settings to compile with",
            "_is_stateful": "whether a model keeps a recurrent state",
        },
    ),
    **rows("modeling_layers", {"_project_to_logits": "the logits of MTP layers"}),
    **rows("distributed.mixin", {"_device_mesh": "the processes of tensor parallelism"}),
    "_commit_hash": Name(
        "_commit_hash", "configuration_utils", "the hub's commit of a config", until="5.18"
    ),
    **rows(
        "utils.hub",
        {
            "_raise_exceptions_for_connection_errors": "to look for a file that may be missing",
            "_raise_exceptions_for_missing_entries": "likewise",
        },
    ),
}

# Fields of cache layers and caches, used in ``compat`` and in ``cache`` only.

FIELDS = {
    **rows(
        f"{SLIDING} LinearAttentionLayer LinearAttentionAndFullAttentionLayer",
        {"record_past": "whether a layer keeps what it would overwrite, until it is cropped"},
    ),
    **rows(
        f"{SLIDING} StaticLayer",
        {"cumulative_length": "positions seen: a number, or a static layer's tensor"},
    ),
    **rows(
        "StaticLayer",
        {
            "max_cache_len": "the size of a static layer",
            "lazy_initialization": "allocates a layer's memory",
        },
    ),
    **rows(
        LINEAR,
        {
            "conv_states": "the last inputs of each convolution",
            "conv_kernel_size": "how many inputs each convolution needs",
            "recurrent_states": "each recurrent state",
            "has_previous_state": "whether there was a forward",
            "is_conv_states_initialized": "whether each convolution has inputs",
            "is_recurrent_states_initialized": "whether each recurrent state exists",
        },
    ),
    **rows("DynamicIndexedLayer", {"indexer_keys": "keys of an index over the layer's keys"}),
    **rows("DynamicIndexedLayer", {"indexer_position_ids": "their positions"}, "5.21"),
    **rows(
        "EncoderDecoderCache",
        {
            "self_attention_cache": "the decoder's own cache",
            "cross_attention_cache": "the encoder's output for each layer",
        },
    ),
    **rows("DynamicCache StaticCache", {"offloading": "whether layers move to the CPU"}),
}
# Methods that are replaced on single objects, in ``caches`` only.
REPLACED = rows(
    "DynamicLayer DynamicCache", {"update": "replaced, so that a layer grows without copies"}
)
# The common interface of layers and caches.
COMMON_FIELDS = {
    **listed(
        "DynamicLayer DynamicIndexedLayer StaticLayer",
        "the interface of a layer with attention",
        ("keys", "values", "is_initialized", "is_sliding", "get_seq_length", "get_max_length"),
    ),
    **rows("DynamicLayer DynamicSlidingWindowLayer", {"crop": "drops the last positions"}),
    **rows(f"{SLIDING} {LINEAR}", {"activate_past_recording": "lets a layer be cropped"}),
    **rows("DynamicCache StaticCache", {"layers": "the layers of a cache"}),
}

# Names in models' own modules.

MODEL_NAMES = rows(
    "models",
    {
        "create_position_ids_from_input_ids": "embeddings that count tokens other than padding",
        "expert_capacity": "how many of a forward's tokens an expert takes",
        "moe_eval_capacity_token_fraction": "the same, as a fraction of these tokens",
        "router_ignore_padding_tokens": "whether a router does not read the mask",
        "time_step_limit": "bounds of a Mamba layer's step sizes",
        "Indexer": "the end of class names: modules that select keys for indexed attention",
        "Expert": "part of class names: modules that route tokens to experts",
        "Moe": "likewise",
    },
)

# Classes, by the group in ``compat`` that lists them.

CLASS_MODULES = {
    **dict.fromkeys(("KNOWN_CACHES", "DYNAMIC", "INDEXED", "SLIDING", "STATIC"), CACHES),
    **dict.fromkeys(("STATIC_SLIDING", "LINEAR", "LINEAR_AND_FULL"), CACHES),
    **dict.fromkeys(("LINEAR_AND_SLIDING", "EMPTY"), CACHES),
    **dict.fromkeys(("BY_SLOT", "WIDENS_MASK", "REREADS", "ONE_AT_A_TIME", "OWN_CACHE"), ""),
    **dict.fromkeys(
        (
            "ONE_AT_A_TIME_WITH",
            "NOT_STATIC",
            "MASKS_SEVERAL",
            "PLACES_ONE_TOKEN_ELSEWHERE",
            "ATTENDS_BY_OUTPUT",
        ),
        "",
    ),
    **dict.fromkeys(("PASSES_POSITIONS", "READS_MASKS"), ""),
    "MIXES_POSITIONS": "models.doge.modeling_doge",
    "WEIGHT_QUANTIZERS": "quantizers.quantizer_gguf",
    **dict.fromkeys(("AT_ONCE", "BY_ROW", "PROCESSOR_LIST"), names.PROCESSOR_MODULE),
    **dict.fromkeys(
        ("END_OF_SEQUENCE", "MAX_LENGTH", "MAX_TIME", "STOP_STRING"), names.CRITERION_MODULE
    ),
}
CLASSES_SINCE = {
    "DoryForCausalLM": "5.24",
    "DummyLayer": "5.23",
    "GgufHfQuantizer": "5.17",
    "HyperCLOVAXVisionV2ForConditionalGeneration": "5.18",
    "MossTranscribeDiarizeForConditionalGeneration": "5.20",
}
# Folders of the modules that compute positions.
POSITION_FOLDERS = {
    "BartLearnedPositionalEmbedding": "bart",
    "BigBirdPegasusLearnedPositionalEmbedding": "bigbird_pegasus",
    "BlenderbotLearnedPositionalEmbedding": "blenderbot",
    "BlenderbotSmallLearnedPositionalEmbedding": "blenderbot_small",
    "Kosmos2TextSinusoidalPositionalEmbedding": "kosmos2",
    "Kosmos2_5TextSinusoidalPositionalEmbedding": "kosmos2_5",
    "M2M100SinusoidalPositionalEmbedding": "m2m_100",
    "MarianSinusoidalPositionalEmbedding": "marian",
    "MBartLearnedPositionalEmbedding": "mbart",
    "MvpLearnedPositionalEmbedding": "mvp",
    "NllbMoeSinusoidalPositionalEmbedding": "nllb_moe",
    "PegasusSinusoidalPositionalEmbedding": "pegasus",
    "PegasusXSinusoidalPositionalEmbedding": "pegasus_x",
    "PLBartLearnedPositionalEmbedding": "plbart",
    "Speech2TextSinusoidalPositionalEmbedding": "speech_to_text",
    "TrOCRLearnedPositionalEmbedding": "trocr",
    "TrOCRSinusoidalPositionalEmbedding": "trocr",
    "WhisperPositionalEmbedding": "whisper",
    "LongT5Attention": "longt5",
    "MT5Attention": "mt5",
    "SwitchTransformersAttention": "switch_transformers",
    "T5Attention": "t5",
}


def listed_in(group: str) -> Iterable[str]:
    """Names in a group of ``compat``, which may be a single one."""
    found = next(vars(each)[group] for each in (names, caches, processors) if hasattr(each, group))
    return (found,) if isinstance(found, str) else sorted(found)  # one order in all processes


CLASSES = [
    Name(name, module, group, CLASSES_SINCE.get(name))
    for group, module in CLASS_MODULES.items()
    for name in listed_in(group)
] + [
    Name(name, f"models.{folder}.modeling_{folder}", "it computes positions")
    for name, folder in POSITION_FOLDERS.items()
]
