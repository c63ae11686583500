"""The settings of a Speculator: one frozen object behind its attributes and copies."""

from __future__ import annotations

import copy
import pickle
from dataclasses import FrozenInstanceError, fields
from inspect import signature

import pytest
import torch

from ngramspec import Speculator
from ngramspec.decoding.config import NAMES, Config

PROMPT = torch.tensor([[5, 6, 7, 8, 5, 6, 7, 9, 5, 6]])
OTHER = {
    "gamma": 5,
    "gamma_max": 16,
    "tree": None,
    "verification": "match",
    "epsilon": 0.5,
    "delta": 0.6,
    "compiled": False,
    "policy": "priority",
    "calibration": "request",
    "unsupported": "plain",
}


def test_the_arguments_of_a_speculator_are_the_config_s_fields_with_its_defaults():
    arguments = signature(Speculator).parameters
    assert set(arguments) == {"drafter", "on_step", "stores", *NAMES}
    default = Config().to_dict()
    assert {name: arguments[name].default for name in NAMES} == default
    assert list(Speculator("copy").to_dict()) == ["drafter", *NAMES]
    assert {each.name for each in fields(Config)} == {*NAMES, "saved_costs"}


def test_a_config_is_frozen_and_read_through_attributes():
    speculator = Speculator("copy", **OTHER)
    for name, value in OTHER.items():
        assert getattr(speculator, name) == getattr(speculator.config, name) == value
    with pytest.raises(FrozenInstanceError):
        speculator.config.gamma = 3
    assert speculator.config == Config(**OTHER)
    with pytest.raises(AttributeError):
        speculator.config = Config()


def test_an_assigned_setting_is_checked_and_used_by_the_next_call(tiny):
    speculator = Speculator("copy(min_match=1)", 4)
    before = speculator.config
    with pytest.raises(ValueError, match=r"gamma must be in 1\.\.64, got 0"):
        speculator.gamma = 0
    with pytest.raises(ValueError, match=r"lenience must be 1\.0 with verification='match'"):
        speculator.verification, speculator.lenience = "match", 0.5
    speculator.verification = "exact"
    assert speculator.config == before
    most = []
    for gamma in (4, 2):
        speculator.gamma = gamma
        events = []
        speculator.on_step = events.append
        tiny.generate(
            PROMPT,
            custom_generate=speculator,
            max_new_tokens=30,
            do_sample=False,
            eos_token_id=None,
        )
        most.append(max(len(event.drafted) for event in events))
    assert most == [4, 2]
    assert before.gamma == 4


def test_drafts_of_the_prefill_stay_below_an_assigned_gamma_max(tiny):
    speculator = Speculator("copy")
    speculator.gamma_max = 3
    tiny.generate(
        torch.arange(1, 31).repeat(2)[None],
        custom_generate=speculator,
        max_new_tokens=9,
        do_sample=False,
    )
    assert 0 < speculator.stats.prefill_drafted <= 3


def test_repr_shows_what_is_not_the_default():
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
    assert speculator.config.saved_costs.seconds[64][8] == 2.5
    speculator.costs = None
    assert speculator.config.saved_costs is None
    with pytest.raises(FileNotFoundError):
        speculator.costs = str(tmp_path / "c")


def state_of_0_1(speculator):
    """What version 0.1 pickled: an attribute for each setting, and the costs that were read."""
    state = {name: getattr(speculator, name) for name in NAMES}
    state |= {"_drafter": speculator.drafter, "on_step": speculator.on_step}
    return state | {"_saved": speculator.config.saved_costs}


@pytest.mark.parametrize("name", [None, "mine"])
def test_pickles_of_0_1_still_load(name):
    speculator = Speculator("copy", **OTHER, on_step=print)
    state = state_of_0_1(speculator) | ({} if name is None else {name: 3})
    other = Speculator.__new__(Speculator)
    other.__setstate__(pickle.loads(pickle.dumps(state)))
    assert other.to_dict() == speculator.to_dict()
    assert other.on_step is print
    assert vars(other).keys() - vars(speculator).keys() == ({name} if name else set())
    assert copy.copy(other).to_dict() == speculator.to_dict()
