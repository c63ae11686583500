"""The table of abilities: what rules out what, with all reasons, in the order of the table."""

from __future__ import annotations

import re
import runpy
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from ngramspec.hf_model.abilities import FACTS, Ability, reasons_against, why_unsupported
from ngramspec.hf_model.attention import Reach, Windows
from ngramspec.hf_model.compat.caches import cache_argument
from ngramspec.hf_model.traits import CallFacts, CallTraits, Traits

DOCS = Path(__file__).parents[2] / "docs"
MASK = torch.ones((1, 10), dtype=torch.int64)
TRAITS = Traits(
    name="AForCausalLM",
    names=frozenset({"AForCausalLM"}),
    stock=torch.nn.Module,
    encodes=False,
    attention="sdpa",
    standard_masks=True,
    own_masks=False,
    passes_masks=True,
    windows=None,
    alibi=False,
    by_slot=False,
    reads_text=False,
    takes_positions=True,
    hooked=False,
    skips_padding=False,
    position_limit=None,
    embeddings=97,
    rope_changes_at=None,
    rope_grows=False,
    recurrent=False,
    rereads_at=None,
    token_capacity=None,
    streams_first=False,
)
CALL = CallTraits(
    rows=1,
    prompt=10,
    cached=0,
    end=10,
    keeps_cache=False,
    slides=False,
    gap_obstacle=None,
    attends=True,
    static=False,
    states=(),
    hooked=False,
    unaligned=None,
)
CONFIG = SimpleNamespace(prefill_chunk_size=None, max_length=20)
CHUNKED = SimpleNamespace(prefill_chunk_size=4, max_length=20)
WINDOW = Windows({"": Reach(window=19)})
PLAIN = {**cache_argument(object()), "use_cache": True, "attention_mask": MASK}


class Routed(torch.nn.Module):
    """A model with experts or a router, and one that is quantized."""

    def __init__(
        self, *, experts: bool = False, quantizer: str = "", router: str = "", dynamic: bool = False
    ) -> None:
        super().__init__()
        if router:
            self.router = type(
                router, (torch.nn.Module,), {"router_ignore_padding_tokens": False}
            )()
        if dynamic:
            self.linear = torch.ao.nn.quantized.dynamic.Linear(1, 1)
        if experts:
            self.experts = torch.nn.Linear(1, 1)
        if quantizer:
            self.hf_quantizer = type(quantizer, (), {})()

    def get_decoder(self):
        return self


KNOWN = CallFacts(TRAITS, CALL, Routed(), CONFIG, PLAIN)
FIXED = replace(KNOWN, call=replace(CALL, static=True))  # what these two need
OPEN = {Ability.FIXED_WIDTH: FIXED, Ability.COMPILED: FIXED}


def traits(known: CallFacts, **values) -> CallFacts:
    return replace(known, traits=replace(known.traits, **values))


def call(known: CallFacts, **values) -> CallFacts:
    return replace(known, call=replace(known.call, **values))


ROUTER = Routed(router="NllbMoeTop2Router")
# What makes each fact hold, where nothing else does.
CASES = {
    "rows that advance together": lambda known: call(known, rows=2),
    "dynamic cache": lambda known: traits(call(known, static=False), attention="eager"),
    "encoder-decoder model": lambda known: traits(known, encodes=True),
    "several rows": lambda known: replace(call(known, rows=2), ragged=True),
    "a text longer than a window, with a dynamic cache": lambda known: traits(
        call(known, static=False), windows=WINDOW, attention="eager"
    ),
    "recurrent state, convolution, or index of keys": lambda known: call(
        known, gap_obstacle="a state"
    ),
    "windows in layers of a type that is not known": lambda known: traits(
        known, windows=Windows({}, known=False)
    ),
    "recurrent states in a cache without keys": lambda known: traits(
        call(known, attends=False), recurrent=True
    ),
    "attention other than sdpa and eager": lambda known: traits(known, attention="flex"),
    "dynamic cache with sdpa": lambda known: call(known, static=False),
    "attentions or hidden states asked for": lambda known: call(known, states=("hidden_states",)),
    "hooks on modules": lambda known: call(known, hooked=True),
    "tokens found by their slots in the cache": lambda known: traits(known, by_slot=True),
    "attentions asked for": lambda known: call(known, states=("attentions",)),
    "positions counted by the model": lambda known: traits(
        known, takes_positions=False, hooked=True
    ),
    "positions counted by modules of unknown classes": lambda known: traits(
        known, takes_positions=False
    ),
    "padding without positions": lambda known: traits(known, skips_padding=True),
    "all positions change at a length (longrope, Phi-3)": lambda known: traits(
        known, rope_changes_at=9
    ),
    "cache and masks disagree": lambda known: call(known, unaligned="it holds {all}"),
    "ALiBi": lambda known: traits(known, alibi=True),
    "masks made or changed by the model": lambda known: traits(known, passes_masks=False),
    "eager attention": lambda known: traits(known, attention="eager"),
    "model overrides create_masks_for_generate": lambda known: traits(known, own_masks=True),
    "static cache": lambda known: call(known, static=True),
    "rotary frequencies that depend on the length": lambda known: traits(known, rope_grows=True),
    "input preparation of a model outside transformers": lambda known: traits(
        known, reads_text=True, stock=None
    ),
    "inputs other than text": lambda known: replace(known, kwargs=PLAIN | {"pixel_values": MASK}),
    "cache that holds tokens before the prefill": lambda known: call(known, cached=3),
    "cache of the caller": lambda known: call(known, keeps_cache=True),
    "masks widened after the prefill (GIT), with masked positions": lambda known: traits(
        replace(known, kwargs=PLAIN | {"attention_mask": MASK * 0}),
        names=frozenset({"GitForCausalLM"}),
    ),
    "prefill in chunks": lambda known: replace(
        known, config=SimpleNamespace(prefill_chunk_size=4, max_length=20)
    ),
    "experts": lambda known: replace(known, model=Routed(experts=True)),
    "experts that may have too little capacity for the rows": lambda known: traits(
        known, token_capacity=9
    ),
    "experts that read the masks (NLLB-MoE)": lambda known: replace(known, model=ROUTER),
    "experts that read the masks, with a static cache or the decoder's mask": lambda known: replace(
        known, model=ROUTER, kwargs=known.kwargs | {"decoder_attention_mask": MASK}
    ),
    "masks applied to several tokens only (LED), with a decoder's mask": lambda known: replace(
        known,
        traits=replace(known.traits, names=frozenset({"LEDForConditionalGeneration"})),
        kwargs=known.kwargs | {"decoder_attention_mask": MASK},
    ),
    "modules that mix the positions of a forward (dynamic int8, Doge's experts)": lambda known: (
        replace(known, model=Routed(dynamic=True))
    ),
    "quantized activations": lambda known: replace(known, model=Routed(quantizer="Bnb")),
}


