"""Stepping equals draining; ending early leaves cache, sessions and statistics consistent."""

from __future__ import annotations

from weakref import ref

import pytest
import torch
from conftest import tiny_llama
from doubles import InterruptedStreamer, half_right
from layer_states import assert_same_cache
from transformers import DynamicCache

import ngramspec
from ngramspec import Speculator
from ngramspec.decoding.distributed import Ranks
from ngramspec.hf_model.compat.caches import cache_argument
from ngramspec.stepwise import open_generation

PROMPT = torch.tensor([[1, 5, 9, 5, 9, 5, 9, 7]])
GREEDY = {"do_sample": False, "max_new_tokens": 40}


def drained(generation) -> list[int]:
    found = []
    while not generation.finished:
        added = generation.step()
        assert added
        found += added
    assert generation.step() == []
    return found


@pytest.mark.parametrize("steps", [0, 1, 2, 5])
def test_a_cache_is_cut_to_the_committed_tokens(tiny, steps):
    """Whatever it ends after, the cache can be used for a longer text."""
    whole = tiny.generate(PROMPT, **GREEDY)[0].tolist()
    drafter = half_right(whole, 97)
    cache = DynamicCache(config=tiny.config)
    run = open_generation(
        tiny, PROMPT, speculator=Speculator(drafter, 6), **cache_argument(cache), **GREEDY
    )
    for _ in range(steps):
        run.step()
    tokens = run.tokens
    run.close()
    run.close()
    assert run.finished
    assert drafter.closed == len(drafter.sessions)
    committed = [*PROMPT[0].tolist(), *tokens]
    assert cache.get_seq_length() == (len(committed) - 1 if steps else 0)
    if steps:
        fresh = DynamicCache(config=tiny.config)
        tiny(torch.tensor([committed[:-1]]), **cache_argument(fresh))
        assert_same_cache(cache, fresh)
    longer = torch.tensor([committed])
    rest = {"do_sample": False, "max_new_tokens": len(whole) - len(committed)}
    with open_generation(tiny, longer, **cache_argument(cache), **rest) as again:
        assert [*committed, *drained(again)] == whole


def test_a_step_that_raises_closes_the_generation(tiny):
    streamer = InterruptedStreamer(4, OSError("the client is gone"))
    run = open_generation(tiny, PROMPT, streamer=streamer, **GREEDY)
    with pytest.raises(OSError, match="gone"):
        drained(run)
    assert run.finished
    assert run.step() == []
    assert len(run.tokens) == 3  # the prompt is put, too
    assert streamer.ended == 1


def test_logits_come_with_the_tokens_and_are_not_kept(tiny):
    kept = {"return_dict_in_generate": True, "output_logits": True}
    plain = tiny.generate(PROMPT, **GREEDY, **kept)
    drafter = half_right(plain.sequences[0].tolist(), 97)
    found, rows = [], []
    with open_generation(tiny, PROMPT, speculator=Speculator(drafter, 4), **GREEDY, **kept) as run:
        while not run.finished:
            assert all(row() is None for row in rows), "rows that were taken are still kept"
            tokens = run.step()
            taken = run.take_logits()
            assert len(taken) == len(tokens)
            assert run.take_logits() == []
            found += [row.clone() for row in taken]
            rows += [ref(row) for row in taken]
            del taken
    assert run.stats.target_calls < 39
    assert len(found) == 40
    for ours, theirs in zip(found, plain.logits, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)


def test_logits_that_are_not_asked_for_are_not_kept(tiny):
    with open_generation(tiny, PROMPT, **GREEDY) as run:
        run.step()
        assert run.take_logits() == []


def test_what_cannot_be_stepped_is_refused(tiny, monkeypatch):
    model = tiny_llama()
    with pytest.raises(ValueError, match="input_ids must have one row"):
        open_generation(model, PROMPT.repeat(2, 1), **GREEDY)
    with pytest.raises(ngramspec.UnsupportedError, match="num_beams"):
        open_generation(model, PROMPT, num_beams=2, **GREEDY)
    monkeypatch.setattr("ngramspec.decoding.joint.ranks_for", lambda call: Ranks(synced=True))
    with pytest.raises(ngramspec.UnsupportedError, match="several processes"):
        open_generation(tiny, PROMPT, **GREEDY)
    with pytest.raises(TypeError, match="speculator must be"):
        open_generation(model, PROMPT, speculator="copy")


def test_the_head_of_the_call_drafts(tiny):
    speculator = Speculator("none", 8)
    with open_generation(
        tiny, PROMPT, speculator=speculator, assistant_model=tiny, **GREEDY
    ) as run:
        assert drained(run) == tiny.generate(PROMPT, **GREEDY)[0, PROMPT.shape[1] :].tolist()
    assert speculator.stats.sources["model"].accepted > 10
    with pytest.raises(TypeError, match="assistant_model must be a causal language model"):
        open_generation(tiny, PROMPT, assistant_model=3, **GREEDY)
