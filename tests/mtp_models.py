"""Tiny models with layers for multi-token prediction, saved with their keys in the checkpoint."""

from __future__ import annotations

from typing import Any

import torch
from conftest import LLAMA
from safetensors.torch import load_file, save_file

COMMON = LLAMA | {"initializer_range": 0.3, "first_k_dense_replace": 8, "num_mtp_layers": 2}
MLA = {"num_key_value_heads": 4, "kv_lora_rank": 8, "q_lora_rank": 8}
MLA |= dict.fromkeys(("qk_rope_head_dim", "qk_nope_head_dim", "v_head_dim"), 8)
FAMILIES: dict[str, dict[str, Any]] = {"Glm4Moe": {"head_dim": 8}, "DeepseekV3": MLA}


def mtp_model(family: str, folder: Any) -> Any:
    """A random model of a family with two MTP layers, read from a checkpoint that it wrote."""
    import transformers
    from transformers.modeling_layers import MtpModel

    torch.manual_seed(0)
    config = getattr(transformers, f"{family}Config")(**COMMON | FAMILIES[family])
    kind = getattr(transformers, f"{family}ForCausalLM")
    model = kind(config).eval()
    layers = MtpModel(model, config.num_mtp_layers)
    with torch.no_grad():  # some of its modules begin with memory that is not initialized
        for name, weight in layers.layers.state_dict().items():
            if weight.dim() > 1:
                weight.normal_(std=config.initializer_range)
            elif "norm" not in name:
                weight.zero_()
    model.save_pretrained(folder)
    path = f"{folder}/model.safetensors"
    weights = load_file(path)
    for name, weight in layers.layers.state_dict().items():
        which, _, rest = name.partition(".")
        key = f"model.layers.{config.num_hidden_layers + int(which)}.{rest}"
        key = key.replace("mtp_block.", "")
        if "layernorm" not in name:
            key = key.replace("post_norm", "shared_head.norm", 1)
        weights[key] = weight.clone().contiguous()
    save_file(weights, path, metadata={"format": "pt"})
    loaded = kind.from_pretrained(folder, dtype=torch.float32).eval()
    loaded._keys_to_ignore_on_load_unexpected = [r"model\.layers\.[23]\..*"]
    return loaded
