"""Linear layers with packed weights: what they compute, and when a model keeps its own."""

from __future__ import annotations

import pytest
import torch
from conftest import tiny_llama

from ngramspec.hf_model.compat.packed import can_pack, pack_linear_layers


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
