"""Presets: what they stand for, and that each keeps the text."""

from __future__ import annotations

import pytest
import torch
from conftest import tiny_llama

import ngramspec
from ngramspec import Speculator
from ngramspec.decoding.presets import PRESETS


@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_keeps_the_text_and_its_gamma(name):
    model = tiny_llama()
    ids = torch.tensor([[5, 6, 7, 8, 5, 6, 7, 9, 5, 6]])
    drafted = []
    speculator = Speculator.preset(name, on_step=lambda event: drafted.append(len(event.drafted)))
    out = ngramspec.generate(
        model, input_ids=ids, max_new_tokens=60, do_sample=False, speculator=speculator
    )
    assert out.tolist() == model.generate(ids, max_new_tokens=60, do_sample=False).tolist()
    assert 0 < max(drafted) <= speculator.gamma == PRESETS[name]["gamma"]
    assert Speculator.from_dict(speculator.to_dict()).to_dict() == speculator.to_dict()


def test_akunu_is_what_its_chapter_configures():
    settings = Speculator.preset("akunu").to_dict()
    assert settings["gamma"] == 4
    assert settings["tree"] is None
    assert "order=4" in settings["drafter"]
    assert "window=512" in settings["drafter"]


def test_arguments_replace_the_presets():
    assert Speculator.preset("akunu", gamma=7).gamma == 7


def test_an_unknown_preset_is_named_with_those_there_are():
    with pytest.raises(ValueError, match="preset must be one of 'akunu', .* got 'none'"):
        Speculator.preset("none")
