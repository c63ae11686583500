"""A trained encoder-decoder: plain ``generate``'s text, in far fewer calls, by copies."""

from __future__ import annotations

import pytest
import speller
import torch

import ngramspec
from ngramspec import Speculator

HELD_OUT = speller.sentences(seed=2_000_000, count=50)
FLOORS = {"auto": 3.3, "copy": 2.6, "none": 1.0}  # tokens per forward that a drafter must reach
GREEDY = {"do_sample": False, "max_new_tokens": 40}


@pytest.fixture(scope="module")
def model():
    return speller.load()


@pytest.fixture(scope="module")
def plain(model):
    """The model's own greedy answer to each held-out sentence."""
    return [model.generate(**inputs([given]), **GREEDY) for given, _ in HELD_OUT]


def inputs(rows):
    """Sentences with padding on the right, as encoders read them."""
    ids = speller.padded(rows)
    return {"input_ids": ids, "attention_mask": (ids != speller.PAD).long()}


def test_the_model_corrects_spelling(plain):
    words = []  # of all sentences, as (read, wanted, said)
    for (given, wanted), out in zip(HELD_OUT, plain, strict=True):
        said = out[0, 1:].tolist() + [speller.PAD] * len(wanted)
        words += zip(given, wanted, said, strict=False)
    misspelt = [wanted == said for read, wanted, said in words if read != wanted]
    assert sum(wanted == said for _, wanted, said in words) > 0.9 * len(words)
    assert sum(misspelt) > 0.9 * len(misspelt) > 45


@pytest.mark.parametrize(
    "drafter", ["auto", *(pytest.param(each, marks=pytest.mark.slow) for each in ("copy", "none"))]
)
def test_greedy_text_is_plain_generate_s_in_few_calls(model, plain, drafter):
    speculator, encoded = Speculator(drafter), []
    hook = model.get_encoder().register_forward_hook(lambda *_: encoded.append(1))
    for (given, _), out in zip(HELD_OUT, plain, strict=True):
        ours = ngramspec.generate(model, **inputs([given]), speculator=speculator, **GREEDY)
        assert torch.equal(out, ours)
    hook.remove()
    assert speculator.stats.tokens_per_call >= FLOORS[drafter]
    assert len(encoded) == len(HELD_OUT)  # once for each sentence
