"""The options of a Speculator: its attributes, presets and the guide's table come from them."""

from __future__ import annotations

import runpy
from dataclasses import FrozenInstanceError, fields
from inspect import Parameter, getdoc, signature
from pathlib import Path

import numpy as np
import pytest
import torch
from plain_text import PROMPT, same_text

from ngramspec import Corpus, SharedStore, Speculator
from ngramspec.options import DEFAULTS, NAMES, PRESETS, Options

OTHER = {"gamma": 5, "gamma_max": 16, "tree": None, "verification": "match", "epsilon": 0.5}
OTHER |= {"delta": 0.6, "compiled": False, "policy": "priority", "calibration": "request"}
OTHER["unsupported"] = "plain"


def test_a_speculator_has_the_arguments_of_options_and_their_documentation():
    arguments = [*signature(Speculator).parameters.values()]
    assert arguments.pop().kind is Parameter.VAR_KEYWORD  # names that are refused
    assert {each.name: each.default for each in arguments} == DEFAULTS
    positional = [each for each in arguments if each.kind is not each.KEYWORD_ONLY]
    assert [each.name for each in positional] == ["drafter", "gamma"]
    assert set(Speculator("copy").to_dict()) == set(NAMES) - {"on_step", "stores"}
    documented = getdoc(Speculator)
    for each in fields(Options):
        begin = documented.index(f"\n    {each.name}: ")
        text = documented[begin:].partition(".\n")[0]
        low, high, above = map(each.metadata.get, ("low", "high", "above"))
        if None not in (low, high):
            assert text.endswith(f"Integers lie in {low}..{high}"), each.name
        if above is not None:
            assert text.endswith("It is > 0 and <= 1"), each.name


def test_the_guide_has_the_table_of_options():
    docs = Path(__file__).parents[1] / "docs"
    written = (docs / "guide/options.md").read_text(encoding="utf-8")
    assert runpy.run_path(str(docs / "options.py"))["page"]() == written, "run docs/options.py"
    for shown in ('`gamma="auto"`', "`compiled=None`", "`stores=()`", "lie in 1..4096"):
        assert shown in written


def test_options_are_frozen_and_read_through_attributes():
    speculator = Speculator("copy", **OTHER)
    for name, value in OTHER.items():
        assert getattr(speculator, name) == getattr(speculator.options, name) == value
    with pytest.raises(FrozenInstanceError):
        speculator.options.gamma = 3
    with pytest.raises(AttributeError):
        speculator.options = Options()


def test_stores_are_replaced_and_checked():
    speculator = Speculator()
    first, second = SharedStore(1 << 20)["a"], SharedStore(1 << 20)["b"]
    for stores in ([first], [second, first], []):
        speculator.stores = stores
        assert list(speculator.stores) == list(speculator.options.stores) == stores
        assert list(speculator.drafter.stores) == stores
    with pytest.raises(TypeError, match="stores"):
        speculator.stores = [3]
    with pytest.raises(ValueError, match="takes no stores"):
        Speculator("ngram", policy="priority").stores = [first]


def test_an_assigned_setting_is_checked_and_used_by_the_next_call(tiny):
    speculator = Speculator("copy(min_match=1)", 4)
    before = speculator.options
    with pytest.raises(ValueError, match=r"gamma must be in 1\.\.64, got 0"):
        speculator.gamma = 0
    with pytest.raises(ValueError, match=r"lenience must be 1\.0 with verification='match'"):
        speculator.verification, speculator.lenience = "match", 0.5
    speculator.verification = "exact"
    assert repr(speculator.options) == repr(before)
    most = []
    for gamma in (4, 2):
        speculator.gamma = gamma
        events = []
        speculator.on_step = events.append
        kwargs = {"max_new_tokens": 30, "do_sample": False, "eos_token_id": None}
        tiny.generate(PROMPT, custom_generate=speculator, **kwargs)
        most.append(max(len(event.drafted) for event in events))
    assert most == [4, 2]
    assert before.gamma == 4
    for spec in ("copy+ngram", "auto", "auto+random(vocab=9,seed=1)"):
        (speculator := Speculator(spec)).policy = "priority"
        assert speculator.drafter.spec == Speculator(spec, policy="priority").drafter.spec


def test_drafts_of_the_prefill_stay_below_an_assigned_gamma_max(tiny):
    speculator = Speculator("copy")
    speculator.gamma_max = 3
    prompt, kwargs = torch.arange(1, 31).repeat(2)[None], {"max_new_tokens": 9, "do_sample": False}
    tiny.generate(prompt, custom_generate=speculator, **kwargs)
    assert 0 < speculator.stats.prefill_drafted <= 3


def test_repr_shows_what_is_not_the_default():
    assert repr(Speculator()) == "Speculator('auto')"
    assert repr(Speculator(policy="priority")) == "Speculator('auto', policy='priority')"
    assert repr(Speculator("auto+mtp")).startswith("Speculator('auto+mtp(")
    assert repr(Speculator("copy")) == "Speculator('copy(min_match=2)')"
    shown = repr(Speculator("none", 5, width=8, verification="match"))
    assert shown == "Speculator('none', gamma=5, verification='match', width=8)"
    assert eval(shown).to_dict() == Speculator("none", 5, width=8, verification="match").to_dict()


def test_costs_that_are_assigned_are_read(tmp_path):
    from ngramspec.costs.saved import SavedCosts

    for name, seconds in (("a", 1.5), ("b", 2.5)):
        SavedCosts({}, {64: {1: 1.0, 8: seconds}}).write(tmp_path / name)
    speculator = Speculator("copy", costs=tmp_path / "a")
    assert speculator.costs == str(tmp_path / "a")
    speculator.costs = str(tmp_path / "b")
    assert speculator._saved_costs.seconds[64][8] == 2.5
    speculator.costs = None
    assert speculator._saved_costs is None
    with pytest.raises(FileNotFoundError):
        speculator.costs = str(tmp_path / "c")
    assert speculator.costs is None


@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_keeps_the_text_and_its_gamma(tiny, name, tmp_path):
    drafted = []
    known = tiny.generate(PROMPT, max_new_tokens=30, do_sample=False)[0].numpy().astype("int32")
    stores = [Corpus.build([known], tmp_path / "known.ngc")] if name == "rest" else []
    speculator = Speculator.preset(
        name, stores=stores, on_step=lambda event: drafted.append(len(event.drafted))
    )
    same_text(tiny, speculator, max_new_tokens=60)
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


def test_preset_takes_arguments_and_names_an_unknown_preset():
    assert Speculator.preset("akunu", gamma=7).gamma == 7
    with pytest.raises(ValueError, match="preset must be one of 'akunu', .* got 'none'"):
        Speculator.preset("none")
