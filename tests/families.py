"""Tiny random models of real classes, one for each kind of attention, position and cache."""

from __future__ import annotations

import torch
import transformers
from conftest import LLAMA

VOCAB = 61
SPECIAL = {"bos_token_id": 1, "eos_token_id": None, "pad_token_id": 0}
SIZES = LLAMA | {"vocab_size": VOCAB, "intermediate_size": 48, "head_dim": 8}
SIZES |= {"max_position_embeddings": 256, "initializer_range": 0.6}
THREE = SIZES | {"num_hidden_layers": 3}  # with two, Gemma 2 and 3 would only repeat
WINDOW = {"sliding_window": 12}
GPT2 = SPECIAL | {"vocab_size": VOCAB, "n_embd": 32, "n_layer": 2, "n_head": 4}
GPT2 |= {"n_positions": 256, "initializer_range": 0.5}
SEQ2SEQ = SPECIAL | {
    **{"vocab_size": VOCAB, "d_model": 32, "max_position_embeddings": 256, "init_std": 0.1},
    **dict.fromkeys(("encoder_layers", "decoder_layers"), 2),
    **dict.fromkeys(("encoder_attention_heads", "decoder_attention_heads"), 4),
    **dict.fromkeys(("encoder_ffn_dim", "decoder_ffn_dim"), 48),
    **{"tie_word_embeddings": False, "forced_eos_token_id": None, "decoder_start_token_id": 2},
}
T5 = {"vocab_size": VOCAB, "d_model": 32, "d_kv": 8, "d_ff": 48, "num_layers": 2, "num_heads": 4}
T5 |= {"initializer_factor": 3.0, "pad_token_id": 0, "eos_token_id": None}
T5 |= {"decoder_start_token_id": 0}
T5GEMMA = SIZES | {"layer_types": ["full_attention"] * 2, "attn_logit_softcapping": None}
T5GEMMA |= {"initializer_range": 0.3}
EXPERTS = {"num_local_experts": 4, "num_experts_per_tok": 2}
HYBRID = ["sliding_attention", "full_attention"]
ROPE = {"rope_parameters": {"rope_type": "default", "rope_theta": 10_000.0}}
# The last layers attend to the keys of earlier ones of their kind.
SHARED = SIZES | WINDOW | {"num_hidden_layers": 4, "num_kv_shared_layers": 2}
SHARED |= {"layer_types": HYBRID * 2, "vocab_size_per_layer_input": VOCAB}
SHARED |= {"hidden_size_per_layer_input": 8, "tie_word_embeddings": False}
GEMMA3N = SHARED | {"laurel_rank": 4, "activation_sparsity_pattern": [0.0] * 4}
GEMMA3 = THREE | WINDOW | {"layer_types": [HYBRID[0], *HYBRID]}
CHUNKS = {"attention_chunk_size": 12, "layer_types": ["chunked_attention", "full_attention"]}
LOCAL = {"attention_types": [[["global", "local"], 1]], "window_size": 8}
OPT = SIZES | {"ffn_dim": 48, "word_embed_proj_dim": 32, "init_std": 0.5}
# name -> (class, settings)
CAUSAL = {
    "llama": ("LlamaForCausalLM", SIZES),
    "mistral sliding": ("MistralForCausalLM", SIZES | WINDOW),
    "gemma": ("GemmaForCausalLM", SIZES),
    "gemma2 hybrid": ("Gemma2ForCausalLM", THREE | WINDOW),
    "gemma3 hybrid": ("Gemma3ForCausalLM", GEMMA3),
    "starcoder2 sliding": ("Starcoder2ForCausalLM", SIZES | WINDOW),
    "gpt-oss hybrid": (
        "GptOssForCausalLM",
        SIZES | WINDOW | EXPERTS | ROPE | {"layer_types": HYBRID},
    ),
    "llama4 (chunks)": ("Llama4ForCausalLM", SIZES | EXPERTS | CHUNKS),
    "qwen2": ("Qwen2ForCausalLM", SIZES),
    "qwen3": ("Qwen3ForCausalLM", SIZES),
    "phi3": ("Phi3ForCausalLM", SIZES),
    "gpt2": ("GPT2LMHeadModel", GPT2),
    "gpt-neo (windows)": ("GPTNeoForCausalLM", SIZES | LOCAL),
    "gpt-neox": ("GPTNeoXForCausalLM", SIZES),
    "opt": ("OPTForCausalLM", OPT),
    "bloom (alibi)": (
        "BloomForCausalLM",
        SIZES | {"n_head": 4, "n_layer": 2, "slow_but_exact": True},
    ),
    "bart decoder": ("BartForCausalLM", SEQ2SEQ | {"is_decoder": True}),
    "gemma3n (shared keys)": ("Gemma3nForCausalLM", GEMMA3N),
    "gemma4 (shared keys)": ("Gemma4ForCausalLM", SHARED | {"global_head_dim": 8}),
    "mixtral (experts)": ("MixtralForCausalLM", SIZES | EXPERTS),
}
ENCODER_DECODER = {
    "t5": ("T5ForConditionalGeneration", T5),
    "bart": ("BartForConditionalGeneration", SEQ2SEQ),
    "marian": ("MarianMTModel", SEQ2SEQ),
    "pegasus": ("PegasusForConditionalGeneration", SEQ2SEQ),
    "m2m100 (no positions of padding)": ("M2M100ForConditionalGeneration", SEQ2SEQ),
    "t5gemma": ("T5GemmaForConditionalGeneration", T5GEMMA),
}
FAMILIES = CAUSAL | ENCODER_DECODER
# Those whose drafts may branch, in rows that diverge, too.
TREES = ("llama", "gemma", "qwen2", "qwen3", "phi3", "gpt2", "mixtral (experts)", "bart decoder")
TREES += tuple(ENCODER_DECODER)
# Arguments of generate with which the text of an encoder-decoder model varies.
VARIED = {"no_repeat_ngram_size": 2}


def build(name: str, **changes: object):
    """A family's model in float32 and eval mode, the same at every call."""
    name, settings = FAMILIES[name]
    kind = getattr(transformers, name)
    torch.manual_seed(7)
    if settings is T5GEMMA:
        part = transformers.T5GemmaModuleConfig(**settings)
        settings = SPECIAL | {"encoder": part, "decoder": part, "vocab_size": VOCAB}
        settings |= {"decoder_start_token_id": 2, "tie_word_embeddings": False}
    model = kind(kind.config_class(**(settings | changes)))
    if "encoder_ffn_dim" in settings:  # a head tied to the embeddings would only repeat
        model.lm_head = torch.nn.Linear(SEQ2SEQ["d_model"], VOCAB, bias=False)
    if settings is T5:  # attention depends on positions
        bias = model.decoder.block[0].layer[0].SelfAttention.relative_attention_bias
        bias.weight.data.mul_(10.0)
    model.generation_config.eos_token_id = changes.get("eos_token_id")
    model.generation_config.forced_eos_token_id = None
    return model.eval()
