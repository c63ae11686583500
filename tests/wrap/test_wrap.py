"""Wrapping a model folder: what is written, and what is refused."""

from __future__ import annotations

import copy
import json
import logging
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from doubles import InterruptedStreamer
from threads import PROMPTS, assert_each_is, in_threads
from transformers import AutoModelForCausalLM, GenerationConfig
from wrapping import (
    GREEDY,
    PROMPT,
    SETTINGS,
    WEIGHTS,
    answer,
    checkout,
    letters,
    load,
    save_tiny,
    stats_of,
)

import ngramspec
from ngramspec import Speculator, UnsupportedError
from ngramspec.wrap import wrapped
from ngramspec.wrap.wrapped import COPIED, HARD, SYMBOLIC, wrap


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
    assert done.weights == {HARD: 1}
    assert (tmp_path / "deep/tiny" / WEIGHTS).samefile(folder / WEIGHTS)
    assert not (tmp_path / "deep/tiny/config.json").samefile(folder / "config.json")
    assert snapshot(folder) == before
    ours = snapshot(tmp_path / "deep/tiny")
    assert {name: ours[name][0] for name in before} == {n: before[n][0] for n in before}
    new = {
        f"custom_generate/{name}" for name in ("generate.py", "ngramspec.json", "requirements.txt")
    }
    assert {str(name) for name in ours.keys() - before.keys()} == new


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


def test_what_was_wrapped_can_be_wrapped_again_elsewhere(plain, folder, wrapped_folder, tmp_path):
    with pytest.raises(ValueError, match=r"OUT_DIR: .*/tiny is not empty"):
        wrap(folder, wrapped_folder, SETTINGS)
    wrap(wrapped_folder, tmp_path / "again", SETTINGS | {"gamma": 2})
    again = load(tmp_path / "again")
    assert torch.equal(answer(plain, {}), answer(again, {}))
    assert wrapped.speculator_of(again).gamma == 2


def test_out_dir_lies_neither_in_model_dir_nor_around_it(folder, tmp_path):
    (tmp_path / "link").symlink_to(folder)
    before = snapshot(folder)
    for out in (folder, folder / "out", folder.parent, tmp_path / "link/out"):
        with pytest.raises(ValueError, match="OUT_DIR: .* neither inside MODEL_DIR nor"):
            wrap(folder, out, SETTINGS)
    (tmp_path / "file").write_text("")
    with pytest.raises(ValueError, match="OUT_DIR: .* is a file"):
        wrap(folder, tmp_path / "file", SETTINGS)
    assert snapshot(folder) == before


def configured(text):
    """The files of a folder with weights and this config.json."""
    return {WEIGHTS: "", "config.json": text}


CLASSES = {
    "RwkvForCausalLM": "keeps a recurrent state",
    "BertForMaskedLM": "cannot generate text",
    "MusicgenForConditionalGeneration": "overrides generate",
}
REFUSED = [
    (None, "there is no folder"),
    ({}, "holds no weights"),
    ({WEIGHTS: ""}, "holds no config.json"),
    ({"model.gguf": ""}, "only GGUF files.* save the model as safetensors"),
    ({"adapter_config.json": "{}", "adapter_model.safetensors": ""}, "an adapter"),
    (configured("{"), r"config\.json is not JSON: "),
    (configured("[]"), "must hold an object, got list"),
    (configured("{}") | {"custom_generate/generate.py": ""}, "has its own custom_generate"),
    *(
        (configured(json.dumps({"architectures": [name]})), f"MODEL_DIR: {name} {why}")
        for name, why in CLASSES.items()
    ),
]


@pytest.mark.parametrize(("files", "message"), REFUSED, ids=[message for _, message in REFUSED])
def test_what_cannot_be_wrapped_is_refused_by_name(files, message, tmp_path):
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


# A model that was loaded from a wrapped folder


@pytest.fixture
def model(wrapped_folder):
    return load(wrapped_folder)


