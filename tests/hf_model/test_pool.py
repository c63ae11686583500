"""The pool of caches: what is reused, copied, dropped, and that the text is a fresh cache's."""

from __future__ import annotations

import families
import numpy as np
import pytest
import torch
import transformers
from caches_made import made_caches
from conftest import tiny_llama
from serving import Letters, fresh

from benchmarks import tiny as tiny_models
from ngramspec import Speculator
from ngramspec.hf_model.compat.caches import cache_argument
from ngramspec.hf_model.pool import CachePool, cache_maker, why_not_kept
from ngramspec.server.engine import AnswerJob, AnswerRunner, CompletionRequest, Sampling
from ngramspec.stepwise import open_generation

BIG = 1 << 30
TEXT = np.random.default_rng(0).integers(1, 97, 200).astype(np.int32)
PER_TOKEN = 2 * 2 * 2 * 8 * 4  # layers, keys and values, heads, size, bytes


def pool_of(model, most=BIG, most_of_user=BIG):
    return CachePool(cache_maker(model), most, most_of_user, why_not_kept(model))


def fill(pool, model, user, prompt, count=4, *, give_back=True):
    """Generate over the pool's cache, as over a fresh one; the lease."""
    lease = pool.take(user, prompt)
    assert lease.cache.get_seq_length() == lease.reused
    ids = torch.tensor(prompt[None].astype(np.int64))
    settings = {"do_sample": False, "max_new_tokens": count}
    with open_generation(model, ids, **cache_argument(lease.cache), **settings) as run:
        while not run.finished:
            run.step()
    tokens = np.array(run.tokens, np.int32)
    assert tokens.tolist() == fresh(model, prompt, count)
    if give_back:
        pool.give_back(lease, np.concatenate((prompt, tokens)), len(prompt))
    return lease


def test_a_prompt_prefills_what_no_cache_holds_or_one_token(tiny):
    pool = pool_of(tiny)
    for end, reused in ((100, 0), (104, 100), (103, 103), (110, 103)):
        prompt = np.concatenate((TEXT[:end], [end % 97])).astype(np.int32)
        assert fill(pool, tiny, "a", prompt).reused == reused
    assert pool.copies == 0
    pool = pool_of(tiny)
    for end, reused in ((60, 0), (60, 59), (40, 39)):
        assert fill(pool, tiny, "a", TEXT[:end]).reused == reused


def test_a_cache_in_use_is_copied_and_not_touched(tiny):
    pool = pool_of(tiny)
    fill(pool, tiny, "a", TEXT[:80])
    first = pool.take("a", TEXT[:90])
    assert first.reused == 80
    before = [layer.keys.clone() for layer in first.cache.layers]
    second = fill(pool, tiny, "a", np.concatenate((TEXT[:70], TEXT[:20])))
    assert second is not first
    assert second.cache is not first.cache
    assert second.reused == 70
    for layer, was in zip(first.cache.layers, before, strict=True):
        assert torch.equal(layer.keys, was)
    assert pool.copies == 1


def test_a_cache_that_would_lose_most_is_copied_so_that_both_stay(tiny):
    pool = pool_of(tiny)
    fill(pool, tiny, "a", TEXT[:150])
    assert fill(pool, tiny, "a", np.concatenate((TEXT[:40], TEXT[101:121]))).reused == 40
    assert pool.copies == 1
    assert fill(pool, tiny, "a", TEXT[:151]).reused == 150
    short = np.concatenate((TEXT[:10], TEXT[60:70]))
    assert fill(pool, tiny, "a", short).reused == 0  # not worth a copy


def test_idle_caches_stay_within_their_bytes_and_the_oldest_go(tiny):
    room = PER_TOKEN * (64 + 128 + 128) * 2
    pool = pool_of(tiny, most=2 * room, most_of_user=room)
    starts = [np.roll(TEXT, -7 * each)[:60] for each in range(6)]
    for prompt in starts:
        fill(pool, tiny, "a", prompt)
        assert pool.bytes <= room
    assert pool.evicted > 0
    kept = [fill(pool, tiny, "a", prompt).reused > 0 for prompt in starts[::-1]]
    assert kept[0]
    assert not kept[-1]
    for user in "bcd":
        fill(pool, tiny, user, TEXT[:60])
        assert pool.bytes <= 2 * room
    none = pool_of(tiny, most=0)
    fill(none, tiny, "a", TEXT[:60])
    assert none.bytes == 0


