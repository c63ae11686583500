"""The families that models are drawn from, and the classes that are not drawn."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks import tiny

VOCAB = 61
IMAGE = 60  # the id that stands where an image's features go
POSITIONS = 256
VISION = {
    "hidden_size": 16,
    "intermediate_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "image_size": 16,
    "patch_size": 8,
}
WINDOW = {"sliding_window": 8}
MIXED = {**WINDOW, "layer_types": ["sliding_attention", "full_attention"], "num_hidden_layers": 2}
EXPERTS = {"num_local_experts": 4, "num_experts_per_tok": 2}
LONG = {"short_factor": [1.0] * 4, "long_factor": [4.0, 3.0, 6.0, 2.0]}


def rope(kind: str, limit: int | None = None, **more: Any) -> dict[str, Any]:
    """Settings of scaled rotary positions."""
    given = {"rope_type": kind, "rope_theta": 10_000.0, "factor": 4.0, **more}
    return {"rope_parameters": given} | ({"max_position_embeddings": limit} if limit else {})


@dataclass(frozen=True)
class Family:
    """A class of models and what its configuration is set to.

    Attributes:
        kind: the class, of transformers or of ``remote``.
        config: its configuration's class.
        settings: in place of the sizes that ``base`` draws.
        images: "slots": the prompt holds ids where an image goes; "ahead": it has none; or "".
        weight: how often it is drawn, beside others.
    """

    kind: str
    config: str
    settings: dict[str, Any] = field(default_factory=dict)
    images: str = ""
    weight: float = 1.0


def _llama(**settings: Any) -> Family:
    return Family("LlamaForCausalLM", "LlamaConfig", settings)


def _remote(kind: str, weight: float = 1.0) -> Family:
    config = "MistralConfig" if "Sliding" in kind else "LlamaConfig"
    return Family(kind, config, WINDOW if "Sliding" in kind else {}, weight=weight)


FAMILIES: dict[str, Family] = {
    "llama": Family("LlamaForCausalLM", "LlamaConfig", weight=6.0),
    "llama linear": _llama(**rope("linear")),
    "llama yarn": _llama(**rope("yarn", original_max_position_embeddings=16)),
    "llama3 rope": _llama(
        **rope(
            "llama3",
            original_max_position_embeddings=16,
            low_freq_factor=1.0,
            high_freq_factor=4.0,
        )
    ),
    "llama dynamic": _llama(**rope("dynamic", 20)),
    "llama bias": _llama(attention_bias=True, mlp_bias=True),
    "mistral": Family("MistralForCausalLM", "MistralConfig", {"sliding_window": None}),
    "mistral sliding": Family("MistralForCausalLM", "MistralConfig", WINDOW),
    "mistral longer window": Family("MistralForCausalLM", "MistralConfig", {"sliding_window": 24}),
    "starcoder2": Family("Starcoder2ForCausalLM", "Starcoder2Config", WINDOW),
    "phi3 windows": Family("Phi3ForCausalLM", "Phi3Config", WINDOW),
    "olmo3": Family("Olmo3ForCausalLM", "Olmo3Config", MIXED),
    # Its experts mix the positions of a forward: ties of equal tokens are decided by rounding.
    "doge": Family("DogeForCausalLM", "DogeConfig", WINDOW | {"is_moe": False}),
    "gemma": Family("GemmaForCausalLM", "GemmaConfig"),
    "gemma2": Family("Gemma2ForCausalLM", "Gemma2Config", MIXED),
    "gemma3": Family("Gemma3ForCausalLM", "Gemma3TextConfig", MIXED),
    "gemma3n": Family(
        "Gemma3nForCausalLM", "Gemma3nTextConfig", {**MIXED, **tiny.ODD["Gemma3nTextConfig"]}
    ),
    "qwen2": Family("Qwen2ForCausalLM", "Qwen2Config"),
    "qwen3": Family("Qwen3ForCausalLM", "Qwen3Config"),
    "qwen3 experts": Family(
        "Qwen3MoeForCausalLM", "Qwen3MoeConfig", {**EXPERTS, "moe_intermediate_size": 16}
    ),
    "phi": Family("PhiForCausalLM", "PhiConfig"),
    "phi3": Family("Phi3ForCausalLM", "Phi3Config"),
    "phi3 longrope": Family(
        "Phi3ForCausalLM",
        "Phi3Config",
        rope("longrope", original_max_position_embeddings=20, **LONG)
        | {"original_max_position_embeddings": 20, "head_dim": 8},
    ),
    "llama longrope": _llama(**rope("longrope", original_max_position_embeddings=20, **LONG)),
    "gpt2": Family("GPT2LMHeadModel", "GPT2Config", weight=2.0),
    "gptj": Family("GPTJForCausalLM", "GPTJConfig", {"rotary_dim": 4}),
    "codegen": Family("CodeGenForCausalLM", "CodeGenConfig", {"rotary_dim": 4}),
    "gpt-neo": Family(
        "GPTNeoForCausalLM",
        "GPTNeoConfig",
        {
            "attention_types": [[["global", "local"], 1]],
            "window_size": 8,
            "num_hidden_layers": 2,
            "num_layers": 2,
        },
    ),
    "gpt-neox": Family("GPTNeoXForCausalLM", "GPTNeoXConfig"),
    "opt": Family("OPTForCausalLM", "OPTConfig"),
    "bloom": Family("BloomForCausalLM", "BloomConfig", {"slow_but_exact": True}),
    "falcon": Family("FalconForCausalLM", "FalconConfig", {"new_decoder_architecture": True}),
    "falcon alibi": Family("FalconForCausalLM", "FalconConfig", {"alibi": True}),
    "mpt": Family("MptForCausalLM", "MptConfig"),
    "mixtral": Family("MixtralForCausalLM", "MixtralConfig", {**EXPERTS, "sliding_window": None}),
    "gpt-oss": Family("GptOssForCausalLM", "GptOssConfig", {**MIXED, **EXPERTS, **rope("default")}),
    "llama4": Family(
        "Llama4ForCausalLM", "Llama4TextConfig", {**EXPERTS, "attention_chunk_size": 8}
    ),
    "deepseek": Family("DeepseekV3ForCausalLM", "DeepseekV3Config"),
    "cohere2": Family("Cohere2ForCausalLM", "Cohere2Config", {**MIXED, "logit_scale": 1.0}),
    "stablelm": Family("StableLmForCausalLM", "StableLmConfig"),
    "xglm": Family("XGLMForCausalLM", "XGLMConfig"),
    "mvp decoder": Family("MvpForCausalLM", "MvpConfig"),
    "trocr decoder": Family("TrOCRForCausalLM", "TrOCRConfig"),
    "bart decoder": Family("BartForCausalLM", "BartConfig"),
    "mamba": Family("MambaForCausalLM", "MambaConfig", weight=0.2),
    "t5": Family("T5ForConditionalGeneration", "T5Config", weight=2.0),
    "mt5": Family("MT5ForConditionalGeneration", "MT5Config"),
    "bart": Family("BartForConditionalGeneration", "BartConfig", weight=2.0),
    "mbart": Family("MBartForConditionalGeneration", "MBartConfig"),
    "marian": Family("MarianMTModel", "MarianConfig"),
    "pegasus": Family("PegasusForConditionalGeneration", "PegasusConfig"),
    "m2m100": Family("M2M100ForConditionalGeneration", "M2M100Config"),
    "longt5": Family("LongT5ForConditionalGeneration", "LongT5Config"),
    "pegasus-x": Family("PegasusXForConditionalGeneration", "PegasusXConfig"),
    "led": Family("LEDForConditionalGeneration", "LEDConfig", {"attention_window": 4}),
    "gemma3 image": Family(
        "Gemma3ForConditionalGeneration",
        "Gemma3Config",
        {"mm_tokens_per_image": 4, "image_token_index": IMAGE},
        images="slots",
    ),
    "gemma3 image, its id beyond": Family(
        "Gemma3ForConditionalGeneration",
        "Gemma3Config",
        {"mm_tokens_per_image": 4, "image_token_index": VOCAB + 3},
        images="slots",
    ),
    "llava image": Family(
        "LlavaForConditionalGeneration",
        "LlavaConfig",
        {"image_token_index": IMAGE, "image_seq_length": 4},
        images="slots",
    ),
    "git image": Family("GitForCausalLM", "GitConfig", images="ahead"),
    "own trivial": _remote("Trivial"),
    "own trivial sliding": _remote("TrivialSliding"),
    "own drops positions": _remote("DropsPositions"),
    "own inputs": _remote("OwnInputs"),
    "own sample": _remote("OwnSample", 0.3),
    "own embeddings": _remote("WrappedEmbeddings", 0.5),
}
CLASSES = (Path(__file__).parent / "classes.txt").read_text().split()
# Classes that are not drawn, each with its reason.
EXCLUDED = {
    "BigBirdForCausalLM": "its attention draws random blocks",
    "BigBirdPegasusForConditionalGeneration": "its attention draws random blocks",
    "HrmTextForCausalLM": "its loops amplify rounding: float32 off by 0.003, float64 identical",
    "Gemma3nForConditionalGeneration": "its vision tower needs the package timm",
    "Gemma4AssistantForCausalLM": "it reads another model's states and cache",
    "Gemma4UnifiedAssistantForCausalLM": "it reads another model's states and cache",
    "VoxtralRealtimeForConditionalGeneration": "it takes a piece of sound with every token",
    "GraniteSpeechForConditionalGeneration": "it has a generate of its own",
    "GraniteSpeechPlusForConditionalGeneration": "it has a generate of its own",
    "MusicgenForCausalLM": "it has a generate of its own",
    "MusicgenMelodyForCausalLM": "it has a generate of its own",
    "Nemotron3_5TranscribeForConditionalGeneration": "it has a generate of its own",
    "SeamlessM4TForTextToText": "it has a generate of its own",
    "SeamlessM4Tv2ForTextToText": "it has a generate of its own",
}
