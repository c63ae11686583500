"""A tiny model that is served: a plugin of the test modules that name it in ``pytest_plugins``."""

from __future__ import annotations

import pytest
from conftest import tiny_llama
from serving import VOCAB, letters, served


@pytest.fixture(scope="module")
def model():
    return tiny_llama(vocab=VOCAB)


@pytest.fixture(scope="module")
def tokenizer():
    return letters()


@pytest.fixture(scope="module")
def client(model, tokenizer):
    with served(model, tokenizer) as client:
        yield client
