"""A tiny random model over bytes, with its tokenizer."""

from __future__ import annotations

from conftest import tiny_llama


class ByteTokenizer:
    """Token n is the byte n; 0 is a special token."""

    chat_template = None

    def __call__(self, text):
        return {"input_ids": list(text.encode())}

    def decode(self, tokens, skip_special_tokens=False):
        return bytes(token for token in tokens if token).decode(errors="replace")


def tiny_model():
    return tiny_llama(vocab=256, bos_token_id=None, eos_token_id=0)
