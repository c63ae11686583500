"""Presets: what they stand for, and that each keeps the text."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from conftest import tiny_llama

import ngramspec
from ngramspec import Corpus, Speculator
from ngramspec.decoding.presets import PRESETS


@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_keeps_the_text_and_its_gamma(name, tmp_path):
    model = tiny_llama()
    ids = torch.tensor([[5, 6, 7, 8, 5, 6, 7, 9, 5, 6]])
    drafted = []
    known = model.generate(ids, max_new_tokens=30, do_sample=False)[0].numpy().astype("int32")
    stores = [Corpus.build([known], tmp_path / "known.ngc")] if name == "rest" else []
    speculator = Speculator.preset(
        name, stores=stores, on_step=lambda event: drafted.append(len(event.drafted))
    )
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


def test_rest_drafts_from_its_stores_alone(tmp_path):
    corpus = Corpus.build([np.array([1, 2, 3, 4, 5, 6], np.int32)], tmp_path / "corpus.ngc")
    speculator = Speculator.preset("rest", stores=[corpus])
    text = np.array([7, 8, 9, 7, 8, 2, 3], np.int32)
    draft = speculator.drafter.start(text).propose(8, tree=True)
    assert draft.tokens.tolist()[:3] == [4, 5, 6]
    assert {speculator.drafter.source_names[i] for i in draft.source} == {"store"}
    assert len(speculator.drafter.start(text[:5]).propose(8, tree=True)) == 0
    assert len(Speculator.preset("rest").drafter.start(text).propose(8, tree=True)) == 0


def test_arguments_replace_the_presets():
    assert Speculator.preset("akunu", gamma=7).gamma == 7


def test_an_unknown_preset_is_named_with_those_there_are():
    with pytest.raises(ValueError, match="preset must be one of 'akunu', .* got 'none'"):
        Speculator.preset("none")
