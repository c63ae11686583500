"""The parity report has no wrong cell, and says by name what is refused."""

from __future__ import annotations

import pytest
import torch

from ngramspec.bench import parity
from ngramspec.target import ONE_AT_A_TIME


@pytest.mark.filterwarnings("ignore")
def test_families_with_every_cache_processor_and_batch():
    cells = list(parity.matrix())
    assert len(cells) == 6 * 2 * 6 * 3
    assert {cell.outcome for cell in cells} == {"identical", "refused"}
    for cell in cells:
        sliding = cell.model in ("MistralForCausalLM", "Gemma2ForCausalLM")
        expected = "beams" in cell.what or (sliding and "static" in cell.what)
        assert (cell.outcome == "refused") == expected, cell


def test_a_wrong_cell_is_seen(monkeypatch):
    """If speculation said something else, the report would tell where."""

    def other(model, **kwargs):
        kwargs.pop("speculator")
        out = model.generate(**kwargs)
        out[0, -3] += 1
        return out

    monkeypatch.setattr(parity, "generate", other)
    cell = next(parity.matrix())
    assert cell.outcome == "wrong"
    assert cell.detail.startswith("row 0: new token 22 is ")


def test_models_that_take_one_token_at_a_time_are_refused_with_the_reason():
    from transformers import MoshiConfig, MoshiForCausalLM, OpenAIGPTConfig, OpenAIGPTLMHeadModel

    (first, *_) = parity.try_class(MoshiForCausalLM, MoshiConfig)
    assert first.outcome == "refused"
    assert ONE_AT_A_TIME["MoshiForCausalLM"] in first.detail
    (first, *_) = parity.try_class(OpenAIGPTLMHeadModel, OpenAIGPTConfig)
    assert "keeps no key-value cache" in first.detail


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_every_class_of_the_installed_transformers():
    cells = list(parity.walk())
    assert not [cell for cell in cells if cell.outcome == "wrong"]
    assert sum(cell.outcome == "identical" for cell in cells) > 250
    torch.manual_seed(0)