@pytest.mark.parametrize("ability", Ability, ids=lambda ability: ability.value)
def test_a_plain_call_of_a_plain_model_rules_nothing_out(ability):
    assert why_unsupported(ability, OPEN.get(ability, KNOWN)) is None


def test_every_fact_has_a_case():
    assert [fact.name for fact in FACTS] == list(CASES)


@pytest.mark.parametrize(
    ("fact", "ability"),
    [(fact, ability) for fact in FACTS for ability in Ability],
    ids=lambda each: each.value if isinstance(each, Ability) else each.name,
)
def test_a_fact_rules_out_what_its_cells_say(fact, ability):
    known = CASES[fact.name](OPEN.get(ability, KNOWN))
    assert fact.holds(known)
    if ability in fact.reasons:
        whole = re.sub(r"\\{\w+\\}", ".+", re.escape(fact.reasons[ability]))
        assert any(re.fullmatch(whole, reason) for reason in reasons_against(ability, known))
    elif not any(other.holds(known) for other in FACTS if ability in other.reasons):
        assert why_unsupported(ability, known) is None


def test_all_reasons_are_known_and_the_first_is_reported():
    known = call(traits(KNOWN, alibi=True, own_masks=True, windows=WINDOW), rows=3)
    found = tuple(dict.fromkeys(reasons_against(Ability.FIXED_WIDTH, known)))
    assert [reason.partition(";")[0] for reason in found] == [
        "a batch of 3 rows",
        "a text that may become longer than an attention window",
        "a dynamic cache with sdpa, whose arithmetic changes with the length",
        "a model that makes its masks itself",  # once, for two facts
    ]
    assert why_unsupported(Ability.FIXED_WIDTH, known) == found[0]
    assert why_unsupported(Ability.TREES, known) == "a batch of 3 rows that advance together"
    assert why_unsupported(Ability.TREES, replace(known, ragged=True)) == "a model with ALiBi"


@pytest.mark.parametrize(("window", "slides"), [(19, True), (20, False), (21, False)])
def test_a_text_as_long_as_the_window_is_full_attention(window, slides):
    known = traits(KNOWN, windows=Windows({"": Reach(), "a": Reach(window=window)}))
    assert known.slides == slides


def test_later_facts_are_not_looked_at_for_the_first_reason():
    known = replace(call(KNOWN, rows=2), model=None)  # experts are looked for in the model
    assert (
        why_unsupported(Ability.FIXED_WIDTH, known) == "a batch of 2 rows; generate them one by one"
    )


def test_weights_may_be_quantized_under_a_fixed_width():
    known = replace(FIXED, model=Routed(quantizer="GgufHfQuantizer"))
    assert why_unsupported(Ability.FIXED_WIDTH, known) is None


def test_an_argument_without_a_value_is_plain():
    known = replace(KNOWN, kwargs=PLAIN | {"token_type_ids": None, "output_attentions": False})
    assert why_unsupported(Ability.PREFILL_DRAFT, known) is None


def test_the_page_has_the_table():
    script = runpy.run_path(str(DOCS / "abilities.py"))
    text = (DOCS / "guide" / "compatibility.md").read_text(encoding="utf-8")
    assert script["page"]() == text, "run python docs/abilities.py"
    assert script["table"]() in text
