"""Growing in place: the states that concatenating gives, and no copies of what is held."""

from __future__ import annotations

import copy
from itertools import pairwise
from pickle import dumps, loads

import pytest
import torch
from conftest import tiny_llama
from doubles import half_right
from plain_text import PROMPT
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer

from ngramspec import Speculator
from ngramspec.hf_model.cache.layers import MIN_FREE_POSITIONS, InPlace, close_up
from ngramspec.hf_model.compat.caches import cache_argument


def states(positions, dtype=torch.float32, batch=2, heads=3, size=4):
    return torch.randn(2, batch, heads, positions, size).to(dtype)


def layers(positions=7):
    """One layer that grows in place, and one as it is, that hold the same."""
    held = states(positions)
    ours, theirs = DynamicLayer(), DynamicLayer()
    for layer in (ours, theirs):
        layer.update(*held)
    ours.update = InPlace(ours).update
    return ours, theirs


def assert_same(ours, theirs):
    assert torch.equal(ours.keys, theirs.keys)
    assert torch.equal(ours.values, theirs.values)


def test_the_same_states_through_growth_and_rollback():
    ours, theirs = layers()
    places = set()
    for step in range(80):
        new = states(1 + step % 9)
        for mine, other in zip(ours.update(*new), theirs.update(*new), strict=True):
            assert torch.equal(mine, other)
        for layer in (ours, theirs):
            layer.crop(-(step % 4))
        assert_same(ours, theirs)
        places.add(ours.keys.data_ptr())
    assert ours.get_seq_length() > 7 + MIN_FREE_POSITIONS
    assert len(places) < 5  # it moved only when there was no room left


def test_nothing_is_written_to_what_was_there_before():
    ours, _ = layers()
    given = ours.keys
    before = given.clone()
    seen, _ = ours.update(*states(3))
    copied = seen.clone()
    ours.crop(-2)
    ours.update(*states(2))
    assert torch.equal(given, before)
    assert torch.equal(seen[:, :, :8], copied[:, :, :8])
    beside = copy.copy(ours)  # holds the same tensors; another generation goes on with it
    beside.update = InPlace(beside).update
    held = ours.keys.clone()
    beside.crop(-1)
    beside.update(*states(1))
    assert torch.equal(ours.keys, held)


def test_rows_taken_out_or_moved_by_others():
    ours, theirs = layers()
    for change in (
        lambda layer: layer.update(*torch.ones(2, 2, 3, 2, 4)),
        lambda layer: layer.batch_repeat_interleave(2),
        lambda layer: layer.update(*torch.ones(2, 4, 3, 2, 4)),
        lambda layer: layer.batch_select_indices(torch.tensor([3, 0])),
        lambda layer: layer.update(*torch.zeros(2, 2, 3, 1, 4)),
        lambda layer: layer.crop(-4),
        lambda layer: layer.update(*torch.full((2, 2, 3, 1, 4), 2.0)),
    ):
        for layer in (ours, theirs):
            change(layer)
        assert_same(ours, theirs)


def test_states_of_another_kind_are_the_layer_s_own_to_take():
    ours, theirs = layers()
    for new in (states(2, torch.float64), states(1, torch.float64)):
        ours.update(*new)
        theirs.update(*new)
        assert ours.keys.dtype == theirs.keys.dtype == torch.float64
        assert_same(ours, theirs)
    empty = DynamicLayer()
    empty.update = InPlace(empty).update
    new = states(3)
    empty.update(*new)
    assert torch.equal(empty.keys, new[0])


def test_closed_up_it_holds_no_more_than_it_says():
    ours, theirs = layers()
    ours.update(*states(4))
    ours.crop(-4)
    assert ours.keys.untyped_storage().nbytes() > theirs.keys.untyped_storage().nbytes()
    close_up(ours)
    assert_same(ours, theirs)
    assert ours.keys.untyped_storage().nbytes() == theirs.keys.untyped_storage().nbytes()
    close_up(DynamicLayer())
    alone = DynamicLayer()  # cut to what it holds, it lies in one piece of a larger memory
    alone.update(*states(7, batch=1, heads=1))
    alone.update = InPlace(alone).update
    alone.update(*states(4, batch=1, heads=1))
    alone.crop(-4)
    close_up(alone)
    assert alone.values.untyped_storage().nbytes() == 7 * 4 * 4


@pytest.mark.parametrize("duplicate", [copy.deepcopy, lambda each: loads(dumps(each))])
def test_a_copy_of_a_layer_grows_by_itself(duplicate):
    ours, _theirs = layers()
    ours.update(*states(2))
    snapshot = duplicate(ours)
    held = ours.keys.clone()
    more = states(3)
    keys, _ = snapshot.update(*more)
    assert torch.equal(keys, torch.cat((held, more[0]), dim=2))
    assert torch.equal(ours.keys, held)
    ours.update(*states(1))
    assert torch.equal(snapshot.keys, keys)


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_a_generation_copies_its_cache_no_more_and_gives_it_back_as_plain_decoding(attention):
    model = tiny_llama(positions=1024, attn_implementation=attention)
    kwargs = {"max_new_tokens": 300, "do_sample": False}
    plain_cache = DynamicCache(config=model.config)
    plain = model.generate(PROMPT, **cache_argument(plain_cache), **kwargs)
    cache, places = DynamicCache(config=model.config), []

    def look(event):
        places.append(cache.layers[0].keys.data_ptr())

    speculator = Speculator(half_right(plain[0].tolist(), 97), 5, on_step=look)
    ours = model.generate(PROMPT, custom_generate=speculator, **cache_argument(cache), **kwargs)
    assert torch.equal(ours, plain)
    moved = sum(one != other for one, other in pairwise(places))
    steps = speculator.stats.target_calls
    assert moved < 5 if attention == "sdpa" else moved > steps // 2
    for mine, theirs in zip(cache.layers, plain_cache.layers, strict=True):
        assert "update" not in vars(mine)
        torch.testing.assert_close(mine.keys, theirs.keys, rtol=1e-3, atol=1e-4)
        assert mine.keys.untyped_storage().nbytes() == theirs.keys.untyped_storage().nbytes()
    more = {"max_new_tokens": 5, "do_sample": False}
    again = model.generate(ours, **cache_argument(cache), **more)
    assert torch.equal(again, model.generate(plain, **cache_argument(plain_cache), **more))
