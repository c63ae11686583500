"""A model that drafts: what its forwards are given, and its cache."""

from __future__ import annotations

import pytest
import torch
import transformers
from families import VOCAB, build

import ngramspec
from ngramspec import Speculator
from ngramspec.drafters import ModelDrafter
from ngramspec.hf_model.assistants import AssistantModel, check_rollback

PROMPT = torch.tensor([[5, 6, 7, 8, 5, 6, 7, 9, 5, 6]])
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
