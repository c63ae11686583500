"""What the facts about a call rule out, with all reasons, in the order of the table; its limits."""

from __future__ import annotations

import re
import runpy
from dataclasses import fields, replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from conftest import tiny_llama
from transformers import LEDConfig, LlamaConfig, WhisperConfig

from ngramspec.hf_model.cache.kv_cache import KVCache
from ngramspec.hf_model.compat.caches import cache_argument, new_cache
from ngramspec.hf_model.compat.configs import position_limit
from ngramspec.hf_model.compat.resources import PaddingNotice
from ngramspec.hf_model.facts import FACTS, Ability, Facts, facts_of, prompt_end, why_unsupported
from ngramspec.hf_model.masks import Reach, Windows
from ngramspec.hf_model.target import MAX_PREFILL_DRAFT_TOKENS, Target

DOCS = Path(__file__).parents[2] / "docs"
MASK = torch.ones((1, 10), dtype=torch.int64)
IDS = torch.arange(5, 15)[None]
CONFIG = SimpleNamespace(prefill_chunk_size=None, max_length=20, return_dict_in_generate=False)
WINDOW = Windows({"": Reach(window=19)})
PLAIN = {**cache_argument(object()), "use_cache": True, "attention_mask": MASK}


class Routed(torch.nn.Module):
    """A model with experts, one that is quantized, or one with other settings."""

    def __init__(
        self, *, experts: bool = False, quantizer: str = "", dynamic: bool = False, **settings
    ) -> None:
        super().__init__()
        self.config = LlamaConfig(**settings)
        self.forward = lambda output_router_logits=None: None
        if dynamic:
            self.linear = torch.ao.nn.quantized.dynamic.Linear(1, 1)
        if experts:
            self.experts = torch.nn.Linear(1, 1)
        if quantizer:
            self.hf_quantizer = type(quantizer, (), {})()

    def get_decoder(self):
        return self


def known_facts() -> Facts:
    """A call that rules nothing out."""
    cache, kwargs = KVCache(new_cache()), PLAIN | {"position_ids": IDS}
    found = facts_of(tiny_llama(), IDS, CONFIG, kwargs, cache)
    return replace(found, model=Routed(), kwargs=PLAIN, attends=True)


KNOWN = known_facts()
FIXED = replace(KNOWN, static=True)  # what these two need
OPEN = {Ability.FIXED_WIDTH: FIXED, Ability.COMPILED: FIXED}
# What makes each fact hold, where nothing else does, by the reason.
CASES = {
    "a static cache, with which the model decodes differently": {
        "static": True, "names": frozenset({"GPTNeoForCausalLM"}),
    },
    "an index of keys, which sdpa ignores before transformers 5.17": {"indexed": True},
    "attentions asked for, under sliding-window attention": {
        "states": ("attentions",), "slides": True,
    },
    "attentions under sdpa, with which the model attends differently (Falcon)": {
        "states": ("attentions",), "names": frozenset({"FalconForCausalLM"}),
    },
    "a batch of {0.rows} rows that advance together": {"rows": 2},
    "a dynamic cache": {"static": False, "attention": "eager"},
    "an encoder-decoder model": {"encodes": True},
    "a batch of {0.rows} rows": {"rows": 2, "ragged": True},
    "a text that may become longer than an attention window": {
        "static": False, "windows": WINDOW, "attention": "eager",
    },
    "{0.gap_obstacle}": {"gap_obstacle": "a state"},
    "windows in layers of a type that is not known": {"windows": Windows({}, known=False)},
    "recurrent states in a cache without keys": {"attends": False, "recurrent": True},
    "attention implementation {0.attention}": {"attention": "flex"},
    "windows under attention implementation {0.attention}": {
        "attention": "flex", "windows": WINDOW
    },
    "a dynamic cache with sdpa, whose arithmetic changes with the length": {"static": False},
    "attentions or hidden states asked for": {"states": ("hidden_states",)},
    "hooks on modules, which may rely on all rows of the call, or on its prompt alone": {
        "hooked": True
    },
    "hooks on modules of a model with windows, which may shorten some layers' cache": {
        "counting_hook": "a layer", "windows": WINDOW,
    },
    "a model that finds tokens by their slots in the cache": {
        "names": frozenset({"GlmImageForConditionalGeneration"})
    },
    "attention that is scaled by slots of the cache (Llama 4)": {
        "model": Routed(attn_temperature_tuning=True, floor_scale=20)
    },
    "router logits in the config": {"model": Routed(output_router_logits=True)},
    "attentions asked for, whose shape depends on the cache's size": {"states": ("attentions",)},
    "attentions over a static cache": {"states": ("attentions",), "static": True},
    "a model that counts its positions itself": {"takes_positions": False, "hooks_positions": True},
    "compiled forwards of a model that counts its positions itself": {
        "takes_positions": False, "hooks_positions": True, "compiled": True,
    },
    "unknown modules that count positions": {"takes_positions": False},
    "a model that gives padding no position": {"skips_padding": True},
    "a model that warns of padding tokens without a mask (GPT-2)": {
        "padding_notice": PaddingNotice(None, 0)
    },
    "a prefill whose positions do not match its masks: {0.unaligned}": {
        "unaligned": "it holds {all}"
    },
    "a static cache that holds less than a window, under masks that the model makes": {"reach": 9},
    "a model that makes or changes its masks itself, for example with ALiBi": {
        "standard_masks": False
    },
    "eager attention": {"attention": "eager"},
    "a model that overrides create_masks_for_generate": {"own_masks": True},
    "a static cache": {"static": True},
    "rotary positions that change with the length (longrope, Phi-3, dynamic)": {"rope_grows": True},
    "input preparation of a model outside transformers": {"reads_text": True, "foreign": True},
    "inputs other than text": {"kwargs": PLAIN | {"pixel_values": MASK}},
    "a cache that holds tokens before the prefill": {"cached": 3},
    "a prefill in chunks": {"config": SimpleNamespace(prefill_chunk_size=4, max_length=20)},
    "experts, whose batch sizes depend on the routing": {"model": Routed(experts=True)},
    "experts that may have too little capacity for the prompts": {"token_capacity": 9},
    "masks applied to several tokens only (LED), with a decoder's mask": {
        "names": frozenset({"LEDForConditionalGeneration"}),
        "kwargs": PLAIN | {"decoder_attention_mask": MASK},
    },
    "positions of a forward that are mixed: bidirectional attention, dynamic int8, LLM.int8,"
    " Doge, NLLB-MoE": {"model": Routed(dynamic=True)},
    "a quantized model, whose scales may depend on all positions": {
        "model": Routed(quantizer="Bnb")
    },
}  # fmt: skip


