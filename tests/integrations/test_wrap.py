"""Wrapped model folders: what is written, what they generate, and a real server of one."""

from __future__ import annotations

import copy
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest
import torch
from command import exit_code
from conftest import tiny_llama
from prompts import PROMPTS
from transformers import AutoModelForCausalLM, GenerationConfig, PreTrainedTokenizerFast, pipeline

import ngramspec
from ngramspec import Speculator, UnsupportedError
from ngramspec.cli.wrap import group_line
from ngramspec.integrations import wrapped
from ngramspec.integrations.wrap import COPIED, HARD, SYMBOLIC, Group, wrap

PROMPT = torch.tensor([[5, 6, 7, 8, 5, 6, 7, 9, 5, 6]])
GREEDY = {"max_new_tokens": 24, "do_sample": False}
SETTINGS = {"unsupported": "plain"}
WEIGHTS = "model.safetensors"


@pytest.fixture(scope="module")
def tokenizer():
    """Token n is the character n + 32."""
    from tokenizers import Tokenizer, decoders, models

    letters = Tokenizer(models.BPE({chr(n + 32): n for n in range(97)}, merges=[]))
    letters.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(tokenizer_object=letters, pad_token=" ")


@pytest.fixture(scope="module")
def folder(tmp_path_factory, tokenizer):
    """A saved model."""
    path = tmp_path_factory.mktemp("saved") / "tiny"
    tiny_llama().save_pretrained(path)
    tokenizer.save_pretrained(path)
    return path


@pytest.fixture(scope="module")
def plain(folder):
    return AutoModelForCausalLM.from_pretrained(folder)


@pytest.fixture(scope="module")
def wrapped_folder(folder, tmp_path_factory):
    out = tmp_path_factory.mktemp("wrapped") / "tiny"
    wrap(folder, out, SETTINGS)
    return out


def load(path):
    return AutoModelForCausalLM.from_pretrained(path, trust_remote_code=True)


@pytest.fixture
def model(wrapped_folder):
    return load(wrapped_folder)


def stats_of(model):
    return wrapped.speculator_of(model).stats


def snapshot(folder):
    """Every file's content, time and number of names but for links to weights."""
    return {
        path.relative_to(folder): (path.read_bytes(), path.stat().st_mtime_ns)
        for path in folder.rglob("*")
        if path.is_file()
    }


# What a loaded model does


REQUESTS = {
    "greedy": {},
    "batch": {"input_ids": PROMPT.repeat(2, 1)},
    "sampled": {"do_sample": True, "temperature": 0.8, "top_p": 0.9},
    "sequences": {"do_sample": True, "num_return_sequences": 1, "top_k": 5},
    "penalty": {"repetition_penalty": 1.3, "eos_token_id": [3, 4]},
    "config": {"generation_config": GenerationConfig(max_new_tokens=9, do_sample=False)},
    "static": {"cache_implementation": "static", "disable_compile": True},
    "guidance": {"guidance_scale": 1.5},
    "one token": {"max_new_tokens": 1},
}


def answer(model, settings):
    torch.manual_seed(1)
    kwargs = {"input_ids": PROMPT} | ({} if "generation_config" in settings else GREEDY) | settings
    return model.generate(**kwargs)


@pytest.mark.parametrize("name", REQUESTS)
def test_a_wrapped_model_speculates_and_says_the_same(plain, model, name):
    assert torch.equal(answer(plain, REQUESTS[name]), answer(model, REQUESTS[name]))
    assert stats_of(model).runs == 1
    assert stats_of(model).drafted > 0 or name == "one token"


def test_without_trust_the_folder_is_a_plain_model(wrapped_folder):
    model = AutoModelForCausalLM.from_pretrained(wrapped_folder)
    assert "generate" not in vars(model)


UNSPECULATED = {
    "beams": {"num_beams": 3},
    "no cache": {"use_cache": False},
    "lookup": {"prompt_lookup_num_tokens": 3},
    "early exit": {"assistant_early_exit": 1},
    "assistant": {"assistant_model": tiny_llama(3)},
    "beams by config": {"generation_config": GenerationConfig(num_beams=2, max_new_tokens=9)},
}


@pytest.mark.parametrize("name", UNSPECULATED)
def test_what_cannot_be_speculated_is_decoded_plainly(plain, model, name, caplog):
    for _ in range(2):
        assert torch.equal(answer(plain, UNSPECULATED[name]), answer(model, UNSPECULATED[name]))
    assert stats_of(model).runs == 0
    logged = [r for r in caplog.records if "decoding without speculation" in r.getMessage()]
    assert len(logged) == 1


