"""Loading models, the text and times of one both ways, and what is read off the machine."""

from __future__ import annotations

import gc
import os
import sys
from pathlib import Path
from typing import Any

import gguf
import gguf_file
import pytest
import torch
from byte_model import ByteTokenizer, tiny_model

from ngramspec.hf_model.compat.caches import cache_of
from ngramspec.measure import models
from ngramspec.measure.calls import difference
from ngramspec.measure.forwards import forward_seconds
from ngramspec.measure.machine import PeakMemory, machine
from ngramspec.server.prompts import FillInTheMiddle, TextEncoder, family_of


@pytest.mark.parametrize("alone", [True, False])
@pytest.mark.parametrize("in_gguf", [True, False])
def test_only_a_command_s_gguf_file_switches_the_hub_off(in_gguf, alone, tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "0")
    source = models.ModelSource(str(tmp_path), "x", {"gguf_file": "x.gguf"} if in_gguf else {})
    monkeypatch.setattr(models, "locate", lambda model: source)
    with pytest.raises(ValueError, match="cannot load the model x"):
        models.load(None, "float32", on_stage=str, alone=alone)
    assert os.environ["HF_HUB_OFFLINE"] == ("1" if in_gguf and alone else "0")


@pytest.mark.parametrize("alone", [True, False])
def test_only_a_command_replaces_stderr_and_the_reader_of_gguf_files(alone, tmp_path):
    gguf_file.write(tmp_path / "tiny.gguf")
    before, seen = (sys.stderr, gguf.GGUFReader), []

    def stage(_):
        seen.append((sys.stderr is before[0], gguf.GGUFReader is before[1]))

    models.load(str(tmp_path), "float32", on_stage=stage, alone=alone)
    assert set(seen[1:]) == {(not alone, not alone)}
    assert (sys.stderr, gguf.GGUFReader) == before


@pytest.mark.parametrize("folder", [True, False])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_gguf_file_is_loaded_in_the_dtype_and_says_what_it_needs(
    folder, dtype, tmp_path, monkeypatch, capfd
):
    tensors = gguf_file.write(tmp_path / "tiny.gguf")
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "tiny.gguf").write_text("another file of this name, in the working directory")
    monkeypatch.chdir(elsewhere)
    loaded = models.load(str(tmp_path if folder else tmp_path / "tiny.gguf"), dtype)
    assert loaded.name == (tmp_path.name if folder else "tiny")
    kind = getattr(torch, dtype)
    for name, part in {
        "token_embd.weight": loaded.model.get_input_embeddings(),
        "blk.0.ffn_down.weight": loaded.model.model.layers[0].mlp.down_proj,
    }.items():
        assert torch.equal(part.weight, torch.from_numpy(tensors[name]).to(kind))
    error = capfd.readouterr().err
    weights = sum(each.size for each in tensors.values()) * kind.itemsize
    assert error.startswith(f"{loaded.name}: {weights / 1e9:.1f} GB of weights, up to ")
    assert f"while they load ({dtype})" in error
    assert "100%" in error  # of transformers' progress bar


def test_the_tokenizer_of_a_gguf_file_has_its_template_and_its_special_tokens(tmp_path, capfd):
    gguf_file.write(tmp_path / "tiny.gguf")
    stages: list[str] = []
    loaded = models.load(str(tmp_path), "float32", on_stage=stages.append, alone=True)
    assert [stage for stage in stages if stage in models.STAGES] == [*models.STAGES]
    assert any(" GB of weights" in stage for stage in stages)
    assert capfd.readouterr().err == ""
    assert loaded.encode("abc", chat=True) == loaded.tokenizer("abc")["input_ids"]
    assert loaded.tokenizer.decode(loaded.eos_ids) == "<|im_end|>"
    fim = FillInTheMiddle(family_of(loaded.tokenizer), TextEncoder(loaded.tokenizer))
    asked = "<|fim_prefix|>a<|fim_suffix|>c<|fim_middle|>"
    assert loaded.tokenizer.decode(fim.prompt("a", "c")) == asked
    assert "<|endoftext|>" in loaded.tokenizer.decode(fim.ends)


def test_a_folder_with_safetensors_is_not_read_from_its_gguf_file(tmp_path):
    for name in ("model.gguf", "model.safetensors"):
        (tmp_path / name).touch()
    assert models.locate(str(tmp_path)) == models.ModelSource(str(tmp_path), tmp_path.name)


def _truncated(path: Path) -> None:
    gguf_file.write(path)
    path.write_bytes(path.read_bytes()[:-1000])