@pytest.mark.parametrize("ability", Ability, ids=lambda ability: ability.value)
def test_a_plain_call_of_a_plain_model_rules_nothing_out(ability):
    assert why_unsupported(ability, OPEN.get(ability, KNOWN)) is None


def test_every_fact_has_a_case():
    assert [fact.reason for fact in FACTS] == list(CASES)


@pytest.mark.parametrize(
    ("fact", "ability"),
    [(fact, ability) for fact in FACTS for ability in Ability],
    ids=lambda each: each.value if isinstance(each, Ability) else each.reason,
)
def test_a_fact_rules_out_what_its_cells_say(fact, ability, monkeypatch):
    monkeypatch.setattr("ngramspec.hf_model.facts.has", lambda change: False)
    known = replace(OPEN.get(ability, KNOWN), **CASES[fact.reason])
    assert fact.holds(known)
    if ability in fact.cells:
        whole = re.sub(r"\\{0\\\.\w+\\}", ".+", re.escape(fact.cells[ability]))
        holding = [each for each in FACTS if ability in each.cells and each.holds(known)]
        assert re.fullmatch(whole, fact.cells[ability].format(known))
        assert why_unsupported(ability, known) == holding[0].cells[ability].format(known)
    elif not any(other.holds(known) for other in FACTS if ability in other.cells):
        assert why_unsupported(ability, known) is None


def test_the_first_reason_is_reported():
    known = replace(KNOWN, standard_masks=False, own_masks=True, windows=WINDOW, rows=3)
    assert why_unsupported(Ability.FIXED_WIDTH, known).startswith("a batch of 3 rows; ")
    assert why_unsupported(Ability.TREES, known) == "a batch of 3 rows that advance together"
    reason = why_unsupported(Ability.TREES, replace(known, ragged=True))
    assert reason == "a model that makes or changes its masks itself, for example with ALiBi"


@pytest.mark.parametrize(("window", "outgrows"), [(19, True), (20, False), (21, False)])
def test_a_text_as_long_as_the_window_is_full_attention(window, outgrows):
    known = replace(KNOWN, windows=Windows({"": Reach(), "a": Reach(window=window)}))
    assert known.outgrows_windows == outgrows