@pytest.mark.parametrize(
    "settings",
    [{"dola_layers": "high"}, {"penalty_alpha": 0.6, "top_k": 4}],
    ids=["dola", "contrastive"],
)
def test_ways_to_decode_that_are_elsewhere_are_transformers_business(plain, model, settings):
    messages = []
    for each in (plain, model):
        with pytest.raises(ValueError, match="trust_remote_code") as error:
            answer(each, settings)
        messages.append(str(error.value))
    assert messages[0] == messages[1]


@pytest.mark.parametrize(
    "settings",
    [{"dola_layers": "high"}, {"penalty_alpha": 1.0, "top_k": 4}, {"assistant_early_exit": 1}],
)
def test_other_ways_to_decode_are_refused_by_name(plain, settings):
    (name, value), *_ = settings.items()
    for call in (
        lambda: ngramspec.generate(plain, PROMPT, **GREEDY, **settings),
        lambda: plain.generate(PROMPT, custom_generate=Speculator(), **GREEDY, **settings),
    ):
        with pytest.raises(UnsupportedError, match=f"{name}={value} cannot be combined"):
            call()


class Streamer:
    def __init__(self):
        self.got = []

    def put(self, value):
        self.got.append(value.flatten().tolist())

    def end(self):
        self.got.append("end")


def test_a_streamer_gets_the_prompt_and_every_token(plain, model):
    seen = []
    for each in (plain, model):
        streamer = Streamer()
        each.generate(PROMPT, streamer=streamer, **GREEDY)
        seen.append(streamer.got)
    assert seen[0] == seen[1]
    assert len(seen[1]) == 1 + 24 + 1


def test_a_streamer_that_raises_ends_the_call_and_no_later_one(plain, model):
    class Gone(Streamer):
        def put(self, value):
            super().put(value)
            if len(self.got) == 5:
                raise ConnectionError("gone")

    with pytest.raises(ConnectionError):
        model.generate(PROMPT, streamer=Gone(), **GREEDY)
    assert torch.equal(answer(plain, {}), answer(model, {}))


def test_stop_strings_and_positional_arguments(plain, model, tokenizer):
    last = tokenizer.decode(answer(plain, {})[0, 14])
    config = GenerationConfig(max_new_tokens=24, do_sample=False, stop_strings=[last])
    plainly = plain.generate(PROMPT, config, tokenizer=tokenizer)
    assert 10 < plainly.shape[1] <= 15
    assert torch.equal(plainly, model.generate(PROMPT, config, tokenizer=tokenizer))
    assert torch.equal(plainly, ngramspec.generate(plain, PROMPT, config, tokenizer=tokenizer))
    assert stats_of(model).runs == 1
    with ngramspec.enabled(model) as own:
        assert torch.equal(plainly, model.generate(PROMPT, config, tokenizer=tokenizer))
    assert (own.stats.runs, stats_of(model).runs) == (1, 1)
    with pytest.raises(TypeError, match="multiple values for argument 'generation_config'"):
        model.generate(PROMPT, config, generation_config=config)
    with pytest.raises(TypeError, match="at most 11 positional arguments"):
        model.generate(PROMPT, *[None] * 11)


def test_return_dict_in_generate(plain, model):
    asked = {"return_dict_in_generate": True, "output_scores": True, "output_hidden_states": True}
    plainly, ours = answer(plain, asked), answer(model, asked)
    assert torch.equal(plainly.sequences, ours.sequences)
    assert len(ours.scores) == len(ours.hidden_states) == 24
    for one, other in zip(plainly.scores, ours.scores, strict=True):
        assert torch.allclose(one, other, atol=1e-4)


def test_a_speculator_of_the_caller_s_own_is_used_in_its_place(plain, model):
    expected = answer(plain, {})
    own = Speculator("copy", 3, unsupported="plain")
    assert torch.equal(ngramspec.generate(model, PROMPT, speculator=own, **GREEDY), expected)
    with ngramspec.enabled(model, own):
        assert torch.equal(model.generate(PROMPT, **GREEDY), expected)
        model.generate(PROMPT, num_beams=2, **GREEDY)
    assert torch.equal(model.generate(PROMPT, custom_generate=own, **GREEDY), expected)
    assert own.stats.runs == 3
    assert stats_of(model).runs == 0
    with pytest.raises(UnsupportedError, match="num_beams=2"):
        ngramspec.generate(model, PROMPT, num_beams=2, **GREEDY)