def _split(path: Path) -> None:
    def change(writer: Any) -> None:
        writer.add_uint16("split.no", 1)
        writer.add_uint16("split.count", 3)

    gguf_file.write(path, change)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda path: path.write_bytes(b"PK\3\4"), r"is no GGUF file: it begins with b'PK"),
        (_truncated, "x.gguf: it is broken or incomplete: "),
        (_split, "x.gguf: it is part 2 of 3 of a split file; merge them with"),
        (lambda path: gguf_file.write(path, kind="bert"), "x.gguf: .*architecture bert"),
        (lambda path: None, "there is no folder or file .*x.gguf"),
    ],
    ids=["another kind", "incomplete", "split", "unknown architecture", "missing"],
)
def test_a_file_that_cannot_be_loaded_is_refused_by_name(make, message, tmp_path):
    make(tmp_path / "x.gguf")
    with pytest.raises((ValueError, FileNotFoundError), match=message):
        models.load(str(tmp_path / "x.gguf"), "float32", on_stage=str)


def test_a_folder_of_several_gguf_files_is_refused_with_their_names(tmp_path):
    for name in ("a.gguf", "b.gguf"):
        gguf_file.write(tmp_path / name)
    with pytest.raises(ValueError, match=r"2 GGUF files, give one of them: a\.gguf, b\.gguf"):
        models.locate(str(tmp_path))


def test_packages_that_read_gguf_files_are_named_if_they_are_missing(tmp_path, monkeypatch):
    gguf_file.write(tmp_path / "x.gguf")
    monkeypatch.setattr("ngramspec.errors.find_spec", lambda name: None)
    with pytest.raises(ModuleNotFoundError, match=r"^gguf, accelerate are .* gguf accelerate$"):
        models.locate(str(tmp_path / "x.gguf"))


def test_set_dtype_converts_parameters_and_leaves_buffers():
    model = tiny_model()
    buffers = {name: buffer.clone() for name, buffer in model.named_buffers()}
    assert buffers
    models.set_dtype(model, torch.bfloat16)
    assert {parameter.dtype for parameter in model.parameters()} == {torch.bfloat16}
    assert model.dtype == model.config.dtype == torch.bfloat16
    for name, buffer in model.named_buffers():
        assert torch.equal(buffer, buffers[name])


def test_the_difference_counts_ulps_of_one_plain_forward():
    tiny = models.LoadedModel(tiny_model(), ByteTokenizer(), "tiny")
    ids = tiny.encode("one two one", chat=True)
    plain = tiny.model.generate(torch.tensor([ids]), max_new_tokens=8)[0, len(ids) :].tolist()
    other = [*plain[:3], plain[3] ^ 1, *plain[4:]]
    found = difference(tiny, ids, plain, other)
    with torch.no_grad():
        logits = tiny.model(torch.tensor([ids + plain[:3]])).logits[0, -1]
    best, second = logits.sort(descending=True).values[:2].tolist()
    step = torch.finfo(torch.float32).eps * 2.0 ** torch.tensor(second).abs().log2().floor()
    assert found.token == 4
    assert found.ulps == pytest.approx((best - second) / float(step), rel=1.01)


def test_forwards_are_timed_behind_their_context(tiny, monkeypatch):
    """On a clock that only forwards move, by a second for each position."""
    lengths = []
    clock = [0.0]
    plain = type(tiny).forward

    def noted(self, *args, **kwargs):
        width = kwargs["input_ids"].shape[1]
        lengths.append((width, cache_of(kwargs).get_seq_length()))
        clock[0] += width
        return plain(self, *args, **kwargs)

    monkeypatch.setattr(type(tiny), "forward", noted)
    monkeypatch.setattr("ngramspec.measure.forwards.perf_counter", lambda: clock[0])
    assert forward_seconds(tiny, 50, [3, 1, 3], repeats=2) == {1: 1.0, 3: 3.0}
    assert lengths == [(50, 0)] + [(1, 50), (3, 50)] * 3


def test_memory_is_the_peak_since_it_was_reset():
    memory = PeakMemory(torch.device("cpu"))
    gc.collect()  # or what tests before left might be freed in between
    memory.reset()
    before = memory.read()
    if before is None:
        pytest.skip("the system cannot set the high-water mark back")
    torch.ones(256 << 20, dtype=torch.uint8)
    assert 150e6 < memory.read() - before < 350e6
    memory.reset()
    assert memory.read() < before + 30e6
    installed = machine()["packages"]["torch"]  # without the build, such as +cu130, in some wheels
    assert torch.__version__.startswith(installed)
