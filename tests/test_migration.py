"""What the page "Moving from 0.1" says: what an older version saved loads today.

``data/before_folders`` was written by the last commit in which all modules lay in one folder: the
output of ``to_dict`` for several Speculators, ``save_pretrained``, a cost file, and a wrapped
folder without its weights.
"""

from __future__ import annotations

import importlib
import json
import re
import shutil
from pathlib import Path

import pytest
import torch
from conftest import tiny_llama
from transformers import AutoModelForCausalLM

import ngramspec
from ngramspec import Draft, DraftSession, Speculator, build_drafter
from ngramspec.costs.saved import SavedCosts, described
from ngramspec.wrap import wrapped

OLD = Path(__file__).parent / "data" / "before_folders"
PAGE = Path(__file__).parents[1] / "docs" / "migration.md"
SETTINGS = json.loads((OLD / "to_dict.json").read_text())
IDS = torch.tensor([[5, 6, 7, 8, 5, 6, 7, 9, 5, 6]])
GREEDY = {"max_new_tokens": 24, "do_sample": False}
SAVED = (build_drafter("copy+ngram").spec, 4)


def table(heading: str) -> list[tuple[str, str]]:
    """The two columns of a section's table, without code marks."""
    section = re.search(
        rf"^## {heading}$(.*?)(?=^## |\Z)", PAGE.read_text(), re.MULTILINE | re.DOTALL
    )
    return re.findall(r"^\| `([^|`]+)` \| `([^|`]+)` \|$", section[1], re.MULTILINE)


@pytest.mark.parametrize("old", SETTINGS, ids=lambda old: f"{old['drafter']}-{old['gamma']}")
def test_old_settings_load(old):
    new = Speculator.from_dict(old).to_dict()
    assert {key: new[key] for key in old} == old


def test_old_settings_are_of_several_kinds():
    assert len({json.dumps(old) for old in SETTINGS}) == len(SETTINGS) >= 8


def test_old_saved_settings_load():
    speculator = Speculator.from_pretrained(OLD / "saved")
    assert (speculator.drafter.spec, speculator.gamma) == SAVED


def test_old_cost_files_load(tiny):
    saved = SavedCosts.read(OLD / "costs.json")
    assert list(saved.seconds) == [32, 64]
    assert saved.curve(32, 16)[1] == 1.0
    assert saved.depends.keys() == described(tiny, "sdpa").keys()
    speculator = Speculator(costs=OLD / "costs.json")
    out = tiny.generate(IDS, **GREEDY, custom_generate=speculator)
    assert out.equal(tiny.generate(IDS, **GREEDY))


def test_old_wrapped_folders_speculate(tmp_path):
    folder = shutil.copytree(OLD / "wrapped", tmp_path / "wrapped")
    tiny_llama().save_pretrained(tmp_path / "weights")
    shutil.copy(tmp_path / "weights" / "model.safetensors", folder)
    model = AutoModelForCausalLM.from_pretrained(folder, trust_remote_code=True)
    plain = AutoModelForCausalLM.from_pretrained(tmp_path / "weights")
    assert model.generate(IDS, **GREEDY).equal(plain.generate(IDS, **GREEDY))
    speculator = wrapped.speculator_of(model)
    assert (speculator.drafter.spec, speculator.gamma) == SAVED
    assert speculator.stats.target_calls > 0


def test_renamed_methods_are_there():
    """That the old names warn is tested in ``drafters/test_deprecated.py``."""
    owners = {"Draft": Draft, "DraftSession": DraftSession}
    assert len(table("Renamed")) == 3
    for old, new in table("Renamed"):
        owner, name = re.match(r"(\w+)\.(\w+)", new).groups()
        assert hasattr(owners[owner], name)
        if owner == "Draft":  # a session's old method is the user's own
            assert hasattr(Draft, re.match(r"Draft\.(\w+)", old)[1])


@pytest.mark.parametrize(("old", "new"), table("Moved"))
def test_moved_modules_are_where_the_page_says(old, new):
    module = importlib.import_module(f"ngramspec.{new.replace('/', '.')}")
    assert module.__doc__


def test_public_names_are_importable():
    assert all(hasattr(ngramspec, name) for name in ngramspec.__all__)