REQUESTS = {
    "greedy": {},
    "sampled": {"do_sample": True, "temperature": 0.8, "top_p": 0.9},
    "config": {"generation_config": GenerationConfig(max_new_tokens=9, do_sample=False)},
}


@pytest.mark.parametrize("name", REQUESTS)
def test_a_wrapped_model_speculates_and_says_the_same(plain, model, name):
    assert torch.equal(answer(plain, REQUESTS[name]), answer(model, REQUESTS[name]))
    assert stats_of(model).runs == 1
    assert stats_of(model).drafted > 0


LOOKUP_CONFIG = GenerationConfig(prompt_lookup_num_tokens=2, max_new_tokens=9)
UNSPECULATED = [{"prompt_lookup_num_tokens": 3}, {"generation_config": LOOKUP_CONFIG}]


@pytest.mark.parametrize("asked", UNSPECULATED, ids=["argument", "config"])
def test_what_cannot_be_speculated_is_decoded_plainly(plain, model, asked, caplog):
    for _ in range(2):
        assert torch.equal(answer(plain, asked), answer(model, asked))
    assert stats_of(model).runs == 0
    logged = [r for r in caplog.records if "decoding without speculation" in r.getMessage()]
    assert len(logged) == 1


def test_a_streamer_that_raises_ends_the_call_and_no_later_one(plain, model):
    with pytest.raises(ConnectionError):
        model.generate(PROMPT, streamer=InterruptedStreamer(5, ConnectionError), **GREEDY)
    calls = stats_of(model).target_calls
    assert torch.equal(answer(plain, {}), answer(model, {}))
    assert stats_of(model).target_calls > calls


def test_stop_strings_and_positional_arguments(plain, model):
    tokenizer = letters()
    last = tokenizer.decode(answer(plain, {})[0, 14])
    config = GenerationConfig(max_new_tokens=24, do_sample=False, stop_strings=[last])
    expected = plain.generate(PROMPT, config, tokenizer=tokenizer)
    assert 10 < expected.shape[1] <= 15
    assert torch.equal(expected, model.generate(PROMPT, config, tokenizer=tokenizer))
    assert torch.equal(expected, ngramspec.generate(plain, PROMPT, config, tokenizer=tokenizer))
    assert stats_of(model).runs == 1
    with ngramspec.enable(model) as own:
        assert torch.equal(expected, model.generate(PROMPT, config, tokenizer=tokenizer))
    assert (own.stats.runs, stats_of(model).runs) == (1, 1)
    with pytest.raises(TypeError, match="multiple values for argument 'generation_config'"):
        model.generate(PROMPT, config, generation_config=config)
    with pytest.raises(TypeError, match="at most 11 positional arguments"):
        model.generate(PROMPT, *[None] * 11)


def test_a_speculator_of_the_caller_s_own_is_used_in_its_place(plain, model):
    expected = answer(plain, {})
    own = Speculator("copy", 3, unsupported="plain")
    assert torch.equal(ngramspec.generate(model, PROMPT, speculator=own, **GREEDY), expected)
    with ngramspec.enable(model, own):
        assert torch.equal(model.generate(PROMPT, **GREEDY), expected)
        model.generate(PROMPT, prompt_lookup_num_tokens=2, **GREEDY)
    assert torch.equal(model.generate(PROMPT, custom_generate=own, **GREEDY), expected)
    assert own.stats.runs == 3
    assert stats_of(model).runs == 0
    with pytest.raises(UnsupportedError, match="prompt_lookup_num_tokens=2"):
        ngramspec.generate(model, PROMPT, prompt_lookup_num_tokens=2, **GREEDY)


def test_a_copied_model_is_a_model_of_its_own(plain, model):
    other = copy.deepcopy(model)
    assert torch.equal(answer(plain, {}), answer(other, {}))
    assert stats_of(other).runs == 1
    assert stats_of(model).runs == 0
    with ngramspec.enable(model) as own:
        other = copy.deepcopy(model)
        assert torch.equal(answer(plain, {}), answer(other, {}))
    assert stats_of(other).runs == 1
    assert own.stats.runs == stats_of(model).runs == 0


