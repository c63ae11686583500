"""A model that drafts: what its forwards are given, and its cache."""

from __future__ import annotations

import pytest
import torch
import transformers
from conftest import tiny_llama
from families import VOCAB, build
from plain_text import PROMPT

import ngramspec
from ngramspec import Speculator
from ngramspec.drafters import ModelDrafter
from ngramspec.hf_model.assistants import AssistantModel, check_rollback
from ngramspec.hf_model.compat.kernels import can_pack, pack_linear_layers

GREEDY = {"do_sample": False, "max_new_tokens": 20, "pad_token_id": 0}


def qwen2_vl():
    """A tiny random Qwen2-VL, whose model keeps the positions of its last ``generate``."""
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
    vision = {"depth": 1, "embed_dim": 32, "hidden_size": 32, "num_heads": 2}
    text = sizes | {
        "vocab_size": VOCAB,
        "intermediate_size": 64,
        "num_key_value_heads": 2,
        "initializer_range": 0.3,
        "bos_token_id": 1,
        "eos_token_id": None,
        "rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [1, 1, 2]},
    }
    torch.manual_seed(0)
    config = transformers.Qwen2VLConfig(text_config=text, vision_config=vision)
    return transformers.Qwen2VLForConditionalGeneration(config).eval()


@pytest.mark.parametrize("itself", [True, False])
def test_an_assistant_that_generated_a_batch_drafts_for_each_row(itself):
    target, prompts = qwen2_vl(), PROMPT.repeat(2, 1)
    assistant = target if itself else qwen2_vl()
    plain = target.generate(prompts, **GREEDY)
    assistant.generate(prompts, **GREEDY)
    speculator = Speculator("none", gamma=4)
    ours = ngramspec.generate(
        target, prompts, assistant_model=assistant, speculator=speculator, **GREEDY
    )
    assert ours.tolist() == plain.tolist()
    assert speculator.stats.drafter_faults == 0
    assert speculator.stats.sources["model"].accepted > 20


@pytest.mark.every(4)
@pytest.mark.parametrize(
    "family", ["mistral sliding", "gemma2 hybrid", "gpt-oss hybrid", "llama4 (chunks)"]
)
@pytest.mark.parametrize("tables", [True, False])
def test_an_assistant_with_windows_drafts_what_it_would_say(family, tables):
    """Beyond the window of 12 tokens, and after drafts were rejected."""
    target, other = build(family), build("llama")
    itself = Speculator(ModelDrafter(target, threshold=1e-9, tables=tables), gamma=4)
    plain = target.generate(PROMPT, **GREEDY | {"max_new_tokens": 50})
    given = {"speculator": itself, **GREEDY, "max_new_tokens": 50}
    assert ngramspec.generate(target, PROMPT, **given).tolist() == plain.tolist()
    assert itself.stats.accepted == itself.stats.drafted > 30
    check_rollback(target)
    session = AssistantModel(target)
    text = plain[0, :40]
    with torch.no_grad():
        expected = target(text[None]).logits[0]
    session.forward(text[:30], 1)
    for length, more in ((30, 5), (20, 3), (21, 10), (12, 28)):
        session.truncate(length)
        wrong = (text[length : length + more] + 1) % VOCAB
        session.forward(wrong, 1)
        session.truncate(length)
        rows = session.forward(text[length : length + more], more)
        torch.testing.assert_close(rows, expected[length : length + more], atol=1e-4, rtol=1e-3)
    out = ngramspec.generate(other, PROMPT, assistant_model=target, **GREEDY)
    assert out.tolist() == other.generate(PROMPT, **GREEDY).tolist()


class ReadsAWeight(torch.nn.Linear):
    """A layer that multiplies by the weight of another one."""

    def forward(self, states):
        return super().forward(states) + states @ self.other[0].weight.T


needs_packing = pytest.mark.skipif(
    not can_pack(), reason="torch cannot pack bfloat16 weights on this processor"
)


@needs_packing
@pytest.mark.parametrize("tied", [True, False])
def test_packed_layers_compute_the_same_and_release_their_weights(tied):
    model = tiny_llama(tie_word_embeddings=tied, attention_bias=True).bfloat16()
    torch.nn.init.normal_(model.model.layers[0].self_attn.v_proj.bias)
    ids = torch.arange(1, 12)[None]
    with torch.inference_mode():
        before = [model(ids[:, :width]).logits for width in (1, 3, 11)]
        pack_linear_layers(model)
        after = [model(ids[:, :width]).logits for width in (1, 3, 11)]
    for one, other in zip(before, after, strict=True):
        torch.testing.assert_close(one, other, rtol=0.02, atol=0.02)
    layers = [each for each in model.modules() if isinstance(each, torch.nn.Linear)]
    assert all("forward" in vars(each) for each in layers)
    assert [each for each in layers if hasattr(each, "weight")] == [model.lm_head]


@needs_packing
def test_a_model_that_reads_its_weights_itself_is_not_packed():
    model = tiny_llama().bfloat16()
    block = model.model.layers[0].self_attn
    block.o_proj.__class__, block.o_proj.other = ReadsAWeight, [block.q_proj]
    weights = {name: each.clone() for name, each in model.named_parameters()}
    ids = torch.arange(1, 12)[None]
    with torch.inference_mode():
        before = model(ids).logits
        pack_linear_layers(model)
        assert torch.equal(model(ids).logits, before)
    assert not any("forward" in vars(each) for each in model.modules())
    assert {name: each.tolist() for name, each in model.named_parameters()} == {
        name: each.tolist() for name, each in weights.items()
    }


def test_float32_layers_are_not_packed():
    model = tiny_llama()
    pack_linear_layers(model)
    assert all(
        hasattr(each, "weight") for each in (model.lm_head, model.model.layers[0].mlp.up_proj)
    )
    assert "forward" not in vars(model.lm_head)
