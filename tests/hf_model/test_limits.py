"""How long a prompt is, and how long a draft may be, at each point of a generation."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from conftest import tiny_llama

from ngramspec.hf_model.inputs import next_position
from ngramspec.hf_model.target import MAX_PREFILL_DRAFT_TOKENS, DraftLimits
from ngramspec.hf_model.traits import prompt_end, traits_of

IDS = torch.tensor([[5, 6, 7, 8]])
ONES = torch.ones((1, 9), dtype=torch.int64)


@pytest.mark.parametrize(
    ("kwargs", "more", "end"),
    [
        ({}, {}, 4),
        ({}, {"cached": 5}, 9),  # only new tokens
        ({"attention_mask": ONES}, {"cached": 5}, 9),
        ({}, {"cached": 2, "mask_length": 4}, 4),  # all tokens, of which the cache holds two
        ({"inputs_embeds": torch.zeros((1, 6, 8))}, {}, 6),
        ({"attention_mask": ONES}, {"prefix": "decoder_"}, 4),  # the encoder's
        ({"decoder_attention_mask": ONES}, {"prefix": "decoder_"}, 9),
    ],
)
def test_where_a_prompt_ends(kwargs, more, end):
    assert prompt_end(IDS, kwargs, **more) == end


def test_the_next_position():
    assert next_position(None) == 0
    assert next_position(torch.tensor([[0, 1, 2], [0, 0, 1]])) == 3
    assert next_position(torch.zeros((2, 0), dtype=torch.int64)) == 0


def limits(reason=None, next_position=10, **traits):
    """Limits of a model with some traits, behind a prefill of 10 positions."""
    known = traits_of(tiny_llama(), IDS, {})
    known = replace(known, **({"position_limit": None} | traits))
    of_model = known.position_limit, known.thresholds
    return DraftLimits(*of_model, 10, next_position, reason, prefilled=10)


def test_nothing_limits_a_draft():
    assert limits().longest(50, None) is None
    assert limits().longest(50, 8) == 7  # the last committed token takes a position
    assert limits().prefill() == MAX_PREFILL_DRAFT_TOKENS


def test_the_position_limit():
    some = limits(position_limit=64)
    assert [some.longest(new, None) for new in (0, 50, 54, 60)] == [54, 4, 0, 0]
    assert some.longest(0, 8) == 7
    assert some.prefill() == 54
    farther = limits(position_limit=64, next_position=20)  # such as an image's positions
    assert (farther.longest(0, None), farther.prefill()) == (44, 44)


def test_the_capacity_of_experts():
    some = replace(limits(), widest=4)
    assert (some.longest(0, None), some.longest(0, 3), some.longest(0, 8)) == (3, 2, 3)
    assert replace(some, widest=1).longest(0, None) == 0


def test_no_draft_reaches_over_a_threshold():
    some = limits(rope_changes_at=32)
    assert [some.longest(new, None) for new in (0, 20, 22, 23)] == [22, 2, 0, 0]
    assert some.longest(24, None) is None


def test_without_aligned_positions_nothing_is_drafted():
    assert limits("a reason").longest(0, 8) == 0
    some = limits()
    assert not some.no_drafts
    some.no_drafts = "a reason"
    assert (some.longest(0, 8), some.no_drafts) == (0, "a reason")
