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
        kind: the class's name, of transformers or of ``remote``.
        settings: in place of the sizes that ``base`` draws.
        images: "slots": the prompt holds ids where an image goes; "ahead": it has none; or "".
        weight: how often it is drawn, beside others.
    """

    kind: str
    settings: dict[str, Any] = field(default_factory=dict)
    images: str = ""
    weight: float = 1.0


def _llama(**settings: Any) -> Family:
    return Family("LlamaForCausalLM", settings)


def _remote(kind: str, weight: float = 1.0) -> Family:
    return Family(kind, WINDOW if "Sliding" in kind else {}, weight=weight)


FAMILIES: dict[str, Family] = {
    "llama": Family("LlamaForCausalLM", weight=6.0),
    "llama linear": _llama(**rope("linear")),
    "llama yarn": _llama(**rope("yarn", original_max_position_embeddings=16)),
    "llama3 rope": _llama(
        **rope(
            "llama3", original_max_position_embeddings=16, low_freq_factor=1.0, high_freq_factor=4.0
        )
    ),
    "llama dynamic": _llama(**rope("dynamic", 20)),
    "llama bias": _llama(attention_bias=True, mlp_bias=True),
    "mistral": Family("MistralForCausalLM", {"sliding_window": None}),
    "mistral sliding": Family("MistralForCausalLM", WINDOW),
    "mistral longer window": Family("MistralForCausalLM", {"sliding_window": 24}),
    "starcoder2": Family("Starcoder2ForCausalLM", WINDOW),
    "phi3 windows": Family("Phi3ForCausalLM", WINDOW),
    "olmo3": Family("Olmo3ForCausalLM", MIXED),
    # Its experts mix the positions of a forward: ties of equal tokens are decided by rounding.
    "doge": Family("DogeForCausalLM", WINDOW | {"is_moe": False}),
    "gemma": Family("GemmaForCausalLM"),
    "gemma2": Family("Gemma2ForCausalLM", MIXED),
    "gemma3": Family("Gemma3ForCausalLM", MIXED),
    "gemma3n": Family("Gemma3nForCausalLM", {**MIXED, **tiny.ODD["Gemma3nTextConfig"]}),
    "qwen2": Family("Qwen2ForCausalLM"),
    "qwen3": Family("Qwen3ForCausalLM"),
    "qwen3 experts": Family("Qwen3MoeForCausalLM", {**EXPERTS, "moe_intermediate_size": 16}),
    "phi": Family("PhiForCausalLM"),
    "phi3": Family("Phi3ForCausalLM"),
    "phi3 longrope": Family(
        "Phi3ForCausalLM",
        rope("longrope", original_max_position_embeddings=20, **LONG)
        | {"original_max_position_embeddings": 20, "head_dim": 8},
    ),
    # Without long factors it still reads its whole text again. Only kept cases use it.
    "phi3 rereads": Family("Phi3ForCausalLM", {"original_max_position_embeddings": 20}, weight=0.0),
    "llama longrope": _llama(**rope("longrope", original_max_position_embeddings=20, **LONG)),
    "gpt2": Family("GPT2LMHeadModel", weight=2.0),
    "gptj": Family("GPTJForCausalLM", {"rotary_dim": 4}),
    "codegen": Family("CodeGenForCausalLM", {"rotary_dim": 4}),
    "gpt-neo": Family(
        "GPTNeoForCausalLM",
        {
            "attention_types": [[["global", "local"], 1]],
            "window_size": 8,
            "num_hidden_layers": 2,
            "num_layers": 2,
        },
    ),
    "gpt-neox": Family("GPTNeoXForCausalLM"),
    "opt": Family("OPTForCausalLM"),
    "bloom": Family("BloomForCausalLM", {"slow_but_exact": True}),
    "falcon": Family("FalconForCausalLM", {"new_decoder_architecture": True}),
    "falcon alibi": Family("FalconForCausalLM", {"alibi": True}),
    "mpt": Family("MptForCausalLM"),
    "mixtral": Family("MixtralForCausalLM", {**EXPERTS, "sliding_window": None}),
    "gpt-oss": Family("GptOssForCausalLM", {**MIXED, **EXPERTS, **rope("default")}),
    "llama4": Family("Llama4ForCausalLM", {**EXPERTS, "attention_chunk_size": 8}),
    "deepseek": Family("DeepseekV3ForCausalLM"),
    "cohere2": Family("Cohere2ForCausalLM", {**MIXED, "logit_scale": 1.0}),
    "stablelm": Family("StableLmForCausalLM"),
    "xglm": Family("XGLMForCausalLM"),
    "mvp decoder": Family("MvpForCausalLM"),
    "trocr decoder": Family("TrOCRForCausalLM"),
    "bart decoder": Family("BartForCausalLM"),
    "mamba": Family("MambaForCausalLM", weight=0.2),
    "t5": Family("T5ForConditionalGeneration", weight=2.0),
    "mt5": Family("MT5ForConditionalGeneration"),
    "bart": Family("BartForConditionalGeneration", weight=2.0),
    "mbart": Family("MBartForConditionalGeneration"),
    "marian": Family("MarianMTModel"),
    "pegasus": Family("PegasusForConditionalGeneration"),
    "m2m100": Family("M2M100ForConditionalGeneration"),
    "longt5": Family("LongT5ForConditionalGeneration"),
    "pegasus-x": Family("PegasusXForConditionalGeneration"),
    "led": Family("LEDForConditionalGeneration", {"attention_window": 4}),
    "gemma3 image": Family(
        "Gemma3ForConditionalGeneration",
        {"mm_tokens_per_image": 4, "image_token_index": IMAGE},
        images="slots",
    ),
    "gemma3 image, its id beyond": Family(
        "Gemma3ForConditionalGeneration",
        {"mm_tokens_per_image": 4, "image_token_index": VOCAB + 3},
        images="slots",
    ),
    "llava image": Family(
        "LlavaForConditionalGeneration",
        {"image_token_index": IMAGE, "image_seq_length": 4},
        images="slots",
    ),
    "git image": Family("GitForCausalLM", images="ahead"),
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
