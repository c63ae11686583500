"""The arguments of the forwards: prepared once, and extended as ``generate`` extends them."""

from __future__ import annotations

from functools import wraps

import numpy as np
import pytest
import torch
from batches import RowOracle, batch, row_texts
from conftest import tiny_llama
from families import VOCAB, build
from hypothesis import given
from hypothesis import strategies as st
from plain_text import PROMPT as IDS
from transformers import GenerationMixin

import ngramspec
from ngramspec import Speculator, generate
from ngramspec.hf_model.cache.kv_cache import KVCache
from ngramspec.hf_model.compat.caches import new_cache
from ngramspec.hf_model.facts import facts_of
from ngramspec.hf_model.inputs import FREE_COLUMNS, Inputs, grow
from ngramspec.hf_model.ragged import OwnSlots, PresentRows, RaggedInputs, grow_ragged
from ngramspec.hf_model.target import Target


def test_transformers_own_preparation_is_called_once(monkeypatch):
    calls = []
    inner = GenerationMixin.prepare_inputs_for_generation

    @wraps(inner)
    def prepare(self, *args, **kwargs):
        calls.append(kwargs["next_sequence_length"])
        return inner(self, *args, **kwargs)

    monkeypatch.setattr(GenerationMixin, "prepare_inputs_for_generation", prepare)
    model = tiny_llama()
    settings = {"max_new_tokens": 30, "do_sample": False}
    plain = model.generate(IDS, **settings)
    for extra, once in (({}, True), ({"cache_implementation": "static"}, False)):
        calls.clear()
        speculator = Speculator("copy", 4)
        assert torch.equal(generate(model, IDS, speculator=speculator, **settings, **extra), plain)
        assert speculator.stats.target_calls > 10
        assert (len(calls) == 2) == once  # the other call is the prefill's


def inputs(ragged):
    model = tiny_llama()
    mask = torch.tensor([[0, 1, 1, 1], [1, 1, 1, 1]])
    kwargs = {"attention_mask": mask, "position_ids": mask.cumsum(1) - 1, "use_cache": True}
    cache = KVCache(new_cache(model.config))
    facts = facts_of(model, mask, model.generation_config, kwargs, cache)
    if not ragged:
        return Inputs(facts)
    found = RaggedInputs(facts)
    found._own = OwnSlots(np.array([[0, 1, 1, 1], [1, 1, 1, 1]], bool))
    return found


@pytest.mark.parametrize("ragged", [False, True])
def test_arguments_are_extended_step_by_step_as_in_generate(ragged):
    own = inputs(ragged)
    expected = dict(own.kwargs)
    for kept in [1] * (FREE_COLUMNS + 10) + [3, 1, 7]:
        wider = own.grown(2, [3, 3])
        own.commit([kept, kept])
        for name in ("attention_mask", "position_ids"):
            assert torch.equal(wider[name], grow(name, expected[name], 2))
            expected[name] = grow(name, expected[name], kept)
            assert torch.equal(own.kwargs[name], expected[name])
            assert own.kwargs[name].is_contiguous()
        assert own.kwargs["use_cache"] is True


def test_rows_that_diverge_and_meet_again():
    diverging = inputs(ragged=True)
    expected = dict(diverging.kwargs)
    for kept in ([1, 1], [3, 1], [1, 1], [2, 2], [1, 4], [2, 2]):
        diverging.commit(kept)
        own = [each + 1 for each in kept]
        for name in ("attention_mask", "position_ids"):
            expected[name] = grow_ragged(name, expected[name], max(kept), own, committed=True)
            assert torch.equal(diverging.kwargs[name], expected[name])


GREEDY = {"do_sample": False, "max_new_tokens": 60, "pad_token_id": 0}


