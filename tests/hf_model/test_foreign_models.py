"""Models from outside transformers: subclasses, and code of their own for a step's inputs."""

from __future__ import annotations

import copy
import sys

import pytest
import torch
from conftest import tiny_llama
from doubles import Puts, bushy, half_right, oracle
from families import build
from fuzz.remote import DropsPositions, OwnInputs, Trivial
from plain_text import PROMPT as IDS
from plain_text import same_text
from transformers import (
    DynamicCache,
    GPTNeoForCausalLM,
    LlamaForCausalLM,
    T5ForConditionalGeneration,
)
from transformers.cache_utils import DynamicLayer

import ngramspec
from ngramspec import Speculator, UnsupportedError
from ngramspec.hf_model.compat.caches import cache_argument, cache_of

VOCAB = 97
GREEDY = {"do_sample": False, "max_new_tokens": 40}
TWO = torch.tensor([[5, 6, 7, 8, 5, 6, 7, 9, 5, 6], [9, 9, 4, 8, 5, 6, 7, 9, 5, 11]])


class Forwards(LlamaForCausalLM):
    """Has a forward of its own."""

    def forward(self, input_ids=None, attention_mask=None, position_ids=None, **kwargs):
        return super().forward(input_ids, attention_mask, position_ids, **kwargs)


class OneToken(LlamaForCausalLM):
    """Passes on one token, however many are new."""

    def prepare_inputs_for_generation(self, input_ids, **kwargs):
        inputs = super().prepare_inputs_for_generation(input_ids, **kwargs)
        if cache_of(kwargs).get_seq_length():
            inputs["input_ids"] = inputs["input_ids"][:, -1:]
        return inputs


class OwnPositions(LlamaForCausalLM):
    """Counts positions on from the cache, whatever it is given."""

    def prepare_inputs_for_generation(self, input_ids, **kwargs):
        inputs = super().prepare_inputs_for_generation(input_ids, **kwargs)
        past, new = cache_of(inputs).get_seq_length(), inputs["input_ids"].shape[1]
        inputs["position_ids"] = torch.arange(past, past + new)[None]
        return inputs


class DropsMask(LlamaForCausalLM):
    """Prepares inputs without the mask, since it expects no padding."""

    def prepare_inputs_for_generation(self, input_ids, **kwargs):
        inputs = super().prepare_inputs_for_generation(input_ids, **kwargs)
        inputs.pop("attention_mask", None)
        return inputs


class LastLogits(LlamaForCausalLM):
    """Computes the logits of the last token only."""

    def forward(self, input_ids=None, logits_to_keep=0, **kwargs):
        return super().forward(input_ids, logits_to_keep=1, **kwargs)


class LastOnly(T5ForConditionalGeneration):
    """Decodes one token, however many are new."""

    def prepare_inputs_for_generation(self, input_ids, **kwargs):
        inputs = super().prepare_inputs_for_generation(input_ids, **kwargs)
        inputs["decoder_input_ids"] = inputs["decoder_input_ids"][:, -1:]
        return inputs


def as_kind(kind):
    """The tiny Llama as a model of another class."""
    plain = tiny_llama()
    model = kind(plain.config).eval()
    model.load_state_dict(plain.state_dict())
    model.generation_config = copy.deepcopy(plain.generation_config)
    return model


@pytest.mark.every(4)
@pytest.mark.parametrize("kind", [Forwards, DropsPositions, OwnInputs])
@pytest.mark.parametrize("ids", [IDS, TWO], ids=["one", "two"])
def test_text_is_plain_generate_s(kind, ids):
    model = as_kind(kind)
    same_text(model, Speculator(), ids, **GREEDY)
    same_text(model, lambda text: Speculator(bushy(text, VOCAB), tree=6), ids, **GREEDY)
    stats = same_text(model, lambda text: Speculator(half_right(text, VOCAB), 5), ids, **GREEDY)
    assert len(ids) == 2 or stats.tokens_per_call > 1.5


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        (DropsPositions, "unknown modules that count positions"),
        (Forwards, "a model that makes or changes its masks itself, for example with ALiBi"),
    ],
)
def test_trees_become_chains_where_positions_or_masks_may_be_others(kind, reason):
    speculator = Speculator(tree=6)
    ngramspec.generate(as_kind(kind), IDS, speculator=speculator, **GREEDY)
    assert speculator.stats.limits == {f"drafts are chains: {reason}": 1}


@pytest.mark.parametrize("kind", [OwnPositions, DropsMask])
@pytest.mark.parametrize("settings", [{"tree": 16}, {"gamma": 6}], ids=["tree", "6"])
def test_positions_and_masks_of_a_tree_have_to_arrive(kind, settings, monkeypatch):
    """In a module that makes its masks as transformers does, as copied modelling code is."""
    monkeypatch.setattr(sys.modules[__name__], "create_causal_mask", None, raising=False)
    model = as_kind(kind)
    for drafter in (lambda text: "auto", lambda text: bushy(text, VOCAB)):
        same_text(model, lambda text, of=drafter: Speculator(of(text), **settings), **GREEDY)
    model.set_attn_implementation("eager")
    with pytest.raises(
        UnsupportedError, match="width=8 is not supported with (a model that|unknown)"
    ):
        ngramspec.generate(model, IDS, speculator=Speculator(width=8), **GREEDY)


