"""What is refused, by name and with a remedy that works; and what looks as if it had to be."""

from __future__ import annotations

import pytest
import torch
import transformers
from conftest import tiny_llama
from doubles import half_right
from families import SEQ2SEQ, SIZES, build
from layer_states import assert_same_cache
from plain_text import PROMPT as IDS
from plain_text import same_text

import ngramspec
from benchmarks import tiny as tiny_models
from ngramspec import Speculator, UnsupportedError
from ngramspec.hf_model.compat.caches import cache_of
from ngramspec.hf_model.compat.package import PLACES_TOKENS, before, has

GREEDY = {"do_sample": False, "max_new_tokens": 30}


def model_of(kind, config, attention=None, **settings):
    torch.manual_seed(7)
    made = getattr(transformers, config)(**settings, attn_implementation=attention)
    model = getattr(transformers, kind)(made).eval()
    model.generation_config.update(eos_token_id=None, forced_eos_token_id=None, pad_token_id=0)
    return model


def falcon(attention):
    sizes = {name: value for name, value in SIZES.items() if name != "head_dim"}
    return model_of("FalconForCausalLM", "FalconConfig", attention, **sizes)


def led():
    sizes = {
        "attention_window": 8,
        "max_encoder_position_embeddings": 128,
        "max_decoder_position_embeddings": 128,
    }
    return model_of("LEDForConditionalGeneration", "LEDConfig", **(SEQ2SEQ | sizes))


def git():
    return model_of("GitForCausalLM", "GitConfig", "eager", **SIZES)


@pytest.mark.parametrize("make", [lambda: build("gpt-neo (windows)"), git], ids=["gpt-neo", "git"])
def test_no_fixed_width_where_tokens_are_found_by_their_slot(make):
    if make is git and not has(PLACES_TOKENS):
        pytest.skip("GIT verifies no draft before transformers 5.19")
    model = make()
    model.set_attn_implementation("eager")
    with pytest.raises(UnsupportedError, match=r"width=8 .* finds tokens by their slots"):
        ngramspec.generate(model, IDS, speculator=Speculator(width=8), **GREEDY)


@pytest.mark.parametrize("make", [lambda: build("gpt-neo (windows)"), led], ids=["gpt-neo", "led"])
def test_static_caches_under_which_plain_decoding_differs(make):
    model = make()
    static = {"cache_implementation": "static"}
    with pytest.raises(
        UnsupportedError, match=r"static cache, with .*; remove cache_implementation"
    ):
        ngramspec.generate(model, IDS, **static, **GREEDY)
    same_text(model, Speculator(), IDS, **GREEDY)


@pytest.mark.parametrize(
    ("make", "what"),
    [
        (lambda: build("mistral sliding"), "sliding-window attention"),
        (lambda: falcon("sdpa"), "under sdpa, with which the model attends differently"),
    ],
    ids=["windows", "falcon"],
)
def test_attentions_that_cannot_be_had_token_by_token(make, what):
    model = make()
    asked = GREEDY | {"return_dict_in_generate": True, "output_attentions": True}
    with pytest.raises(UnsupportedError, match=rf"{what}.*output_attentions=False"):
        ngramspec.generate(model, IDS, **asked)
    plain = model.generate(IDS, **(asked | {"output_attentions": False}))
    ours = ngramspec.generate(model, IDS, **(asked | {"output_attentions": False}))
    assert ours.sequences.tolist() == plain.sequences.tolist()


@pytest.mark.every(6)
@pytest.mark.parametrize("beams", [1, 2])
@pytest.mark.parametrize(
    ("name", "every"), [("llama", 1), ("gemma2 hybrid", 2), ("bart", 1), ("t5", 1)]
)
def test_gradient_checkpointing_in_training_mode_is_refused_before_the_first_token(
    name, every, beams
):
    """As it is after a training step; some versions of transformers then pass layers no cache."""
    model = build(name).train()
    model.gradient_checkpointing_enable()
    for at, layer in enumerate(each for each in model.modules() if hasattr(each, "self_attn")):
        layer.gradient_checkpointing &= at % every == 0
    for module in model.modules():
        rates = [key for key, value in vars(module).items() if isinstance(value, float)]
        vars(module).update({key: 0.0 for key in rates if "drop" in key or key == "p"})
    asked = GREEDY | {"num_beams": beams}
    if before("5.24"):
        speculator = Speculator(gamma=4)
        with pytest.raises(UnsupportedError, match=r"gradient checkpointing.*call model\.eval"):
            ngramspec.generate(model, IDS, speculator=speculator, **asked)
        assert speculator.stats.emitted == 0
    same_text(model, Speculator(gamma=4, unsupported="plain"), IDS, **asked)
    same_text(model.eval(), Speculator(), IDS, **asked)


