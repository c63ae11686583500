"""Wrapping a model folder: what is written, and what is refused."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM
from wrapping import SETTINGS, WEIGHTS, answer, load, save_tiny

from ngramspec.wrap import wrapped
from ngramspec.wrap.folder import COPIED, HARD, SYMBOLIC, Group, wrap


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return save_tiny(tmp_path_factory.mktemp("saved") / "tiny")


@pytest.fixture(scope="module")
def plain(folder):
    return AutoModelForCausalLM.from_pretrained(folder)


@pytest.fixture(scope="module")
def wrapped_folder(folder, tmp_path_factory):
    out = tmp_path_factory.mktemp("wrapped") / "tiny"
    wrap(folder, out, SETTINGS)
    return out


def snapshot(folder):
    """Every file's content, time and number of names but for links to weights."""
    return {
        path.relative_to(folder): (path.read_bytes(), path.stat().st_mtime_ns)
        for path in folder.rglob("*")
        if path.is_file()
    }


def test_weights_are_links_and_the_rest_copies(folder, tmp_path):
    before = snapshot(folder)
    done = wrap(folder, tmp_path / "deep/tiny", SETTINGS)
    size = (folder / WEIGHTS).stat().st_size
    assert done.weights == {HARD: Group(1, size)}
    assert done.others.files == len(before) - 1
    assert (tmp_path / "deep/tiny" / WEIGHTS).samefile(folder / WEIGHTS)
    assert not (tmp_path / "deep/tiny/config.json").samefile(folder / "config.json")
    assert snapshot(folder) == before
    ours = snapshot(tmp_path / "deep/tiny")
    assert {name: ours[name][0] for name in before} == {n: before[n][0] for n in before}
    assert {str(name) for name in ours.keys() - before.keys()} == {
        "custom_generate/generate.py",
        "custom_generate/ngramspec.json",
        "custom_generate/requirements.txt",
    }


def test_symbolic_links_where_there_are_no_hard_ones_and_copies_where_asked(
    plain, folder, tmp_path, monkeypatch
):
    monkeypatch.chdir(folder.parent)

    def other_disk(self, target):
        raise OSError(18, "Invalid cross-device link")

    monkeypatch.setattr(Path, "hardlink_to", other_disk)
    linked, copied = tmp_path / "linked", tmp_path / "copied"
    assert [*wrap(Path("tiny"), linked, SETTINGS).weights] == [SYMBOLIC]
    assert [*wrap(Path("tiny"), copied, SETTINGS, copy=True).weights] == [COPIED]
    assert (linked / WEIGHTS).is_symlink()
    assert (linked / WEIGHTS).samefile(folder / WEIGHTS)
    assert not (copied / WEIGHTS).is_symlink()
    for path in (linked, copied):
        assert torch.equal(answer(plain, {}), answer(load(path), {}))


def test_a_folder_of_links_is_wrapped_as_what_they_lead_to(plain, folder, tmp_path):
    snapshot_folder, inner = tmp_path / "snapshot", tmp_path / "snapshot/original"
    inner.mkdir(parents=True)
    (tmp_path / "snapshot/.git").mkdir()
    (tmp_path / "snapshot/.git/HEAD").write_text("ref")
    (inner / "params.json").write_text("{}")
    for path in folder.iterdir():
        (snapshot_folder / path.name).symlink_to(path)
    wrap(snapshot_folder, tmp_path / "out", SETTINGS)
    shutil.rmtree(snapshot_folder)
    assert torch.equal(answer(plain, {}), answer(load(tmp_path / "out"), {}))
    assert (tmp_path / "out/original/params.json").read_text() == "{}"
    assert not (tmp_path / "out/.git").exists()


def test_out_dir_has_to_be_empty_unless_forced(plain, folder, tmp_path):
    out = tmp_path / "out"
    out.mkdir()
    wrap(folder, out, SETTINGS)
    with pytest.raises(ValueError, match=r"OUT_DIR: .*/out is not empty; give --force"):
        wrap(folder, out, SETTINGS)
    before = snapshot(folder)
    (out / "NOTES").write_text("mine")
    (out / "config.json").unlink()
    (out / "config.json").symlink_to(folder / "config.json")  # must not be written through
    wrap(folder, out, SETTINGS | {"gamma": 3}, force=True)
    assert snapshot(folder) == before
    assert (out / "NOTES").read_text() == "mine"
    assert not (out / "config.json").is_symlink()
    assert json.loads((out / "custom_generate/ngramspec.json").read_text())["gamma"] == 3
    assert torch.equal(answer(plain, {}), answer(load(out), {}))
    shutil.rmtree(out / "custom_generate")
    (out / "custom_generate").symlink_to(folder)
    with pytest.raises(ValueError, match=r"OUT_DIR: .*custom_generate is a link to a folder"):
        wrap(folder, out, SETTINGS, force=True)
    (out / "custom_generate").unlink()
    (out / "model-00001-of-00002.safetensors").write_text("another's")
    with pytest.raises(ValueError, match=r"OUT_DIR: .*00002\.safetensors is not in MODEL_DIR"):
        wrap(folder, out, SETTINGS, force=True)