@pytest.mark.parametrize("kind", [OneToken, LastOnly])
def test_one_token_at_a_time_is_found_out_before_anything_is_streamed(kind):
    if kind is OneToken:
        model = as_kind(kind)
    else:
        t5 = build("t5")
        model = kind(t5.config).eval()
        model.load_state_dict(t5.state_dict())
    streamer, message = Puts(), rf"{kind.__name__}\.prepare_inputs_for_generation does not"
    with pytest.raises(UnsupportedError, match=message):
        ngramspec.generate(model, IDS, streamer=streamer, **GREEDY)
    assert (len(streamer.puts), streamer.ended) == (1, 1)  # the prompt, by generate itself
    same_text(model, Speculator(unsupported="plain"), IDS, **GREEDY)


@pytest.mark.parametrize("ids", [IDS, TWO], ids=["one", "two"])
def test_steps_have_no_drafts_where_their_logits_are_missing(ids, caplog):
    """A forward tells so only after the first token."""
    model = as_kind(LastLogits)

    def right(text):
        return Speculator(half_right(text, VOCAB), 5)

    assert same_text(model, right, ids, **GREEDY).drafted == 0
    together = ["rows advance together: unknown modules that count positions"] * (len(ids) > 1)
    assert caplog.messages == [
        *together,
        "the following steps have no drafts: LastLogits returns logits of 1 tokens in a forward"
        " over 6; pass Speculator('none')",
    ]


def test_missing_logits_are_found_out_before_the_first_token_if_the_prefill_has_a_draft():
    model, streamer = as_kind(LastLogits), Puts()
    plain = model.generate(IDS, **GREEDY)
    right = oracle(plain[0].tolist())
    with pytest.raises(UnsupportedError, match="LastLogits returns logits of 1 tokens"):
        ngramspec.generate(model, IDS, speculator=Speculator(right), streamer=streamer, **GREEDY)
    assert (len(streamer.puts), streamer.ended) == (1, 1)
    same_text(model, Speculator(right, unsupported="plain"), **GREEDY)


def test_a_subclass_that_changes_no_step_has_trees_and_a_fixed_width():
    model = as_kind(Trivial)
    model.set_attn_implementation("eager")
    stats = same_text(model, lambda text: Speculator(bushy(text, VOCAB), tree=9), **GREEDY)
    assert not stats.limits
    assert stats.accepted
    same_text(model, Speculator(width=16), **GREEDY)


def test_a_subclass_is_refused_as_its_base_class_is():
    class Mine(GPTNeoForCausalLM):
        pass

    neo = build("gpt-neo (windows)")
    mine = Mine(neo.config).eval()
    mine.load_state_dict(neo.state_dict())
    same_text(mine, Speculator("unigram", 4), TWO, **GREEDY)


class OwnCache(DynamicCache):
    """A cache of somebody's own that changes nothing."""

    def total(self):
        return sum(layer.keys.numel() for layer in self.layers)


class Grudging(DynamicCache):
    """One whose layers are no longer cropped as transformers does it."""

    def crop(self, *args):
        raise NotImplementedError


class PlainLayer(DynamicLayer):
    """A layer that overrides nothing."""


class OwnLayer(DynamicLayer):
    """A layer that concatenates in its own way."""

    def update(self, *args, **kwargs):
        return super().update(*args, **kwargs)


@pytest.mark.parametrize("layers", [DynamicLayer, PlainLayer])
def test_caches_and_layers_that_override_nothing_are_rolled_back(tiny, layers, monkeypatch):
    plain = tiny.generate(IDS, **GREEDY)
    for name in ("__firstlineno__", "__static_attributes__"):  # which Python 3.13 sets
        monkeypatch.setattr(PlainLayer, name, 0, raising=False)
        monkeypatch.setattr(DynamicLayer, name, 0, raising=False)
    cache = OwnCache(config=tiny.config)
    cache.layers = [layers() for _ in cache.layers]
    given = cache_argument(cache) | {"speculator": Speculator(half_right(plain[0].tolist(), 97), 5)}
    assert ngramspec.generate(tiny, IDS, **given, **GREEDY).tolist() == plain.tolist()
    assert cache.get_seq_length() == plain.shape[1] - 1
    assert cache.total() == 2 * 2 * 8 * (plain.shape[1] - 1)


def test_caches_and_layers_that_override_something_are_refused_by_name():
    model = tiny_llama()
    layered = DynamicCache(config=model.config)
    layered.layers = [OwnLayer() for _ in layered.layers]
    for cache, name in ((Grudging(config=model.config), "Grudging"), (layered, "OwnLayer")):
        with pytest.raises(UnsupportedError, match=f"{name}.* cannot be rolled back"):
            ngramspec.generate(model, IDS, **cache_argument(cache), **GREEDY)