def test_a_recurrent_model_refused_in_training_mode_speculates_in_evaluation_mode():
    model = tiny_models.build(transformers.Qwen3NextForCausalLM).train()
    model.gradient_checkpointing_enable()
    if before("5.24"):
        with pytest.raises(UnsupportedError, match="its recurrent state is not in its cache"):
            ngramspec.generate(model, IDS, **GREEDY)
    same_text(model.eval(), Speculator(), IDS, **GREEDY)


@pytest.mark.parametrize("rows", [1, 2])
def test_criteria_that_answer_in_a_column(rows):
    def column(ids, scores, **kwargs):
        return torch.full((len(ids), 1), ids.shape[1] >= 22)

    model, ids = tiny_llama(), IDS.expand(rows, -1)
    ours = ngramspec.generate(model, ids, stopping_criteria=[column], **GREEDY)
    assert ours.tolist() == model.generate(ids, do_sample=False, max_new_tokens=12).tolist()
    if rows == 1:  # for which plain decoding takes it, too
        plain = model.generate(ids, stopping_criteria=[column], **GREEDY)
        assert ours.tolist() == plain.tolist()


def test_criteria_that_answer_for_other_rows_are_refused():
    def three(ids, scores, **kwargs):
        return torch.zeros(3, dtype=torch.bool)

    with pytest.raises(ValueError, match=r"must answer for 2 rows, got shape \(3,\)"):
        ngramspec.generate(tiny_llama(), IDS.expand(2, -1), stopping_criteria=[three], **GREEDY)


def test_a_loop_that_reads_other_states_for_earlier_forwards_is_refused():
    """With "last_loop", a wider forward gives other states; "per_loop" has a cache per loop."""
    dory = pytest.importorskip("transformers.models.dory").DoryForCausalLM
    model = tiny_models.build(dory)
    plain = model.generate(IDS, **GREEDY)
    speculator = Speculator(half_right(plain[0].tolist(), tiny_models.VOCAB), 4)
    assert torch.equal(model.generate(IDS, custom_generate=speculator, **GREEDY), plain)
    assert speculator.stats.accepted
    model.config.recurrent_kv_cache_mode = "last_loop"
    with pytest.raises(UnsupportedError, match="recurrent_kv_cache_mode='per_loop'"):
        model.generate(IDS, custom_generate=Speculator(), **GREEDY)


def test_an_index_of_a_layer_that_shares_its_keys(monkeypatch):
    """Such a layer of Mistral Large 4 stores an index and no keys; another one stores nothing."""
    folder = pytest.importorskip("transformers.models.mistral_large4")
    own = {
        "num_hidden_layers": 5, "layer_types": ["indexed_attention"] * 5, "index_head_dim": 8,
        "kv_source_layers": [0, 1, 0, 1, 1], "no_rope_layers": [1, 0, 1, 0, 0],
        "indexer_types": ["full"] * 4 + ["shared"], "qk_head_dim": 16,
    }  # fmt: skip
    monkeypatch.setitem(tiny_models.ODD, "MistralLarge4TextConfig", own)
    model = tiny_models.build(folder.MistralLarge4ForConditionalGeneration)
    modes = ["store", "store", "reuse_but_indexer", "reuse_but_indexer", "reuse"]
    assert model.config.text_config.kv_sharing_modes == modes
    for beams in (1, 2):
        asked = GREEDY | {"num_beams": beams, "return_dict_in_generate": True}
        plain = model.generate(IDS, **asked)
        drafter = half_right(plain.sequences[0].tolist(), tiny_models.VOCAB)
        speculator = Speculator(drafter, 4)
        ours = model.generate(IDS, custom_generate=speculator, **asked)
        assert torch.equal(ours.sequences, plain.sequences)
        assert speculator.stats.accepted > 0 or beams > 1
        assert_same_cache(cache_of(ours), cache_of(plain))
