"""transformers' ``quantization_config``: the model object is what ``from_pretrained`` returns."""

from __future__ import annotations

import pytest
import torch
from any_model import tiny_chat
from conftest import tiny_llama
from frameworks.usual_call import check
from transformers import AutoModelForCausalLM, BitsAndBytesConfig, QuantoConfig, TorchAoConfig

import ngramspec
from ngramspec.stats import NO_DRAFTS

PROMPTS = ["One, two, three. One, two,", "abcabcabcab"]
# bitsandbytes packs blocks of 32 rows and of 64 columns of 4-bit weights on some CPUs.
SIZES = {"hidden_size": 64, "intermediate_size": 128}


def loaded(folder, config):
    """A folder's quantized model, and its usual call with each prompt."""
    tiny_llama(**SIZES).save_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(
        folder, dtype="float32", quantization_config=config
    )
    assert model.hf_quantizer is not None
    _, tokenizer = tiny_chat()
    inputs = [tokenizer(each, return_tensors="pt") for each in PROMPTS]

    def call():
        return [
            model.generate(**each, max_new_tokens=24, do_sample=False).tolist() for each in inputs
        ]

    return model, call


def test_bitsandbytes_int8_without_outliers(tmp_path):
    pytest.importorskip("bitsandbytes", reason="make test-frameworks")
    config = BitsAndBytesConfig(load_in_8bit=True, llm_int8_threshold=0.0)
    check(*loaded(tmp_path, config))


def test_bitsandbytes_int8_with_outliers_has_no_drafts(tmp_path):
    """The columns that are not quantized depend on all positions of a forward."""
    pytest.importorskip("bitsandbytes", reason="make test-frameworks")
    model, call = loaded(tmp_path, BitsAndBytesConfig(load_in_8bit=True))
    plain = call()
    with ngramspec.enable(model) as handle:
        assert call() == plain
    assert handle.stats.drafted == 0
    assert [each.partition(":")[0] for each in handle.stats.limits] == [NO_DRAFTS]


@pytest.mark.parametrize("kind", ["fp4", "nf4"])
def test_bitsandbytes_4_bits(tmp_path, kind):
    pytest.importorskip("bitsandbytes", reason="make test-frameworks")
    config = BitsAndBytesConfig(
        load_in_4bit=True, bnb_4bit_quant_type=kind, bnb_4bit_compute_dtype=torch.float32
    )
    check(*loaded(tmp_path, config))


@pytest.mark.parametrize("weights", ["int8", "int4"])
def test_quanto(tmp_path, weights):
    pytest.importorskip("optimum.quanto", reason="make test-frameworks")
    check(*loaded(tmp_path, QuantoConfig(weights=weights)))


def test_torchao_int8_weights(tmp_path):
    torchao = pytest.importorskip("torchao.quantization", reason="make test-frameworks")
    check(*loaded(tmp_path, TorchAoConfig(torchao.Int8WeightOnlyConfig())))


def test_torchao_int8_weights_and_activations(tmp_path):
    torchao = pytest.importorskip("torchao.quantization", reason="make test-frameworks")
    config = TorchAoConfig(torchao.Int8DynamicActivationInt8WeightConfig())
    check(*loaded(tmp_path, config))
