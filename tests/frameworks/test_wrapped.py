"""Loading a wrapped folder with LangChain, lm-eval and lighteval; see test_agents.py for others."""

from __future__ import annotations

import pytest
from frameworks.usual_call import tiny

from ngramspec.wrap import wrapped
from ngramspec.wrap.wrapped import FOLDER


def by_langchain(folder):
    loader = pytest.importorskip("langchain_huggingface", reason="make test-frameworks")
    trusted = {"trust_remote_code": True}
    return loader.HuggingFacePipeline.from_model_id(
        folder, task="text-generation", model_kwargs=trusted
    ).pipeline.model


def by_lm_eval(folder):
    loader = pytest.importorskip("lm_eval.models.huggingface", reason="make test-frameworks")
    return loader.HFLM(pretrained=folder, trust_remote_code=True, device="cpu").model


def by_lighteval(folder):
    name = "lighteval.models.transformers.transformers_model"
    loader = pytest.importorskip(name, reason="make test-frameworks")
    config = loader.TransformersModelConfig(
        model_name=folder, trust_remote_code=True, device="cpu", cache_dir=folder
    )
    return loader.TransformersModel(config).model


@pytest.mark.parametrize("load", [by_langchain, by_lm_eval, by_lighteval])
def test_a_folder_that_is_trusted_speculates(load, tmp_path):
    _, tokenizer = tiny(tmp_path / "model")
    wrapped.wrap(tmp_path / "model", tmp_path / "wrapped", {"drafter": "auto", "gamma": 4})
    (tmp_path / "wrapped" / FOLDER / "requirements.txt").unlink()  # a clone may have no version
    model = load(str(tmp_path / "wrapped"))
    inputs = tokenizer("One, two, three. One, two,", return_tensors="pt")
    model.generate(**inputs, max_new_tokens=60, do_sample=False)
    stats = wrapped.speculator_of(model).stats
    assert stats.runs == 1
    assert stats.accepted > 0
