"""A text that a tiny model is made to say, in tests of measurements."""

from __future__ import annotations

import random

from conftest import tiny_llama

from ngramspec.measure.models import LoadedModel
from ngramspec.measure.tasks import Prompt

VOCAB = 97
rng = random.Random(5)
IDS = tuple(rng.randrange(1, VOCAB) for _ in range(40))  # 0 would be padding
TEXT = (*IDS[3:30], 7, 8, *IDS[10:25])


def prompt(task="copy", id="0", ids=IDS, text=TEXT, length=None):
    return Prompt(task, id, ids, text, length)


class Characters:
    chat_template = None
    eos_token_id = None

    def __call__(self, text):
        return {"input_ids": [ord(each) % VOCAB for each in text]}

    def decode(self, tokens):
        return " ".join(map(str, tokens))


def tiny_loaded():
    return LoadedModel(tiny_llama(vocab=VOCAB, positions=2048), Characters(), "tiny")
