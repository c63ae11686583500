"""The table's second part: transformers' classes that are recognized by their names.

Classes are compared by name, so that their modules do not have to be imported.
"""

from __future__ import annotations

from ngramspec.hf_model.compat.names import LINEAR, Name, listed, rows

CACHE_MODULE = "cache_utils"
PROCESSOR_MODULE = "generation.logits_process"
CRITERION_MODULE = "generation.stopping_criteria"
CAPTURE_MODULE = "utils.output_capturing"

# Classes of layers and caches, by what a rollback needs.

CROPPED_LAYERS = rows(
    CACHE_MODULE,
    {
        "DynamicLayer": "rejected positions are cut off",
        "DynamicIndexedLayer": "and so is their index",
        "DynamicSlidingWindowLayer": "it records positions that leave its window, and is cropped",
    },
)
LINEAR_LAYERS = listed(CACHE_MODULE, "it has a convolution or a recurrent state", LINEAR.split())
STATIC_LAYERS = rows(CACHE_MODULE, {"StaticLayer": "its length is reduced in place"})
STATIC_SLIDING_LAYERS = rows(
    CACHE_MODULE, {"StaticSlidingWindowLayer": "it overwrites its oldest positions: no rollback"}
)
KNOWN_CACHES = listed(
    CACHE_MODULE,
    "its layers can be rolled back",
    ("DynamicCache", "StaticCache", "EncoderDecoderCache"),
)

# Classes of models, by the property for which they are listed. ``use`` says why; of models that are
# refused it is part of the message.

BY_SLOT = {
    **rows(
        "",
        {
            "GPTNeoForCausalLM": "its windows are counted in slots of the cache",
            "GlmImageForConditionalGeneration": "it counts positions itself",
            "GitForCausalLM": "its mask leaves out the image before the text",
            "Kosmos2_5ForConditionalGeneration": "it drops the positions that it is given",
        },
    ),
    **rows(
        "",
        {"HyperCLOVAXVisionV2ForConditionalGeneration": "it drops the positions that it is given"},
        "5.18",
    ),
}
WIDENS_MASK = rows(
    "", {"GitForCausalLM": "after the prefill, it widens the mask over an image in the cache"}
)
REREADS = listed(
    "",
    "it drops its cache at config.original_max_position_embeddings tokens",
    ("Phi3ForCausalLM", "Phi4MultimodalForCausalLM", "PhimoeForCausalLM"),
)
ONE_AT_A_TIME = rows(
    "",
    {
        "BltForCausalLM": "it divides the bytes of each forward into patches separately",
        "CpmAntForCausalLM": "it computes relative positions for one new token only",
        "FSMTForConditionalGeneration": "new tokens attend to later ones",
        "MoshiForCausalLM": "its attention window is longer in a wider forward",
        "ProphetNetForCausalLM": "it accepts one new token",
        "ProphetNetForConditionalGeneration": "it accepts one new token",
    },
)
OWN_CACHE = rows(
    "",
    {
        "DeepseekV4ForCausalLM": "its compressors merge several tokens into one entry of the cache,"
        " from which a rejected token cannot be removed",
        "MiniMaxForCausalLM": "its linear attention adds every token to states in a MiniMaxCache,"
        " which can be neither truncated nor saved and restored",
        "xLSTMForCausalLM": "each forward overwrites its states in an xLSTMCache, which cannot be"
        " saved and restored",
    },
)
NOT_STATIC = listed(
    "",
    "its baseline output differs between a dynamic and a static cache",
    ("GPTNeoForCausalLM", "LEDForConditionalGeneration"),
)
PLACES_ONE_TOKEN_ELSEWHERE = rows(
    "", {"GitForCausalLM": "it gave a single token another position than in a wider forward"}
)
ATTENDS_BY_OUTPUT = rows(
    "", {"FalconForCausalLM": "its attention under sdpa depends on output_attentions"}
)
PASSES_POSITIONS = listed(
    "",
    "it passes on positions, which generate does not give it",
    (
        "EncoderDecoderModel",
        "MossTranscribeDiarizeForConditionalGeneration",
        "VibeVoiceAsrForConditionalGeneration",
    ),
)

# Modules of decoders that compute positions from the cache's length, and models that pass on
# positions which ``generate`` does not give them.

