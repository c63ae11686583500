"""Tiny random models of every class of transformers, from the names that configurations use."""

from __future__ import annotations

import inspect
from typing import Any

import torch

VOCAB = 61
MOST_PARAMETERS = 8_000_000
LAYERS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers")
# Sizes of a tiny model, by the names that configurations have for them.
SMALL: dict[str, Any] = {
    **dict.fromkeys(("vocab_size", "unpadded_vocab_size"), VOCAB),
    **dict.fromkeys(("hidden_size", "n_embd", "d_model", "embed_dim", "dim", "hidden_dim"), 32),
    **dict.fromkeys(("intermediate_size", "ffn_dim", "d_ff", "encoder_ffn_dim"), 48),
    **dict.fromkeys(
        ("decoder_ffn_dim", "ffn_hidden_size", "n_inner", "shared_intermediate_size"), 48
    ),
    **dict.fromkeys(LAYERS, 2),
    **dict.fromkeys(("encoder_layers", "decoder_layers", "num_decoder_layers"), 2),
    **dict.fromkeys(("num_attention_heads", "n_head", "n_heads", "num_heads"), 4),
    **dict.fromkeys(("encoder_attention_heads", "decoder_attention_heads"), 4),
    **dict.fromkeys(("num_key_value_heads", "num_kv_heads", "n_head_kv"), 2),
    **dict.fromkeys(("head_dim", "d_kv", "v_head_dim", "attention_head_dim"), 8),
    **dict.fromkeys(("kv_lora_rank", "q_lora_rank"), 8),
    **dict.fromkeys(("qk_rope_head_dim", "qk_nope_head_dim", "qk_head_dim"), 8),
    "rotary_dim": 4,
    "index_topk": 8,
    "index_n_heads": 1,  # scores of keys at which it does not fire are equal
    **dict.fromkeys(("linear_head_dim", "linear_key_head_dim", "linear_value_head_dim"), 8),
    **dict.fromkeys(("linear_num_heads", "linear_num_value_heads"), 4),
    "linear_num_key_heads": 2,
    **dict.fromkeys(("num_experts", "num_local_experts", "n_routed_experts"), 4),
    **dict.fromkeys(("moe_num_experts", "num_routed_experts"), 4),
    **dict.fromkeys(("num_experts_per_tok", "moe_k", "moe_topk", "experts_per_token"), 2),
    **dict.fromkeys(("n_group", "topk_group", "first_k_dense_replace"), 1),
    **dict.fromkeys(("moe_intermediate_size", "expert_ffn_size"), 16),
    **dict.fromkeys(("max_position_embeddings", "n_positions", "n_ctx", "max_seq_len"), 256),
    **dict.fromkeys(("initializer_range", "init_std"), 0.5),
    "word_embed_proj_dim": 32,
    "tie_word_embeddings": False,  # a head tied to random embeddings mostly repeats
    "attention_chunk_size": 8,
    "sliding_window": 8,
    "bos_token_id": 1,
    "eos_token_id": None,
    "pad_token_id": 0,
    "decoder_start_token_id": 2,
    "forced_eos_token_id": None,
    "is_decoder": True,
    "use_cache": True,
}
MAMBA = {"mamba_n_heads": 8, "mamba_d_head": 8, "mamba_d_state": 16, "mamba_n_groups": 1}
MAMBA["mamba_chunk_size"] = 16  # wider ones are padded, which takes long
ROPE = {"rope_type": "default", "rope_theta": 10_000.0}
# What a class of configurations needs in addition or instead.
ODD: dict[str, dict[str, Any]] = {
    "BambaConfig": {**MAMBA, "attn_layer_indices": [1]},
    "BeamConfig": {"mlp_layer_types": ["dense", "sparse"]},
    "BltLocalDecoderConfig": {"hidden_size_global": 32},
    "BltLocalEncoderConfig": {"hidden_size_global": 32},
    "BltConfig": {
        "encoder_hash_byte_group_vocab": 64,
        "num_hidden_layers": 2,  # plain generate's cache asks for it
    },
    "CohereCompassTextConfig": {
        "layer_types": ["sliding_attention", "full_attention"],
        "rope_parameters": {"sliding_attention": ROPE, "full_attention": ROPE},
    },
    "DbrxConfig": {"attn_config": {"kv_n_heads": 2, "rope_theta": 10_000.0, "clip_qkv": 8.0}},
    "DogeConfig": {"is_moe": True},
    "DoryConfig": {
        "num_hidden_layers": 4,
        "n_input_layers": 1,
        "n_output_layers": 1,
        "layer_types": ["sliding_attention", "full_attention"] * 2,
    },
    "Dots3NoteTextConfig": {
        "swa_head_dim": 16,
        "swa_qk_nope_head_dim": 8,
        "swa_v_head_dim": 8,
        "swa_q_lora_rank": 8,
        "swa_kv_lora_rank": 8,
    },
    "Dots1Config": {"n_shared_experts": 1},
    "EncoderDecoderConfig": {"decoder": {"add_cross_attention": True}},
    "FalconH1Config": {**MAMBA, "mamba_d_ssm": 64},
    "FlintConfig": {"mlp_only_layers": [0], "shared_expert_intermediate_size": 16},
    "FSMTConfig": {"src_vocab_size": VOCAB, "tgt_vocab_size": VOCAB},
    "GPTNeoConfig": {"attention_types": [[["global", "local"], 1]], "window_size": 8},
    "Gemma3nTextConfig": {
        "vocab_size_per_layer_input": VOCAB,
        "hidden_size_per_layer_input": 8,
        "laurel_rank": 8,
    },
    "Gemma4TextConfig": {
        "vocab_size_per_layer_input": VOCAB,
        "hidden_size_per_layer_input": 8,
        "enable_moe_block": True,
        "top_k_experts": 2,
    },
    "GraniteMoeHybridConfig": {**MAMBA, "layer_types": ["linear_attention", "full_attention"]},
    "JambaConfig": {
        "attn_layer_period": 2,
        "attn_layer_offset": 1,
        "mamba_d_state": 8,
        "use_mamba_kernels": False,
    },
    "Lfm2Config": {"layer_types": ["conv", "full_attention"]},
    "Lfm2MoeConfig": {"layer_types": ["conv", "full_attention"], "num_dense_layers": 1},
    "LongcatFlashConfig": {"expert_ffn_hidden_size": 16, "zero_expert_num": 2, "qk_head_dim": 16},
    "Mamba2Config": {
        "num_heads": 8,
        "head_dim": 8,
        "state_size": 16,
        "n_groups": 1,
        "chunk_size": 16,
    },
    "MiniMaxM3VLTextConfig": {"layer_types": ["full_attention", "minimax_m3_sparse"]},
    "NllbMoeConfig": {"encoder_sparse_step": 2, "decoder_sparse_step": 2},
    "Qwen3ASRConfig": {"eos_token_id": VOCAB - 1},
    "Qwen4ExpTextConfig": {
        "indexer_n_heads": 2,
        "indexer_kv_heads": 1,
        "indexer_head_dim": 8,
        "indexer_budget": 8,
        "indexer_compress_ratio": 2,
    },
    "RecurrentGemmaConfig": {
        "block_types": ["recurrent", "attention"],
        "attention_window_size": 8,
        "lru_width": 32,
    },
    "ReformerConfig": {"axial_pos_embds": False},
    "RoCBertConfig": {"pronunciation_vocab_size": 8, "shape_vocab_size": 8},
    "SwitchTransformersConfig": {"num_sparse_encoder_layers": 1, "num_sparse_decoder_layers": 1},
    "VibeVoiceAcousticTokenizerEncoderConfig": {"depths": [1] * 7, "num_filters": 2},
    "XLMConfig": {"emb_dim": 32},
    "XmodConfig": {"default_language": "en_XX"},
    "Zamba2Config": {"layers_block_type": ["linear_attention", "hybrid"], "mamba_d_state": 16},
    "ZambaConfig": {
        "layers_block_type": ["linear_attention", "hybrid", "hybrid"],
        "num_hidden_layers": 3,
    },
    "ZayaConfig": {"num_experts_per_tok": 1, "layer_types": ["hybrid", "hybrid_sliding"]},
    "xLSTMConfig": {"hidden_size": 128},
}