def test_pipelines(plain, model, tokenizer):
    texts = [
        pipeline("text-generation", model=each, tokenizer=tokenizer)("abcabca", **GREEDY)
        for each in (plain, model)
    ]
    assert texts[0] == texts[1]
    assert stats_of(model).runs == 1


def test_a_copied_model_is_a_model_of_its_own(plain, model):
    other = copy.deepcopy(model)
    assert torch.equal(answer(plain, {}), answer(other, {}))
    assert stats_of(other).runs == 1
    assert stats_of(model).runs == 0
    with ngramspec.enabled(model) as own:
        other = copy.deepcopy(model)
        assert torch.equal(answer(plain, {}), answer(other, {}))
    assert stats_of(other).runs == 1
    assert own.stats.runs == stats_of(model).runs == 0


def test_one_speculator_serves_a_model_s_threads(plain, model):
    prompts = [
        torch.randint(1, 97, (1, 12), generator=torch.Generator().manual_seed(i)) for i in range(4)
    ]
    expected = [plain.generate(ids, **GREEDY) for ids in prompts]
    got: dict[int, list[torch.Tensor]] = {i: [] for i in range(4)}
    speculators = set()

    def work(i):
        for _ in range(3):
            got[i].append(model.generate(prompts[i], **GREEDY))
        speculators.add(wrapped.speculator_of(model))

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for i in range(4):
        assert len(got[i]) == 3
        assert all(torch.equal(expected[i], out) for out in got[i])
    assert len(speculators) == 1
    assert stats_of(model).runs == 12


def test_no_request_s_text_is_drafted_in_another(model):
    """Every drafted token stands in the request's own text, which no others have been in."""
    drafted = 0
    for begin in (1, 31, 61):
        prompt = torch.arange(begin, begin + 30).repeat(2)[None]
        own = set(prompt[0].tolist())

        def check(event, own=own):
            nonlocal drafted
            assert set(event.drafted) <= own
            drafted += len(event.drafted)
            own.update(event.verdict.emitted)

        wrapped.speculator_of(model).on_step = check
        model.generate(prompt, **GREEDY)
    assert drafted > 30


def test_a_class_with_a_generate_of_its_own_is_left_to_it(plain, wrapped_folder, caplog):
    class Own(type(plain)):
        def generate(self, *args, **kwargs):
            return "own", args, kwargs

    model = Own.from_pretrained(wrapped_folder, trust_remote_code=True)
    assert model.generate(1, streamer=2) == ("own", (1,), {"streamer": 2})
    assert "Own has a generate of its own" in caplog.text


# Its settings


def test_the_settings_are_read_when_the_model_first_generates(folder, tmp_path):
    settings = {"drafter": "copy(min_match=3)", "gamma": 5, "gamma_max": 7, "policy": "priority"}
    wrap(folder, tmp_path / "tiny", settings | SETTINGS)
    stored = Speculator(**settings, **SETTINGS).to_dict()
    assert wrapped.speculator_of(load(tmp_path / "tiny")).to_dict() == stored
    path = tmp_path / "tiny/custom_generate/ngramspec.json"
    path.write_text('{"drafter": "ngram", "gamma": 2}')
    edited = wrapped.speculator_of(load(tmp_path / "tiny"))
    assert edited.to_dict() == Speculator("ngram", 2, unsupported="plain").to_dict()


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


@pytest.mark.parametrize("level", ["info", "loud"])
def test_the_log_can_be_asked_for(wrapped_folder, level):
    code = (
        "import sys, torch; from transformers import AutoModelForCausalLM as A\n"
        "model = A.from_pretrained(sys.argv[1], trust_remote_code=True)\n"
        "model.generate(torch.tensor([[5, 6, 5, 6]]), max_new_tokens=9, do_sample=False)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(wrapped_folder)],
        env=os.environ | {"NGRAMSPEC_LOG": level, "PYTHONPATH": checkout()},
        capture_output=True,
        text=True,
    )
    if level == "info":
        assert re.search(r"ngramspec: 8 tokens in \d target calls", done.stderr)
    else:
        assert re.search(r"NGRAMSPEC_LOG must be one of .*INFO.*, got LOUD", done.stderr)


def checkout():
    return str(Path(ngramspec.__file__).parent.parent)


# What is written


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
    with pytest.raises(ValueError, match=r"OUT_DIR: .*00002\.safetensors is none of MODEL_DIR's"):
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
        with pytest.raises(ValueError, match="OUT_DIR: .* neither in MODEL_DIR nor around it"):
            wrap(folder, out, SETTINGS, force=True)
    (tmp_path / "file").write_text("")
    with pytest.raises(ValueError, match="OUT_DIR: .* is a file"):
        wrap(folder, tmp_path / "file", SETTINGS)
    assert snapshot(folder) == before