_IN_TABLE = "it looks a position up in its weights"
_NO_PADDING = f"{_IN_TABLE}, and padding has none"
_GROWING = f"{_NO_PADDING}; they grow with the cache"
POSITION_EMBEDDINGS = {
    name: Name(name, f"models.{folder}.modeling_{folder}", use)
    for folder, name, use in (
        ("bart", "BartLearnedPositionalEmbedding", _IN_TABLE),
        ("bigbird_pegasus", "BigBirdPegasusLearnedPositionalEmbedding", _IN_TABLE),
        ("blenderbot", "BlenderbotLearnedPositionalEmbedding", _IN_TABLE),
        ("blenderbot_small", "BlenderbotSmallLearnedPositionalEmbedding", _IN_TABLE),
        ("m2m_100", "M2M100SinusoidalPositionalEmbedding", _GROWING),
        ("marian", "MarianSinusoidalPositionalEmbedding", _IN_TABLE),
        ("mbart", "MBartLearnedPositionalEmbedding", _IN_TABLE),
        ("mvp", "MvpLearnedPositionalEmbedding", _IN_TABLE),
        ("nllb_moe", "NllbMoeSinusoidalPositionalEmbedding", _GROWING),
        ("pegasus", "PegasusSinusoidalPositionalEmbedding", _IN_TABLE),
        ("pegasus_x", "PegasusXSinusoidalPositionalEmbedding", "it computes each"),
        ("plbart", "PLBartLearnedPositionalEmbedding", _IN_TABLE),
        ("speech_to_text", "Speech2TextSinusoidalPositionalEmbedding", _NO_PADDING),
        ("trocr", "TrOCRLearnedPositionalEmbedding", _IN_TABLE),
        ("trocr", "TrOCRSinusoidalPositionalEmbedding", _NO_PADDING),
        ("whisper", "WhisperPositionalEmbedding", _IN_TABLE),
    )
}
GROWING_EMBEDDINGS = {name for name, row in POSITION_EMBEDDINGS.items() if row.use == _GROWING}
POSITION_BIASES = {
    name: Name(name, f"models.{folder}.modeling_{folder}", "it takes a bias for each row")
    for folder, name in (
        ("longt5", "LongT5Attention"),
        ("mt5", "MT5Attention"),
        ("switch_transformers", "SwitchTransformersAttention"),
        ("t5", "T5Attention"),
    )
}

QUANTIZER = rows(
    "quantizers.quantizer_gguf", {"GgufHfQuantizer": "it quantizes weights only"}, "5.17"
)

# Processors and criteria.

HISTORY_FREE = listed(
    PROCESSOR_MODULE,
    "its result depends on neither the other rows nor the committed tokens",
    (
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
    ),
)
BY_ROW = HISTORY_FREE | listed(
    PROCESSOR_MODULE,
    "its result for a row does not depend on the other rows",
    (
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
    ),
)
PROCESSOR_LIST = rows(
    PROCESSOR_MODULE, {"LogitsProcessorList": "it calls each processor with tokens and scores"}
)
SUPPRESSING = rows(
    PROCESSOR_MODULE, {"SuppressTokensLogitsProcessor": "it bans its suppress_tokens"}
)
BIASING = listed(
    PROCESSOR_MODULE,
    "it bans the sequences to which sequence_bias gives minus infinity",
    ("SequenceBiasLogitsProcessor", "NoBadWordsLogitsProcessor"),
)
CRITERIA = rows(
    CRITERION_MODULE,
    {
        "EosTokenCriteria": "decided from the token's id",
        "MaxLengthCriteria": "decided from the length",
        "MaxTimeCriteria": "called without the tokens",
    },
)

LAYER_CLASSES = CROPPED_LAYERS | LINEAR_LAYERS | STATIC_LAYERS | STATIC_SLIDING_LAYERS
CLASSES = (
    *(
        LAYER_CLASSES,
        KNOWN_CACHES,
        QUANTIZER,
        BY_ROW,
        PROCESSOR_LIST,
        SUPPRESSING,
        BIASING,
        CRITERIA,
    ),
    *(BY_SLOT, WIDENS_MASK, REREADS, ONE_AT_A_TIME, OWN_CACHE, NOT_STATIC),
    *(PLACES_ONE_TOKEN_ELSEWHERE, ATTENDS_BY_OUTPUT, PASSES_POSITIONS),
    *(POSITION_EMBEDDINGS, POSITION_BIASES),
)
