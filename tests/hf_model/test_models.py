"""Every kind of model and cache: greedy float32 text is plain ``generate``'s, whatever drafts."""

from __future__ import annotations

import pytest
import torch
import transformers
from doubles import bushy, half_right, liar, oracle
from families import ENCODER_DECODER, FAMILIES, TREES, VOCAB, build

import ngramspec
from benchmarks import parity, tiny
from benchmarks.harness import padded
from ngramspec import Speculator
from ngramspec.hf_model.compat.package import before

PROMPT = torch.tensor([[5, 6, 7, 8, 5, 6, 7, 9, 5, 6, 11, 12, 5, 6, 7, 8, 5]])
GREEDY = {"do_sample": False, "max_new_tokens": 40}


@pytest.mark.every(4)
@pytest.mark.parametrize("name", FAMILIES)
def test_text_is_plain_generate_s(name):
    model = build(name)
    plain = model.generate(PROMPT, **GREEDY)
    assert len(set(plain[0].tolist())) > 3
    text = plain[0].tolist()
    if name in ENCODER_DECODER:  # drafters read the encoder's input before the decoder's
        text = [0] * PROMPT.shape[1] + text
    right = oracle(text)
    for drafter in (liar(text, VOCAB), half_right(text, VOCAB), "auto", right):
        speculator = Speculator(drafter, 6)
        assert torch.equal(plain, model.generate(PROMPT, custom_generate=speculator, **GREEDY))
        assert speculator.stats.drafter_faults == 0
        assert speculator.stats.drafted > 0 or drafter == "auto"
    assert speculator.stats.alpha == 1.0  # the drafts were really for these positions
    trees = Speculator(bushy(text, VOCAB), 17, tree=17)
    assert torch.equal(plain, model.generate(PROMPT, custom_generate=trees, **GREEDY))
    stats = trees.stats
    assert stats.drafter_faults == 0 or stats.limits
    if name in TREES:
        assert not stats.limits
        assert stats.tokens_per_call > 1.8
        assert stats.drafted > stats.verified > stats.accepted


@pytest.mark.every(6)
@pytest.mark.parametrize("name", ["Exaone4_5_ForConditionalGeneration", "Kosmos2TextForCausalLM"])
@pytest.mark.parametrize("tree", [None, 9])
def test_models_that_prepare_their_inputs_without_positions(name, tree):
    """Exaone 4.5 counts them in the model, Kosmos-2 in its embedding, which hooks replace."""
    kosmos2 = transformers.models.kosmos2.modeling_kosmos2
    model = tiny.build(getattr(transformers, name, None) or getattr(kosmos2, name), seed=4)
    inputs = padded([PROMPT[0].tolist(), [3, 4, 3, 4, 3, 4, 9, 3]])
    plain = model.generate(**inputs, **GREEDY)
    rows = [half_right(row[row != 0].tolist(), VOCAB) for row in plain]
    for drafter in ("auto", *rows):
        speculator = Speculator(drafter, 9, tree=tree, unsupported="plain")
        ours = ngramspec.generate(model, **inputs, speculator=speculator, **GREEDY)
        assert torch.equal(ours, plain)
        assert speculator.stats.drafted > 0


def switch(capacity):
    settings = {"expert_capacity": capacity, "initializer_factor": 3.0}
    config = tiny.small(
        transformers.SwitchTransformersConfig, num_sparse_decoder_layers=2, **settings
    )
    return transformers.SwitchTransformersForConditionalGeneration(config)


def nllb():
    return tiny.build(transformers.NllbMoeForConditionalGeneration)


def int8(name):
    model = build(name)
    kinds = {torch.nn.Linear}
    return torch.ao.quantization.quantize_dynamic(model, kinds, dtype=torch.qint8)


def doge():
    return tiny.build(transformers.DogeForCausalLM)


OLD_DOGE = pytest.mark.skipif(before("5.19"), reason="plain decoding fails in transformers 5.16")
DYNAMIC, STATIC, BEAMS = {}, {"cache_implementation": "static"}, {"num_beams": 2}


