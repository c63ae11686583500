"""A tiny random model over bytes, with its tokenizer."""

from __future__ import annotations

from types import MappingProxyType

from conftest import tiny_llama


class ByteTokenizer:
    """Token n is the byte n; 0 is a special token."""

    chat_template = None
    all_special_ids = (0,)
    added_tokens_decoder = MappingProxyType({})

    def __call__(self, text):
        return {"input_ids": list(text.encode())}

    def convert_tokens_to_ids(self, names):
        return [] if isinstance(names, list) else None

    def decode(self, tokens, skip_special_tokens=False):
        return bytes(token for token in tokens if token).decode(errors="replace")


def tiny_model():
    return tiny_llama(vocab=256, bos_token_id=None, eos_token_id=0)