def test_one_speculator_serves_a_model_s_threads(plain, model):
    speculators = set()

    def generate(prompt):
        out = model.generate(prompt, **GREEDY)
        speculators.add(wrapped.speculator_of(model))
        return out

    expected = [plain.generate(prompt, **GREEDY) for prompt in PROMPTS]
    assert_each_is(expected, in_threads(generate, 3), 3)
    assert len(speculators) == 1
    assert stats_of(model).runs == 12


def test_a_class_with_a_generate_of_its_own_is_left_to_it(plain, wrapped_folder, caplog):
    class Own(type(plain)):
        def generate(self, *args, **kwargs):
            return "own", args, kwargs

    model = Own.from_pretrained(wrapped_folder, trust_remote_code=True)
    assert model.generate(1, streamer=2) == ("own", (1,), {"streamer": 2})
    assert "Own overrides generate" in caplog.text


# Its settings


def test_the_settings_are_read_when_the_model_first_generates(folder, tmp_path):
    settings = {"drafter": "copy(min_match=3)", "gamma": 5, "gamma_max": 7, "policy": "priority"}
    wrap(folder, tmp_path / "tiny", settings)
    stored = Speculator(**settings).to_dict()
    assert wrapped.speculator_of(load(tmp_path / "tiny")).to_dict() == stored
    path = tmp_path / "tiny/custom_generate/ngramspec.json"
    path.write_text('{"drafter": "ngram", "gamma": 2}')
    edited = wrapped.speculator_of(load(tmp_path / "tiny"))
    assert edited.to_dict() == Speculator("ngram", 2).to_dict()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"gamma": 0}', r"ngramspec\.json: gamma must be in 1\.\.64, got 0"),
        ('{"gama": 3}', r"ngramspec\.json: .*'gama'"),
        ("[]", r"ngramspec\.json: must hold an object, got list"),
        ("{", r"ngramspec\.json: Expecting property name"),
    ],
)
def test_settings_that_cannot_be_used_are_named(folder, tmp_path, text, message):
    wrap(folder, tmp_path / "tiny", SETTINGS)
    (tmp_path / "tiny/custom_generate/ngramspec.json").write_text(text)
    with pytest.raises(ValueError, match=message):
        load(tmp_path / "tiny").generate(PROMPT, **GREEDY)


def test_settings_that_are_gone_are_missed_aloud(plain, folder, tmp_path, monkeypatch, caplog):
    wrap(folder, tmp_path / "tiny", SETTINGS)
    monkeypatch.chdir(tmp_path)
    model = load("tiny")
    monkeypatch.chdir("/")
    assert torch.equal(answer(plain, {}), answer(model, {}))
    assert "custom_generate/ngramspec.json is not in /tiny: speculating with defaults" in (
        caplog.text
    )


def test_the_log_can_be_asked_for(model, monkeypatch, caplog):
    with caplog.at_level(logging.ERROR, "ngramspec"):  # the application has set it
        monkeypatch.setenv("NGRAMSPEC_LOG", "info")
        wrapped._log_as_asked()
        assert logging.getLogger("ngramspec").level == logging.ERROR
    monkeypatch.setenv("NGRAMSPEC_LOG", "loud")
    with pytest.raises(ValueError, match=r"NGRAMSPEC_LOG must be one of .*INFO.*, got LOUD"):
        model.generate(PROMPT, **GREEDY)


@pytest.mark.slow
def test_a_process_that_loads_the_folder_logs_as_asked(wrapped_folder):
    code = (
        "import sys, torch; from transformers import AutoModelForCausalLM as A\n"
        "model = A.from_pretrained(sys.argv[1], trust_remote_code=True)\n"
        "model.generate(torch.tensor([[5, 6, 5, 6]]), max_new_tokens=9, do_sample=False)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(wrapped_folder)],
        env=os.environ | {"NGRAMSPEC_LOG": "info", "PYTHONPATH": checkout()},
        capture_output=True,
        text=True,
    )
    assert re.search(r"ngramspec: 8 tokens in \d target calls", done.stderr)
