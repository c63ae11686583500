"""Generations that run step by step, and beams, with shared stores."""

from __future__ import annotations

import pytest
import torch

import ngramspec
from ngramspec import SharedStore, Speculator
from ngramspec.stepwise import open_generation

PROMPT = torch.tensor([[5, 6, 7, 8, 15, 16, 17, 9, 25, 26]])


@pytest.mark.parametrize("ended", ["by a rule", "well", "early"])
def test_a_generation_that_its_caller_advances(tiny, ended):
    store = SharedStore(1 << 20, live=False)
    speculator = Speculator(stores=[store["a"]])
    with open_generation(
        tiny, PROMPT, speculator=speculator, max_new_tokens=30, do_sample=False
    ) as running:
        while not running.finished and (ended == "by a rule" or len(running.tokens) < 10):
            running.step()
        said = running.tokens
        if ended == "well":
            running.finish()
    _, codes = store.ring("a").codes(0)
    assert codes[1:].tolist() == ([] if ended == "early" else said)


def test_beams_read_and_add_nothing(tiny):
    store = SharedStore(1 << 20)
    options = {"num_beams": 3, "max_new_tokens": 20, "do_sample": False}
    plain = tiny.generate(PROMPT, **options)
    store["a"].add(plain[0].to(torch.int32).numpy())
    before = store["a"].statistics()
    always = Speculator(gamma=4)  # else drafts may not pay, and no session looks anything up
    out = ngramspec.generate(tiny, PROMPT, speculator=always, stores=[store["a"]], **options)
    assert out.tolist() == plain.tolist()
    assert store["a"].statistics().added == before.added
    assert store["a"].statistics().look_ups > 0