@given(st.integers(1, 9), st.data())
def test_every_row_is_found_at_its_place(count, data):
    present, cache = PresentRows(count), list(range(count))
    rows = set(range(count))
    while True:
        stay = data.draw(st.sets(st.sampled_from(sorted(rows)), min_size=1))
        order = present.keep(stay)
        assert all(was >= place for place, was in enumerate(order))  # may be copied in this order
        cache, rows = [cache[was] for was in order], stay
        assert list(present.of(range(count))) == cache
        assert set(cache) == rows
        assert len(present) == len(rows)
        block = torch.arange(count)[:, None]
        spread = present.spread(present.select(block))
        assert all(spread[row] == row for row in rows)
        if len(rows) == 1:
            return


@pytest.fixture
def sizes(monkeypatch):
    """The number of rows of every forward after the prefill."""
    seen = []
    prepare = ngramspec.hf_model.inputs.Inputs.prepare

    def noting(self, block, *args, **kwargs):
        seen.append(len(block))
        return prepare(self, block, *args, **kwargs)

    monkeypatch.setattr(ngramspec.hf_model.inputs.Inputs, "prepare", noting)
    return seen


def of_unequal_rows(model, rows=5, **asked):
    """Inputs, plain's sequences, and a drafter that is right for the first two rows only."""
    inputs = batch(rows, seed=2)
    plain = model.generate(**inputs, **GREEDY, **asked)
    texts = row_texts(inputs, plain)
    drafter = RowOracle(texts, 1.0)
    for text in texts[2:]:
        drafter.texts[tuple(text[:4])] = [(token + 1) % VOCAB for token in text]
    return inputs, plain, drafter


@pytest.mark.parametrize(("name", "left"), [("llama", 3), ("gpt2", 3), ("bloom (alibi)", 5)])
def test_the_texts_are_plain_generate_s(name, left, sizes):
    """Models that prepare their inputs themselves may know more of each row: it stays."""
    model = build(name)
    inputs, plain, drafter = of_unequal_rows(model)
    ours = ngramspec.generate(model, **inputs, speculator=Speculator(drafter, 6), **GREEDY)
    assert torch.equal(ours, plain)
    assert sizes[0] == 5
    assert sizes[-1] == left
    free = model.generate(**inputs, **GREEDY)
    start = inputs["input_ids"].shape[1]
    ends = {"eos_token_id": [int(free[row, start + 7 * row + 5]) for row in range(5)]}
    plain = model.generate(**inputs, **GREEDY, **ends)
    del sizes[:]
    for drafter in ("auto", RowOracle(row_texts(inputs, free), 0.6)):
        speculator = Speculator(drafter)
        assert torch.equal(
            ngramspec.generate(model, **inputs, speculator=speculator, **GREEDY, **ends), plain
        )
    assert (sizes[-1] < 5) == (left < 5)


def test_what_stays_is_as_if_the_others_had_never_been(monkeypatch):
    """Keys, values, masks and positions of the rows that stay, before and after; with gaps."""
    model = build("llama")
    inputs, _, drafter = of_unequal_rows(model)
    keep_rows, compared = Target.keep_rows, []

    def states(target, places):
        layers = [each[places] for at in target.cache.layers for each in at.states()]
        kwargs = target.inputs.kwargs
        return [*layers, kwargs["attention_mask"][places], kwargs["position_ids"][places]]

    def watch(self, rows):
        before = range(5) if self._present is None else self._present.of(range(5))
        expected = states(self, [before.index(row) for row in rows])
        used = [self.inputs._own.used[before.index(row)] for row in rows]
        keep_rows(self, rows)
        after = self._present.of(range(5))
        found = states(self, [after.index(row) for row in rows])
        compared.append(all(map(torch.equal, expected, found)))
        assert [self.inputs._own.used[after.index(row)] for row in rows] == used

    monkeypatch.setattr(Target, "keep_rows", watch)
    ngramspec.generate(model, **inputs, speculator=Speculator(drafter, 6), **GREEDY)
    assert compared
    assert all(compared)