@pytest.mark.every(4)
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize(
    ("make", "asked", "rows", "drafts"),
    [
        (lambda: int8("llama"), DYNAMIC, 1, False),
        (lambda: int8("gpt2"), DYNAMIC, 3, False),
        (lambda: int8("llama"), BEAMS, 2, False),
        pytest.param(doge, DYNAMIC, 1, False, marks=OLD_DOGE),
        pytest.param(doge, DYNAMIC, 2, False, marks=OLD_DOGE),
        (lambda: switch(2), DYNAMIC, 1, True),  # no wider than the capacity
        (lambda: switch(2), DYNAMIC, 3, False),
        (lambda: switch(6), DYNAMIC, 3, True),
        (lambda: switch(64), DYNAMIC, 2, True),
        (nllb, DYNAMIC, 2, False),
        (nllb, STATIC, 1, False),
    ],
)
@pytest.mark.parametrize("seed", [4, pytest.param(8, marks=pytest.mark.slow)])
def test_models_whose_forwards_mix_their_positions(make, asked, rows, drafts, seed):
    """Mixed scales or logits, experts that drop tokens, and routers that read masks."""
    torch.manual_seed(seed)
    model = make().eval()
    model.generation_config.update(
        eos_token_id=None, forced_eos_token_id=None, pad_token_id=0, decoder_start_token_id=2
    )
    inputs = padded([[5, 6, 7, 8, 5, 6, 7, 9, 5, 6], [3, 4, 3, 4, 3], [8, 7, 9, 9]][:rows])
    plain = model.generate(**inputs, **GREEDY, **asked)
    for each in model.modules():
        if hasattr(each, "router_ignore_padding_tokens"):
            each.expert_capacity = 99  # as NLLB-MoE's is after a forward over many tokens
    drafter = parity.HalfRight(plain[:, -40:].tolist())
    drafted = 0
    for gamma, tree in ((6, None), (9, 9)):
        speculator = Speculator(drafter, gamma, tree=tree)
        ours = ngramspec.generate(model, **inputs, speculator=speculator, **GREEDY, **asked)
        assert torch.equal(ours, plain)
        drafted += speculator.stats.drafted
    assert (drafted > 0) == drafts


def test_a_model_that_masks_several_tokens_only_has_no_drafts_with_a_decoders_mask():
    torch.manual_seed(2)
    config = tiny.small(transformers.LEDConfig, attention_window=4, init_std=0.3)
    model = transformers.LEDForConditionalGeneration(config).eval()
    model.generation_config.update(eos_token_id=None, forced_eos_token_id=None, pad_token_id=1)
    inputs = {
        "input_ids": torch.tensor([[5, 6, 7, 8, 5, 6, 7, 9, 5, 6, 7, 8]]),
        "decoder_input_ids": torch.tensor([[2, 7, 8, 9, 7, 8]]),
    }
    for mask, drafts in ((None, True), (torch.tensor([[1, 0, 0, 1, 1, 1]]), False)):
        kwargs = GREEDY | inputs | {"decoder_attention_mask": mask}
        plain = model.generate(**kwargs)
        speculator = Speculator(parity.HalfRight(plain.tolist()), 6)
        assert torch.equal(ngramspec.generate(model, speculator=speculator, **kwargs), plain)
        assert (speculator.stats.drafted > 0) == drafts


def test_an_encoder_and_a_decoder_of_two_vocabularies():
    """The prompt is the decoder's: its ids may lie beyond those of the encoder."""
    from transformers import BertConfig, EncoderDecoderConfig, EncoderDecoderModel, GPT2Config

    torch.manual_seed(0)
    encoder = BertConfig(
        vocab_size=20,
        hidden_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=32,
    )
    decoder = GPT2Config(vocab_size=VOCAB, n_embd=32, n_layer=2, n_head=2, add_cross_attention=True)
    model = EncoderDecoderModel(EncoderDecoderConfig.from_encoder_decoder_configs(encoder, decoder))
    kwargs = GREEDY | {"decoder_start_token_id": 40, "pad_token_id": 0, "eos_token_id": None}
    kwargs["attention_mask"] = torch.ones_like(PROMPT)
    plain = model.eval().generate(PROMPT, **kwargs)
    assert int(plain[0, 0]) == 40
    speculator = Speculator("copy(min_match=1)", 4)
    assert torch.equal(plain, model.generate(PROMPT, custom_generate=speculator, **kwargs))
    kwargs["decoder_start_token_id"] = VOCAB
    with pytest.raises(ValueError, match=rf"input_ids must lie in 0\.\.{VOCAB - 1}, got {VOCAB}"):
        model.generate(PROMPT, custom_generate=speculator, **kwargs)