def test_a_cache_in_use_is_never_dropped(tiny):
    pool = pool_of(tiny, most=1)
    lease = fill(pool, tiny, "a", TEXT[:60], give_back=False)
    fill(pool, tiny, "a", TEXT[100:160])
    assert lease.busy
    pool.give_back(lease, TEXT[:60], 60)
    assert not pool.bytes


def test_bytes_are_the_memory_that_is_held(tiny):
    pool = pool_of(tiny)
    fill(pool, tiny, "a", TEXT[:60])
    assert PER_TOKEN * 63 <= pool.bytes <= PER_TOKEN * (64 + 128)


FORGETTING = {
    "windows": lambda: families.build("mistral sliding", sliding_window=16),
    "recurrent states": lambda: tiny_models.build(transformers.GraniteMoeHybridForCausalLM),
    "convolutions": lambda: tiny_models.build(transformers.Lfm2ForCausalLM),
    "shared keys": lambda: families.build("gemma4 (shared keys)", sliding_window=16),
}


@pytest.mark.parametrize("make", FORGETTING.values(), ids=[*FORGETTING])
def test_layers_that_forget_return_to_the_nearest_snapshot(make):
    """Of what was read before the prompt's last part, of the answer's start, and of its end."""
    model = make()
    assert why_not_kept(model) is None
    pool, text = pool_of(model), TEXT % 60 + 1
    none = Speculator("none")
    runner = AnswerRunner(model, Letters(), pool, 1 << 20, lambda user: none)
    for prompt, reused in (
        (text[:100], 0),
        (np.append(text[:99], 3), 96),  # a keystroke
        (text[:120], 96),
        (text[:130], 120),  # where the answer began
        (text[:50], 0),
    ):
        prompt = prompt.astype(np.int32)
        request = CompletionRequest(
            prompt=prompt, user="a", sampling=Sampling(temperature=0), max_tokens=12
        )
        job = AnswerJob(request, lambda delta: None)
        while job.generation is None and not job.ended:
            job.turn(runner)
        assert job.progress.reused == reused
        while not job.ended:
            job.turn(runner)
        assert job.progress.tokens == fresh(model, prompt, 12)
    marks = [each.marks for each in pool._caches]
    assert pool.bytes > sum(mark.nbytes for each in marks for mark in each) > 0


def test_layers_that_store_nothing_are_neither_cropped_nor_copied():
    kinds = ["full_attention"] * 4
    model = families.build("gemma4 (shared keys)", layer_types=kinds, max_position_embeddings=512)
    assert why_not_kept(model) is None
    pool, text = pool_of(model), TEXT % 60 + 1
    for end, reused in ((100, 0), (104, 100), (90, 89)):
        assert fill(pool, model, "a", text[:end]).reused == reused
    fill(pool, model, "a", text[:100], give_back=False)
    fill(pool, model, "a", text[:99])  # the one in use is copied
    assert pool.copies == 1


def test_rotary_positions_that_follow_the_length_cannot_be_cut(tiny):
    assert why_not_kept(tiny) is None
    rope = {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 10000.0}
    assert "rotary" in why_not_kept(tiny_llama(rope_parameters=rope))


def test_a_dropped_cache_is_freed_without_the_collector(tiny):
    with made_caches() as caches:
        pool = pool_of(tiny, most=300 * PER_TOKEN)  # one with its free memory
        for start in range(4):
            fill(pool, tiny, "a", TEXT[start : start + 80])
        assert pool.evicted == 3
        assert pool.copies == 0
        assert caches.made >= 4
        assert caches.alive == 1


def test_caches_beyond_the_places_have_equal_shares_and_displace_idle_ones(tiny):
    pool = CachePool(cache_maker(tiny), BIG, BIG, users=2)
    for user in "ab":
        fill(pool, tiny, user, TEXT[:100])
    small = fill(pool, tiny, "c", TEXT[:40], give_back=False)
    large = fill(pool, tiny, "d", TEXT[:190], give_back=False)
    pool.max_bytes = pool.bytes + small.bytes
    assert pool.crowded([small]) == set()
    assert pool.evicted == 0
    pool.max_bytes = 2 * large.bytes - 1
    assert pool.crowded([small, large]) == {"d"}
    assert pool.evicted > 0
    assert pool.bytes + small.bytes + large.bytes <= pool.max_bytes