def build(kind: Any, seed: int = 3, spread: float = 1.0) -> Any:
    """A tiny model of a class, in eval mode, its random matrices multiplied by ``spread``."""
    config = small(kind.config_class)
    with torch.device("meta"):
        size = sum(each.numel() for each in kind(config).parameters())
    if size > MOST_PARAMETERS:
        raise ValueError(f"{size / 1e6:.0f} million parameters are too many to try")
    torch.manual_seed(seed)
    model = kind(small(kind.config_class)).eval().float()
    untie(model)
    with torch.no_grad():
        for weight in model.parameters():
            weight.mul_(spread if weight.ndim > 1 else 1.0)
    model.generation_config.eos_token_id = None
    model.generation_config.forced_eos_token_id = None
    model.generation_config.pad_token_id = 0
    if model.config.is_encoder_decoder:
        model.generation_config.decoder_start_token_id = 2
    return model


def untie(model: Any) -> None:
    """Untie a head that is tied to the embeddings in spite of the configuration."""
    head, embeddings = model.get_output_embeddings(), model.get_input_embeddings()
    if head is not None and getattr(head, "weight", None) is getattr(embeddings, "weight", head):
        head.weight = torch.nn.Parameter(torch.randn_like(head.weight))


def small(config: Any, **changes: Any) -> Any:
    """A configuration of a tiny model, and of tiny parts where it has some."""
    changes = ODD.get(config.__name__, {}) | changes
    default = config()
    known = set(inspect.signature(config.__init__).parameters) | set(default.to_dict())
    settings = {name: value for name, value in SMALL.items() if name in known}
    if "kv_lora_rank" in known and "num_key_value_heads" in known:
        settings["num_key_value_heads"] = 4  # latent attention has one for each query head
    kinds = getattr(default, "layer_types", None)
    if isinstance(kinds, list) and "layer_types" in known:
        each = [*dict.fromkeys(kinds)]  # one of each
        layers = max(len(each), SMALL["num_hidden_layers"])
        if getattr(default, "num_kv_shared_layers", 0):  # and one of each that shares its keys
            settings["num_kv_shared_layers"] = len(each)
            each, layers = each * 2, layers + len(each)
        settings["layer_types"] = [*each, *kinds][:layers]
        settings |= {name: layers for name in LAYERS if name in settings}
    for name in config.sub_configs:
        part = getattr(default, name, None)
        if part is not None:
            settings[name] = small(type(part), **changes.pop(name, {}))
    return config(**(settings | changes))
