"""How many Python functions a step calls outside the model's forward: a bound on its host time."""

from __future__ import annotations

import sys
from statistics import median

import torch
from conftest import tiny_llama

from benchmarks.host_time import ForcedProcessor
from ngramspec import Speculator, generate

PROMPT = [*range(5, 55)]


def calls_between_forwards(model, rows=1, text=None, **settings):
    """The median number of Python calls between two forwards, and the calls' statistics."""
    ids = torch.tensor([PROMPT] * rows)
    counts, running = [], [True]
    inner = model.forward

    def forward(*args, **kwargs):
        running[0] = True
        outputs = inner(*args, **kwargs)
        counts.append(0)
        running[0] = False
        return outputs

    def count(frame, event, argument):
        if event == "call" and not running[0]:
            counts[-1] += 1

    processors = [] if text is None else [ForcedProcessor(len(PROMPT), text)]
    speculator = Speculator(**settings)
    model.forward = forward
    sys.setprofile(count)
    try:
        generate(
            model,
            ids,
            attention_mask=torch.ones_like(ids),
            speculator=speculator,
            max_new_tokens=60,
            do_sample=False,
            eos_token_id=None,
            pad_token_id=0,
            logits_processor=processors,
        )
    finally:
        sys.setprofile(None)
        del model.forward
    return median(counts[2:-1]), speculator.stats


def test_a_step_of_eight_rows_without_a_draft():
    """It made 1470 calls."""
    found, stats = calls_between_forwards(tiny_llama(vocab=128), rows=8, drafter="none")
    assert stats.plain_steps == stats.target_calls
    assert found <= 650


def test_a_chain_of_10_under_a_processor():
    """It made 1270 calls."""
    found, stats = calls_between_forwards(
        tiny_llama(vocab=128), text=PROMPT + PROMPT, drafter="copy", gamma=10, tree=None
    )
    assert stats.tokens_per_call > 6
    assert found <= 600
