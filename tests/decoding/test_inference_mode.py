"""A generation runs in the inference mode in which it was opened, whichever mode steps it."""

from __future__ import annotations

import threading

import pytest
import torch
from conftest import tiny_llama
from transformers import DynamicCache, StaticCache

import ngramspec
from ngramspec import Speculator
from ngramspec.drafters import ModelDrafter
from ngramspec.hf_model.cache.layers import DynamicAttention
from ngramspec.hf_model.compat.caches import cache_argument
from ngramspec.stepwise import open_generation

PROMPT = torch.tensor([[1, 5, 9, 5, 9, 5, 9, 7]])
PROMPTS = [PROMPT, PROMPT[:, 2:], PROMPT.flip(1), PROMPT[:, :3]]
GREEDY = {"do_sample": False, "max_new_tokens": 40}
MODES = [(False, True), (True, False), (True, True)]


def mode(on):
    return torch.inference_mode() if on else torch.no_grad()


@pytest.fixture(autouse=True)
def small_buffers(monkeypatch):
    """Buffers that are outgrown within a test."""
    monkeypatch.setattr("ngramspec.decoding.group.INITIAL_TOKENS", 8)
    monkeypatch.setattr("ngramspec.hf_model.cache.layers.MIN_FREE_POSITIONS", 8)


def opened(model, prompt, inside, speculator=None, **settings):
    with mode(inside):
        return open_generation(model, prompt, speculator=speculator, **settings)


def drained(run, inside, close=None):
    """All tokens of a generation that is stepped in a mode and closed in another one."""
    while not run.finished:
        with mode(inside):
            run.step()
        assert torch.is_inference_mode_enabled() is False
    with mode(not inside if close is None else close):
        run.close()
    return run.tokens


def test_steps_may_run_in_another_thread(tiny):
    """torch keeps the mode for each thread."""
    text = tiny.generate(PROMPT, **GREEDY)[0, 8:].tolist()
    with torch.inference_mode():
        run = open_generation(tiny, PROMPT, **GREEDY)
        thread = threading.Thread(target=drained, args=(run, False))
        thread.start()
        thread.join()
        assert run.finished
        assert run.tokens == text
        assert torch.is_inference_mode_enabled()


@pytest.mark.parametrize(("outer", "inner"), MODES)
def test_what_users_and_drafters_keep_between_steps_stays_usable(tiny, outer, inner):
    """A processor's own state, changed in place, and the cache of a model that drafts."""

    class Counts:
        def __call__(self, ids, scores):
            if not hasattr(self, "seen"):
                self.seen = torch.zeros_like(scores)
            self.seen.scatter_add_(1, ids[:, -1:], torch.ones_like(scores[:, :1]))
            return scores - self.seen

    text = tiny.generate(PROMPT, logits_processor=[Counts()], **GREEDY)[0, 8:].tolist()
    speculator = Speculator(ModelDrafter(tiny_llama(), threshold=1e-9), 3)
    run = opened(tiny, PROMPT, outer, speculator, logits_processor=[Counts()], **GREEDY)
    assert drained(run, inner) == text
    assert run.stats.accepted > 0


def filled(model, kind, inside):
    """A cache that holds the prompt's first tokens, computed in a mode."""
    room = {"max_cache_len": 60} if kind is StaticCache else {}
    cache = kind(config=model.config, **room)
    with mode(inside):
        model(PROMPT[:, :5], **cache_argument(cache))
    return cache


@pytest.mark.every(6)
@pytest.mark.parametrize("kind", [DynamicCache, StaticCache])
@pytest.mark.parametrize("made", [False, True])
@pytest.mark.parametrize(("outer", "inner"), MODES)
def test_a_given_cache_does_what_it_does_in_the_baseline(tiny, kind, made, outer, inner):
    """A static one that was filled in the mode can be changed only in the mode."""

    def told(call):
        try:
            with mode(outer):
                return call(**cache_argument(filled(tiny, kind, made)))
        except RuntimeError as error:
            return str(error)

    plain = told(lambda **cache: tiny.generate(PROMPT, **GREEDY, **cache)[0, 8:].tolist())
    assert isinstance(plain, str) == (kind is StaticCache and made and not outer)
    ours = told(lambda **cache: ngramspec.generate(tiny, PROMPT, **GREEDY, **cache)[0, 8:].tolist())
    assert ours == plain

    def stepped(**cache):
        run = open_generation(tiny, PROMPT, **GREEDY, **cache)
        while not run.finished:
            with torch.inference_mode(inner):
                run.step()
        return run.tokens

    assert told(stepped) == plain


@pytest.mark.parametrize("modes", [(False, True, False), (True, False, True)])
def test_a_cache_serves_generations_of_different_modes(tiny, modes):
    """Its memory may be made in one mode and written to in another one."""
    cache = DynamicCache(config=tiny.config)
    for layer in cache.layers:
        DynamicAttention(layer).grow_in_place()
    text = tiny.generate(PROMPT, **GREEDY)[0].tolist()
    known = PROMPT
    for turn, inside in enumerate(modes):
        settings = {"do_sample": False, "max_new_tokens": 13 + (turn == 2)}
        run = opened(tiny, known, inside, **cache_argument(cache), **settings)
        known = torch.tensor([[*known[0].tolist(), *drained(run, not inside)]])
    assert known[0].tolist() == text


def test_a_static_cache_from_inference_mode_gives_the_models_own_error(tiny):
    """Its lengths are shortened after the failed forward, which must not hide the error."""
    with torch.inference_mode():
        cache = StaticCache(tiny.config, max_cache_len=32)
        tiny(PROMPT, **cache_argument(cache))
    with pytest.raises(RuntimeError, match="Inplace update to inference tensor") as caught:
        ngramspec.generate(
            tiny,
            PROMPT.repeat(1, 2),
            **cache_argument(cache),
            do_sample=False,
            max_new_tokens=4,
            speculator=Speculator("none"),
        )
    assert caught.value.__context__ is None
    assert int(cache.get_seq_length()) == 8
