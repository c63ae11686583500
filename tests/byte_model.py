"""A tiny random model over bytes, with its tokenizer."""

from __future__ import annotations

import torch
from transformers import LlamaConfig, LlamaForCausalLM


class ByteTokenizer:
    """Token n is the byte n; 0 is a special token."""

    chat_template = None

    def __call__(self, text):
        return {"input_ids": list(text.encode())}

    def decode(self, tokens, skip_special_tokens=False):
        return bytes(token for token in tokens if token).decode(errors="replace")


def tiny_model():
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=256,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        max_position_embeddings=512,
        eos_token_id=0,
        pad_token_id=0,
    )
    return LlamaForCausalLM(config).eval()
