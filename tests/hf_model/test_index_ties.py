"""Among equal index scores a draft's positions select the keys that plain decoding selects."""

from __future__ import annotations

import pytest
import torch
from doubles import half_right
from layer_states import GREEDY, PROMPT, model_of

import ngramspec
from benchmarks import tiny
from ngramspec import Speculator
from ngramspec.hf_model.compat import extras
from ngramspec.hf_model.compat.extras import causal_topk

KEYS, POSITIONS, SELECTED = 23, 4, 8


class Indexer(torch.nn.Module):
    """Selects like a model's own."""

    def __init__(self, *, error=None):
        super().__init__()
        self.error = error

    def forward(self, scores):
        if self.error:
            raise self.error
        return scores.topk(min(SELECTED, scores.shape[-1]), dim=-1).indices


class Model(torch.nn.Module):
    def __init__(self, **kwargs):
        super().__init__()
        self.indexer = Indexer(**kwargs)

    def forward(self, scores):
        return self.indexer(scores), scores.topk(SELECTED).indices


def wide(scores):
    """(rows, positions, keys) of a forward: what is after a position is masked."""
    ahead = torch.ones(POSITIONS, KEYS, dtype=torch.bool).triu(KEYS - POSITIONS + 1)
    return scores.masked_fill(ahead, float("-inf"))


def chosen(model, scores, *, positions=POSITIONS):
    with causal_topk(model, positions, KEYS):
        return model(scores)


@pytest.mark.parametrize("rows", [1, 2])
def test_equal_scores_are_selected_as_in_forwards_of_one_position(rows):
    model, differ = Model(), 0
    for seed in range(20):
        torch.manual_seed(seed)
        scores = torch.randint(0, 3, (rows, POSITIONS, KEYS)).float()
        found = chosen(model, wide(scores))[0]
        for at in range(POSITIONS):
            alone = model.indexer(scores[:, at : at + 1, : KEYS - POSITIONS + 1 + at])
            assert torch.equal(found[:, at : at + 1], alone)
        differ += not torch.equal(found, model.indexer(wide(scores)))
    assert differ > 0  # a forward over all of them selects otherwise


def test_other_selections_are_left_alone():
    torch.manual_seed(0)
    model, scores = Model(), wide(torch.randint(0, 3, (1, POSITIONS, KEYS)).float())
    as_it_is, outside = model(scores)
    assert torch.equal(chosen(model, scores)[1], outside)
    assert torch.equal(chosen(model, scores, positions=1)[0], as_it_is)
    few = scores[:, :, :9]
    assert torch.equal(chosen(model, few)[0], model(few)[0])


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
def test_nothing_is_left_behind_where_an_index_fails(error):
    model, scores = Model(error=error("no index")), wide(torch.zeros(1, POSITIONS, KEYS))
    with pytest.raises(error, match="no index"):
        chosen(model, scores)
    assert not model.indexer._forward_hooks
    assert not model.indexer._forward_pre_hooks
    assert torch.overrides._get_current_function_mode_stack() == []


@pytest.mark.parametrize("name", ["DeepseekV32ForCausalLM", "Dots3NoteForCausalLM"])
@pytest.mark.parametrize("gamma", [5, "auto"])
def test_a_text_with_equal_scores_is_that_of_plain_generate(name, gamma):
    model = model_of(name)
    prompt = PROMPT.clone()
    prompt[:, 4::3] = 0  # whose embedding is zero
    mask = torch.ones_like(prompt)
    plain = model.generate(prompt, attention_mask=mask, **GREEDY)
    speculator = Speculator(half_right(plain[0].tolist(), tiny.VOCAB), gamma)
    kwargs = GREEDY | {"attention_mask": mask, "speculator": speculator}
    assert torch.equal(ngramspec.generate(model, prompt, **kwargs), plain)
    assert speculator.stats.accepted > 0
    assert extras._indexers[model]