def test_what_was_wrapped_can_be_wrapped(plain, wrapped_folder, tmp_path):
    wrap(wrapped_folder, tmp_path / "again", SETTINGS | {"gamma": 2})
    model = load(tmp_path / "again")
    assert torch.equal(answer(plain, {}), answer(model, {}))
    assert wrapped.speculator_of(model).gamma == 2


def test_out_dir_lies_neither_in_model_dir_nor_around_it(folder, tmp_path):
    (tmp_path / "link").symlink_to(folder)
    before = snapshot(folder)
    for out in (folder, folder / "out", folder.parent, tmp_path / "link/out"):
        with pytest.raises(ValueError, match="OUT_DIR: .* neither inside MODEL_DIR nor"):
            wrap(folder, out, SETTINGS, force=True)
    (tmp_path / "file").write_text("")
    with pytest.raises(ValueError, match="OUT_DIR: .* is a file"):
        wrap(folder, tmp_path / "file", SETTINGS)
    assert snapshot(folder) == before


REFUSED = {
    "is no folder": (None, "there is no folder"),
    "nothing": ({}, "holds no weights"),
    "no config": ({WEIGHTS: ""}, "holds no config.json"),
    "gguf": ({"model.gguf": ""}, "only GGUF files.* save the model as safetensors"),
    "adapter": ({"adapter_config.json": "{}", "adapter_model.safetensors": ""}, "an adapter"),
    "torn config": ({WEIGHTS: "", "config.json": "{"}, r"config\.json is not JSON: "),
    "odd config": ({WEIGHTS: "", "config.json": "[]"}, "must hold an object, got list"),
    "generate of its own": (
        {WEIGHTS: "", "config.json": "{}", "custom_generate/generate.py": ""},
        "has its own custom_generate",
    ),
    "recurrent": (
        {WEIGHTS: "", "config.json": '{"architectures": ["RwkvForCausalLM"]}'},
        "MODEL_DIR: RwkvForCausalLM keeps a recurrent state",
    ),
    "no generator": (
        {WEIGHTS: "", "config.json": '{"architectures": ["BertForMaskedLM"]}'},
        "BertForMaskedLM cannot generate text",
    ),
    "overriding": (
        {WEIGHTS: "", "config.json": '{"architectures": ["MusicgenForConditionalGeneration"]}'},
        "MusicgenForConditionalGeneration overrides generate",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_wrapped_is_refused_by_name(name, tmp_path):
    files, message = REFUSED[name]
    for path, text in (files or {}).items():
        (tmp_path / "in" / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "in" / path).write_text(text)
    if files == {}:
        (tmp_path / "in").mkdir()
    with pytest.raises(ValueError, match=f"MODEL_DIR: .*{message}|{message}"):
        wrap(tmp_path / "in", tmp_path / "out", SETTINGS)
    assert not (tmp_path / "out").exists()


def test_a_broken_link_is_named(folder, tmp_path):
    shutil.copytree(folder, tmp_path / "in")
    (tmp_path / "in/gone.json").symlink_to(tmp_path / "nowhere")
    with pytest.raises(ValueError, match=r"MODEL_DIR: .*gone\.json is a broken link"):
        wrap(tmp_path / "in", tmp_path / "out", SETTINGS)


@pytest.mark.parametrize("there", [False, True])
def test_what_fails_half_way_leaves_nothing_behind(folder, tmp_path, monkeypatch, there):
    out = tmp_path / "deep/out"
    if there:
        out.mkdir(parents=True)
    real = shutil.copyfile
    copies = []

    def full_disk(source, target):
        copies.append(target)
        if len(copies) == 3:
            Path(target).write_text("half")
            raise OSError(28, "No space left on device")
        return real(source, target)

    monkeypatch.setattr(shutil, "copyfile", full_disk)
    with pytest.raises(OSError, match="No space left"):
        wrap(folder, out, SETTINGS)
    assert out.exists() == there
    assert (tmp_path / "deep").exists() == there
    assert not [*tmp_path.rglob("*.json")]
