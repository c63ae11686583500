"""A tiny GGUF file: a Qwen2 with random weights, whose tokens are bytes and Qwen's special ones."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGUFWriter, TokenType
from tokenizers.pre_tokenizers import ByteLevel

SIZE, HEADS, WIDE = 32, 4, 64  # of the hidden states, attention and the MLP
SPECIAL = (
    *("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|fim_prefix|>", "<|fim_middle|>"),
    *("<|fim_suffix|>", "<|fim_pad|>", "<|repo_name|>", "<|file_sep|>"),
)
LAYER = {
    **dict.fromkeys(("attn_norm", "ffn_norm"), (SIZE,)),
    **dict.fromkeys(("attn_q", "attn_k", "attn_v", "attn_output"), (SIZE, SIZE)),
    **dict.fromkeys(("ffn_gate", "ffn_up"), (WIDE, SIZE)),
    "ffn_down": (SIZE, WIDE),
}
TEMPLATE = "{% for message in messages %}{{ message.content }}{% endfor %}"


def write(
    path: Path, change: Callable[[Any], object] = lambda writer: None, kind: str = "qwen2"
) -> dict[str, np.ndarray]:
    """Write the file, after a change to its writer: its tensors in float32, by GGUF's names."""
    writer = GGUFWriter(path, kind)
    writer.add_block_count(1)
    writer.add_context_length(4096)
    writer.add_embedding_length(SIZE)
    writer.add_feed_forward_length(WIDE)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(HEADS)
    writer.add_layer_norm_rms_eps(1e-6)
    tokens = [*sorted(ByteLevel.alphabet()), "ab", "abc", *SPECIAL]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("qwen2")
    writer.add_token_list(tokens)
    special = [TokenType.CONTROL] * len(SPECIAL)
    writer.add_token_types([TokenType.NORMAL] * (len(tokens) - len(SPECIAL)) + special)
    writer.add_token_merges(["a b", "ab c"])
    writer.add_eos_token_id(tokens.index("<|im_end|>"))
    writer.add_chat_template(TEMPLATE)
    make = np.random.default_rng(0)
    shapes = {"token_embd.weight": (len(tokens), SIZE), "output_norm.weight": (SIZE,)}
    shapes |= {f"blk.0.{name}.weight": shape for name, shape in LAYER.items()}
    shapes |= {f"blk.0.attn_{name}.bias": (SIZE,) for name in "qkv"}
    tensors = {name: make.normal(size=shape).astype("f4") for name, shape in shapes.items()}
    for name, tensor in tensors.items():
        writer.add_tensor(name, tensor)
    change(writer)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return tensors
