"""Tiny random models of real classes, one for each kind of attention, position and cache."""

from __future__ import annotations

import torch
import transformers

VOCAB = 61
SIZES = {
    "vocab_size": VOCAB,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 256,
    "initializer_range": 0.6,
    "bos_token_id": 1,
    "eos_token_id": None,
    "pad_token_id": 0,
}
THREE = SIZES | {"num_hidden_layers": 3}  # with two, Gemma 2 and 3 would only repeat
WINDOW = {"sliding_window": 12}
GPT2 = {
    "vocab_size": VOCAB,
    "n_embd": 32,
    "n_layer": 2,
    "n_head": 4,
    "n_positions": 256,
    "initializer_range": 0.5,
    "bos_token_id": 1,
    "eos_token_id": None,
    "pad_token_id": 0,
}
SEQ2SEQ = {
    "vocab_size": VOCAB,
    "d_model": 32,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 48,
    "decoder_ffn_dim": 48,
    "max_position_embeddings": 256,
    "init_std": 0.1,
    "tie_word_embeddings": False,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": None,
    "forced_eos_token_id": None,
    "decoder_start_token_id": 2,
}
T5 = {
    "vocab_size": VOCAB,
    "d_model": 32,
    "d_kv": 8,
    "d_ff": 48,
    "num_layers": 2,
    "num_heads": 4,
    "initializer_factor": 3.0,
    "pad_token_id": 0,
    "eos_token_id": None,
    "decoder_start_token_id": 0,
}
T5GEMMA = SIZES | {
    "num_hidden_layers": 2,
    "layer_types": ["full_attention"] * 2,
    "attn_logit_softcapping": None,
    "initializer_range": 0.3,
}
# The last layers attend to the keys of earlier ones of their kind.
SHARED = (
    SIZES
    | WINDOW
    | {
        "num_hidden_layers": 4,
        "num_kv_shared_layers": 2,
        "layer_types": ["sliding_attention", "full_attention"] * 2,
        "vocab_size_per_layer_input": VOCAB,
        "hidden_size_per_layer_input": 8,
        "tie_word_embeddings": False,
    }
)
GEMMA3N = SHARED | {"laurel_rank": 4, "activation_sparsity_pattern": [0.0] * 4}
GEMMA4 = SHARED | {"global_head_dim": 8}
# name -> (class, configuration class, settings)
CAUSAL = {
    "llama": ("LlamaForCausalLM", "LlamaConfig", SIZES),
    "mistral sliding": ("MistralForCausalLM", "MistralConfig", SIZES | WINDOW),
    "gemma": ("GemmaForCausalLM", "GemmaConfig", SIZES),
    "gemma2 hybrid": ("Gemma2ForCausalLM", "Gemma2Config", THREE | WINDOW),
    "gemma3 hybrid": (
        "Gemma3ForCausalLM",
        "Gemma3TextConfig",
        THREE | WINDOW | {"layer_types": ["sliding_attention"] * 2 + ["full_attention"]},
    ),
    "starcoder2 sliding": ("Starcoder2ForCausalLM", "Starcoder2Config", SIZES | WINDOW),
    "gpt-oss hybrid": (
        "GptOssForCausalLM",
        "GptOssConfig",
        SIZES
        | WINDOW
        | {
            "layer_types": ["sliding_attention", "full_attention"],
            "num_local_experts": 4,
            "num_experts_per_tok": 2,
            "rope_parameters": {"rope_type": "default", "rope_theta": 10_000.0},
        },
    ),
    "llama4 (chunks)": (
        "Llama4ForCausalLM",
        "Llama4TextConfig",
        SIZES
        | {
            "attention_chunk_size": 12,
            "num_local_experts": 4,
            "num_experts_per_tok": 2,
            "layer_types": ["chunked_attention", "full_attention"],
        },
    ),
    "qwen2": ("Qwen2ForCausalLM", "Qwen2Config", SIZES),
    "qwen3": ("Qwen3ForCausalLM", "Qwen3Config", SIZES),
    "phi3": ("Phi3ForCausalLM", "Phi3Config", SIZES),
    "gpt2": ("GPT2LMHeadModel", "GPT2Config", GPT2),
    "gpt-neo (windows)": (
        "GPTNeoForCausalLM",
        "GPTNeoConfig",
        SIZES | {"attention_types": [[["global", "local"], 1]], "window_size": 8},
    ),
    "gpt-neox": ("GPTNeoXForCausalLM", "GPTNeoXConfig", SIZES),
    "opt": (
        "OPTForCausalLM",
        "OPTConfig",
        SIZES | {"ffn_dim": 48, "word_embed_proj_dim": 32, "init_std": 0.5},
    ),
    "bloom (alibi)": (
        "BloomForCausalLM",
        "BloomConfig",
        SIZES | {"n_head": 4, "n_layer": 2, "slow_but_exact": True},
    ),
    "bart decoder": ("BartForCausalLM", "BartConfig", SEQ2SEQ | {"is_decoder": True}),
    "gemma3n (shared keys)": ("Gemma3nForCausalLM", "Gemma3nTextConfig", GEMMA3N),
    "gemma4 (shared keys)": ("Gemma4ForCausalLM", "Gemma4TextConfig", GEMMA4),
    "mixtral (experts)": (
        "MixtralForCausalLM",
        "MixtralConfig",
        SIZES | {"num_local_experts": 4, "num_experts_per_tok": 2},
    ),
}
ENCODER_DECODER = {
    "t5": ("T5ForConditionalGeneration", "T5Config", T5),
    "bart": ("BartForConditionalGeneration", "BartConfig", SEQ2SEQ),
    "marian": ("MarianMTModel", "MarianConfig", SEQ2SEQ),
    "pegasus": ("PegasusForConditionalGeneration", "PegasusConfig", SEQ2SEQ),
    "m2m100 (no positions of padding)": ("M2M100ForConditionalGeneration", "M2M100Config", SEQ2SEQ),
    "t5gemma": ("T5GemmaForConditionalGeneration", "T5GemmaConfig", T5GEMMA),
}
FAMILIES = CAUSAL | ENCODER_DECODER
# Those whose drafts may branch, in rows that diverge, too.
TREES = ("llama", "gemma", "qwen2", "qwen3", "phi3", "gpt2", "mixtral (experts)", "bart decoder")
TREES += tuple(ENCODER_DECODER)
# Arguments of generate with which the text of an encoder-decoder model varies.
VARIED = {"no_repeat_ngram_size": 2}


def build(name: str, **changes: object):
    """A family's model in float32 and eval mode, the same at every call."""
    kind, config, settings = FAMILIES[name]
    torch.manual_seed(7)
    if settings is T5GEMMA:
        part = transformers.T5GemmaModuleConfig(**settings)
        settings = {"encoder": part, "decoder": part, "vocab_size": VOCAB, "pad_token_id": 0}
        settings |= {"bos_token_id": 1, "eos_token_id": None, "decoder_start_token_id": 2}
        settings["tie_word_embeddings"] = False
    model = getattr(transformers, kind)(getattr(transformers, config)(**(settings | changes)))
    if "encoder_ffn_dim" in settings:  # a head tied to the embeddings would only repeat
        model.lm_head = torch.nn.Linear(SEQ2SEQ["d_model"], VOCAB, bias=False)
    if settings is T5:  # attention depends on positions
        bias = model.decoder.block[0].layer[0].SelfAttention.relative_attention_bias
        bias.weight.data.mul_(10.0)
    model.generation_config.eos_token_id = changes.get("eos_token_id")
    model.generation_config.forced_eos_token_id = None
    return model.eval()