def test_an_argument_without_a_value_is_plain():
    known = replace(KNOWN, kwargs=PLAIN | {"token_type_ids": None, "output_attentions": False})
    assert why_unsupported(Ability.PREFILL_DRAFT, known) is None


def test_every_reason_names_values_that_exist():
    named = {name for fact in FACTS for name in re.findall(r"\{0\.(\w+)\}", fact.reason)}
    assert named <= {field.name for field in fields(Facts)}


PAGE = runpy.run_path(str(DOCS / "abilities.py"))


def test_the_page_has_the_table():
    text = (DOCS / "guide" / "compatibility.md").read_text(encoding="utf-8")
    assert PAGE["page"]() == text, "run python docs/abilities.py"
    assert PAGE["table"]() in text


def test_each_fact_is_in_one_line_of_the_table_or_left_out():
    listed = [*PAGE["MODELS"].values(), *PAGE["CALLS"].values(), PAGE["LEFT_OUT"]]
    assert sorted(sum(listed, ())) == sorted(CASES)


def test_a_line_of_the_table_has_facts_that_rule_out_the_same():
    recurrent, encodes = "{0.gap_obstacle}", "an encoder-decoder model"
    same = (recurrent, "windows in layers of a type that is not known")
    assert PAGE["ruled_out"](same) == "trees, ragged rows, joint steps, `width=N`"
    with pytest.raises(ValueError, match="must rule out the same abilities"):
        PAGE["ruled_out"]((recurrent, encodes))


# How long a prompt is, and how long a draft may be, at each point of a generation

ONES = torch.ones((1, 9), dtype=torch.int64)


@pytest.mark.parametrize(
    ("kwargs", "more", "end"),
    [
        ({}, {}, 10),
        ({}, {"cached": 5}, 15),  # only new tokens
        ({"attention_mask": ONES}, {"cached": 5}, 9),
        ({}, {"cached": 2, "mask_length": 4}, 4),  # all tokens, of which the cache holds two
        ({"inputs_embeds": torch.zeros((1, 6, 8))}, {}, 6),
        ({"attention_mask": ONES}, {"prefix": "decoder_"}, 10),  # the encoder's
        ({"decoder_attention_mask": ONES}, {"prefix": "decoder_"}, 9),
    ],
)
def test_where_a_prompt_ends(kwargs, more, end):
    assert prompt_end(IDS, kwargs, **more) == end


def placed(positions):
    """A target whose prompt has these positions."""
    model, cache = tiny_llama(), new_cache()
    model.generation_config.max_length = 100
    kwargs = cache_argument(cache) | {"position_ids": positions}
    return Target(model, IDS, model.generation_config, kwargs)


def test_the_next_position_is_after_the_greatest_of_the_last_ones():
    assert placed(None)._next_position == 0
    assert placed(torch.tensor([[0, 1, 2], [0, 0, 1]]))._next_position == 3
    assert placed(torch.zeros((2, 0), dtype=torch.int64))._next_position == 0


def limited(next_position=10, **facts):
    """A target of a model with these facts, after a prefill of 10 positions."""
    target = placed(torch.arange(next_position - 10, next_position)[None])
    target.facts = replace(target.facts, **({"position_limit": None} | facts))
    target._thresholds, target._prefilled = target.facts.thresholds, 10
    return target


def test_the_limits_of_a_draft():
    assert limited().room(50) is None
    assert limited().prefill_room() == MAX_PREFILL_DRAFT_TOKENS
    some = limited(position_limit=64)
    assert [some.room(new) for new in (0, 50, 54, 60)] == [54, 4, 0, 0]
    assert some.prefill_room() == 54
    farther = limited(position_limit=64, next_position=20)  # such as an image's positions
    assert (farther.room(0), farther.prefill_room()) == (44, 44)
    assert [limited(token_capacity=most).room(0) for most in (4, 1)] == [3, 0]
    some = limited(rope_changes_at=32)  # no draft reaches over it
    assert [some.room(new) for new in (0, 20, 22, 23)] == [22, 2, 0, 0]
    assert some.room(24) is None
    some.no_drafts = "a reason"
    assert some.room(24) == 0


@pytest.mark.parametrize("kind", [LEDConfig, WhisperConfig, LlamaConfig])
def test_a_models_limit_of_positions_is_found_under_each_name(kind):
    name = {LEDConfig: "max_decoder_position_embeddings", WhisperConfig: "max_target_positions"}
    config = kind(**{name.get(kind, "max_position_embeddings"): 48})
    assert position_limit(config.get_text_config(decoder=True)) == 48