REFUSED = {
    "is no folder": (None, "there is no folder"),
    "nothing": ({}, "holds no weights"),
    "no config": ({WEIGHTS: ""}, "holds no config.json"),
    "gguf": ({"model.gguf": ""}, "GGUF files only.* save the model as safetensors"),
    "adapter": ({"adapter_config.json": "{}", "adapter_model.safetensors": ""}, "an adapter"),
    "torn config": ({WEIGHTS: "", "config.json": "{"}, r"config\.json is not JSON: "),
    "odd config": ({WEIGHTS: "", "config.json": "[]"}, "must hold an object, got list"),
    "generate of its own": (
        {WEIGHTS: "", "config.json": "{}", "custom_generate/generate.py": ""},
        "has a custom_generate of its own",
    ),
    "recurrent": (
        {WEIGHTS: "", "config.json": '{"architectures": ["MambaForCausalLM"]}'},
        "MODEL_DIR: MambaForCausalLM keeps a recurrent state",
    ),
    "no generator": (
        {WEIGHTS: "", "config.json": '{"architectures": ["BertForMaskedLM"]}'},
        "BertForMaskedLM generates no text",
    ),
    "overriding": (
        {WEIGHTS: "", "config.json": '{"architectures": ["MusicgenForConditionalGeneration"]}'},
        "MusicgenForConditionalGeneration has a generate of its own",
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


# The command


def test_the_command_says_what_it_wrote_and_how_to_use_it(folder, tmp_path, capsys):
    out = tmp_path / "a model"
    arguments = ["--gamma", "3", "--gamma-max", "9", "--drafter", "copy", "--policy", "priority"]
    assert exit_code(["wrap", str(folder), str(out), *arguments]) == 0
    printed = capsys.readouterr().out
    assert f"{out}: LlamaForCausalLM, speculative\n" in printed
    assert "1 file, 101 kB, hard links" in printed
    assert f"AutoModelForCausalLM.from_pretrained('{out}', trust_remote_code=True)" in printed
    assert f"transformers serve '{out}' --trust-remote-code" in printed
    assert json.loads((out / "custom_generate/ngramspec.json").read_text()) == {
        "drafter": "copy",
        "gamma": 3,
        "gamma_max": 9,
        "policy": "priority",
        "unsupported": "plain",
    }
    assert exit_code(["wrap", str(folder), str(tmp_path / "b"), "--copy"]) == 0
    assert "1 file, 101 kB, copies" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["{in}"], "the following arguments are required: OUT_DIR"),
        (["{in}", "{out}", "--gamma", "0"], "gamma must be in 1..64, got 0"),
        (["{in}", "{out}", "--gamma", "65"], "gamma must be in 1..64, got 65"),
        (["{in}", "{out}", "--gamma-max", "5000"], "gamma_max must be in 1..4096, got 5000"),
        (["{in}", "{out}", "--drafter", "parrot"], "'parrot' is no drafter's name"),
        (["{in}", "{out}", "--policy", "luck"], "policy must be one of value, priority, got"),
        (["./nowhere", "{out}"], "MODEL_DIR: there is no folder nowhere"),
        (["{in}", "{in}"], "OUT_DIR: "),
        (["{in}", "/proc/out"], "cannot read or write /proc/out: No such file or directory"),
    ],
)
def test_bad_arguments_are_one_line(folder, tmp_path, arguments, message, capsys):
    places = {"in": folder, "out": tmp_path / "out"}
    assert exit_code(["wrap", *(each.format(**places) for each in arguments)]) == 2
    output = capsys.readouterr()
    assert message in output.err
    assert output.err.count("\n") == 1
    assert output.out == ""
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("size", "text"),
    [(0, "0 B"), (999, "999 B"), (1000, "1.0 kB"), (123_456, "123 kB"), (2.5e9, "2.5 GB")],
)
def test_sizes(size, text):
    assert group_line(Group(2, int(size))) == f"2 files, {text}"


# A real server


@pytest.fixture(scope="module")
def real_folder(smollm2, tmp_path_factory):
    """SmolLM2 as a folder of safetensors, which a model loaded from GGUF does not save itself as.

    Its dequantised weights go into a model whose config says nothing of GGUF.
    """
    path = tmp_path_factory.mktemp("real") / "smollm2"
    config = copy.deepcopy(smollm2.model.config)
    del config.quantization_config
    model = type(smollm2.model)(config)
    model.load_state_dict(smollm2.model.state_dict())
    model.generation_config = smollm2.model.generation_config
    model.save_pretrained(path)
    smollm2.tokenizer.save_pretrained(path)
    yield path
    shutil.rmtree(path)  # half a gigabyte


