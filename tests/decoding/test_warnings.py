"""The warnings and log lines of a call are those of plain ``generate``."""

from __future__ import annotations

import logging
import warnings
from collections import Counter
from contextlib import contextmanager

import pytest
import torch
import transformers
from conftest import tiny_llama
from doubles import half_right
from families import build
from transformers.utils.logging import warning_once

from benchmarks import tiny
from ngramspec import Speculator
from ngramspec.hf_model.compat.caches import cache_argument

ROWS = [[5, 6, 7, 8, 5, 6, 7, 9, 5, 6], [2, 3, 9, 8, 7, 6, 5, 9, 8, 7]]
GREEDY = {"do_sample": False, "max_new_tokens": 24}


class Records(logging.Handler):
    def __init__(self):
        super().__init__(logging.WARNING)
        self.found = Counter()

    def emit(self, record):
        self.found[record.getMessage()] += 1


@contextmanager
def messages():
    """Count what is warned and logged inside, as in a new process."""
    warning_once.cache_clear()
    records, logger = Records(), logging.getLogger("transformers")
    level = logger.level  # another test may have silenced it
    logger.addHandler(records)
    logger.setLevel(logging.WARNING)
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("default")
            yield records.found
    finally:
        logger.removeHandler(records)
        logger.setLevel(level)
    records.found.update(str(each.message) for each in caught)


def both(model, ids, kept=0, **asked):
    """The messages of plain ``generate``, and of speculation with drafts that are half right."""
    found, drafter = [], None
    for _ in range(2):
        cache = transformers.DynamicCache(config=model.config)
        if kept:
            with torch.no_grad():
                model(ids[:, :kept], **cache_argument(cache))
            asked |= cache_argument(cache)
        speculator = drafter and Speculator(drafter, 6, unsupported="plain")
        with messages() as counted:
            text = model.generate(ids, custom_generate=speculator, **GREEDY | asked)
        drafter = half_right(text[0].tolist(), 61)
        found.append(counted)
    return found


@pytest.mark.parametrize("new", [5, 24])
@pytest.mark.parametrize("asked", [{}, {"num_beams": 2}, {"max_length": 18}])
def test_a_text_beyond_the_model_s_positions_is_warned_of(asked, new):
    model = tiny_llama(max_position_embeddings=16)
    plain, ours = both(model, torch.tensor(ROWS), **{"max_new_tokens": new} | asked)
    assert ours == plain
    assert any("exceeded the model's predefined" in each for each in plain) == (new == 24)


@pytest.mark.every(3)
@pytest.mark.parametrize("pad", [5, 30, 54])
@pytest.mark.parametrize(
    ("rows", "kept", "asked"),
    [
        (1, 0, {}),
        (1, 4, {}),
        (2, 0, {}),
        (2, 4, {"eos_token_id": 33}),
        (2, 0, {"num_beams": 2}),
        (1, 0, {"cache_implementation": "static"}),
    ],
)
def test_padding_tokens_without_a_mask_are_warned_of(pad, rows, kept, asked):
    """GPT-2 looks at the first and last token of each forward, so a draft could hide some."""
    model = build("gpt2", pad_token_id=pad)
    plain, ours = both(model, torch.tensor(ROWS[:rows]), kept, **asked)
    assert ours == plain


@pytest.mark.every(3)
@pytest.mark.parametrize(
    "name", ["Lfm2", "Lfm3", "Inkling", "Mamba2", "Bamba", "Qwen3Next", "Zaya"]
)
@pytest.mark.parametrize("length", [1, 10])
def test_slow_kernels_for_single_tokens_are_warned_of(name, length):
    kind = getattr(transformers, f"{name}ForCausalLM", None)
    if kind is None:
        pytest.skip(f"transformers {transformers.__version__} has no {name}")
    model = tiny.build(kind)
    for _ in range(2):  # in its first call, the model may be tested
        plain, ours = both(model, torch.tensor(ROWS)[:1, :length])
        assert ours == plain
