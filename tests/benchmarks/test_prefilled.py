"""A prefill shared by calls: what they say, what is still computed, and what is refused."""

from __future__ import annotations

import pytest
import torch
from conftest import tiny_llama
from families import build
from forced_text import IDS, TEXT, VOCAB

from benchmarks.prefilled import prefilled_model, states_of
from ngramspec.measure.calls import Caller, usual_configurations

PROMPT = (*IDS, *TEXT[:12], *IDS)


@pytest.fixture(scope="module")
def model():
    return tiny_llama(vocab=VOCAB)


def widths_of_bodies(model, seen):
    """Note how many positions the first layer computes."""
    layer = model.model.layers[0]
    return layer.register_forward_pre_hook(lambda module, args: seen.append(args[0].shape[1]))


@pytest.mark.parametrize("way", usual_configurations(lookups=[4], trees=[8], chains=True), ids=str)
def test_every_way_says_what_it_says_alone_and_skips_the_prompt(model, way):
    alone = Caller(model).call(way, PROMPT, 24)
    seen = []
    with prefilled_model(model) as read:
        read(PROMPT)
        hook = widths_of_bodies(model, seen)
        shared = [Caller(model).call(way, PROMPT, 24) for _ in range(2)]
        hook.remove()
    for each in shared:
        assert each.tokens == alone.tokens
        assert each.emitted == alone.emitted
        assert max(each.widths) < len(PROMPT)
        if way.speculator is None:  # others depend on measured costs
            assert each.widths == alone.widths
    assert max(seen) < len(PROMPT)


def test_layers_that_forget_positions_are_refused():
    sliding = build("mistral sliding", sliding_window=8)
    with pytest.raises(ValueError, match="all layers have full attention"):
        states_of(sliding, torch.arange(1, 20)[None])