@pytest.fixture(scope="module")
def server(real_folder, tmp_path_factory):
    """``transformers serve`` of the wrapped folder: its address, its model, and its log file."""
    pytest.importorskip("fastapi")
    pytest.importorskip("uvicorn")
    pytest.importorskip("openai")
    out = tmp_path_factory.mktemp("served") / "smollm2"
    wrap(real_folder, out, SETTINGS)
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    command = Path(sys.executable).with_name("transformers")
    options = ["--trust-remote-code", "--device", "cpu", "--port", str(port)]
    environment = {"NGRAMSPEC_LOG": "info", "PYTHONPATH": checkout()}
    log = tmp_path_factory.mktemp("log") / "serve.log"
    with log.open("w") as file:
        process = subprocess.Popen(
            [command, "serve", out, *options],
            env=os.environ | environment,
            stdout=file,
            stderr=subprocess.STDOUT,
        )
    try:
        wait_for(f"http://localhost:{port}/health", process, log)
        yield f"http://localhost:{port}/v1", str(out), log
    finally:
        process.terminate()
        process.wait(30)
        shutil.rmtree(out)  # its weights are links: they hold the space too


def wait_for(address, process, log):
    for _ in range(240):
        assert process.poll() is None, log.read_text()
        try:
            urllib.request.urlopen(address).close()
            return
        except urllib.error.URLError:
            time.sleep(0.5)
    raise AssertionError(f"no answer: {log.read_text()}")


@pytest.mark.slow
def test_transformers_serve_speculates_and_says_what_plain_generate_says(smollm2, server):
    import openai

    address, model, log = server
    client = openai.OpenAI(base_url=address, api_key="none")

    def ask(prompt, **settings):
        messages = [{"role": "user", "content": prompt}]
        return client.chat.completions.create(
            model=model, messages=messages, temperature=0, **settings
        )

    def streamed(prompt, **settings):
        chunks = [chunk.choices[0] for chunk in ask(prompt, stream=True, **settings)]
        return [chunk.delta.content for chunk in chunks if chunk.delta.content]

    def plainly(prompt, **settings):
        ids = smollm2.encode(prompt)
        out = smollm2.model.generate(**ids, **settings)[0, ids["input_ids"].shape[1] :]
        return out, smollm2.tokenizer.decode(out, skip_special_tokens=True)

    for prompt in PROMPTS[:6]:
        tokens, text = plainly(prompt, max_new_tokens=48, do_sample=False)
        answer = ask(prompt, max_tokens=48)
        assert answer.choices[0].message.content == text
        assert answer.usage.completion_tokens == len(tokens)
        pieces = streamed(prompt, max_tokens=48)
        assert "".join(pieces) == text
        assert len(pieces) > len(tokens) / 2
    counts = re.findall(r"ngramspec: (\d+) tokens in (\d+) target calls", log.read_text())
    assert len(counts) == 12
    emitted, calls = (sum(map(int, column)) for column in zip(*counts, strict=True))
    assert emitted / calls > 1.5, "hardly speculative"

    word = text.split()[5]
    stopped = ask(prompt, max_tokens=48, stop=[word]).choices[0]
    assert stopped.finish_reason == "stop"
    assert stopped.message.content == text[: text.index(word) + len(word)]

    sampling = {"do_sample": True, "temperature": 0.9, "max_new_tokens": 24}
    torch.manual_seed(5)
    _, sampled = plainly(prompt, **sampling)
    body = {"generation_config": json.dumps({"do_sample": True, "max_new_tokens": 24}), "seed": 5}
    settings = {"model": model, "temperature": 0.9, "extra_body": body}
    message = [{"role": "user", "content": prompt}]
    answer = client.chat.completions.create(messages=message, **settings)
    assert answer.choices[0].message.content == sampled

    beams = {"generation_config": json.dumps({"num_beams": 2, "max_new_tokens": 12})}
    _, text = plainly(prompt, num_beams=2, max_new_tokens=12, do_sample=False)
    assert ask(prompt, extra_body=beams).choices[0].message.content == text
    assert "decoding without speculation: num_beams=2" in log.read_text()

    with ask("Write a long story.", max_tokens=400, stream=True) as abandoned:
        next(iter(abandoned))
    _, text = plainly(PROMPTS[1], max_new_tokens=16, do_sample=False)
    assert ask(PROMPTS[1], max_tokens=16).choices[0].message.content == text
