"""The transformers boundary: what plain generate does, the speculative one does."""

from __future__ import annotations

import copy
import inspect
import io
import pickle
import sys
import threading
from functools import partial

import pytest
import torch
from any_model import tiny_chat
from conftest import tiny_llama
from doubles import half_right, oracle
from plain_text import PROMPT, three_ways
from transformers import DynamicCache, GenerationConfig

import ngramspec
from ngramspec import Speculator, hf
from ngramspec.hf_model.compat.caches import cache_argument, cache_names, is_callers


@pytest.mark.parametrize("name", sorted({cache_names()[0], "past_key_values"}))
@pytest.mark.filterwarnings("ignore:.*past_key_values:FutureWarning")
def test_a_given_cache_is_the_caller_s_under_its_old_name_too(tiny, name):
    """It is brought up to date, closed up, and marked as the caller's, so that it can be kept."""
    cache = DynamicCache(config=tiny.config)
    asked = {"max_new_tokens": 20, "do_sample": False}
    plain = tiny.generate(PROMPT, **asked)
    speculator = Speculator(half_right(plain[0].tolist(), 97), 4)
    ours = ngramspec.generate(tiny, PROMPT, speculator=speculator, **{name: cache}, **asked)
    assert torch.equal(ours, plain)
    assert is_callers(cache)
    assert cache.get_seq_length() == plain.shape[1] - 1
    for layer in cache.layers:
        assert layer.keys.untyped_storage().nbytes() == layer.keys.nbytes


def test_a_given_cache_may_hold_ids_that_are_no_tokens(tiny):
    """They are the padding of an earlier turn, whose positions the cache has."""
    cache = DynamicCache(config=tiny.config)
    tiny(PROMPT, **cache_argument(cache))
    ids = torch.cat((PROMPT, torch.tensor([[3, 4]])), dim=1)
    ids[0, 0] = -1
    kwargs = {"max_new_tokens": 8, "do_sample": False, **cache_argument(cache)}
    ours = tiny.generate(ids, custom_generate=Speculator(), **kwargs)
    assert ours.shape[1] == ids.shape[1] + 8


@pytest.mark.parametrize("where", ["argument", "config", "model"])
def test_stop_strings(where):
    model, tokenizer = tiny_chat()
    kwargs = {"input_ids": PROMPT, "do_sample": False, "tokenizer": tokenizer}
    free = model.generate(PROMPT, max_new_tokens=24, do_sample=False)
    string = tokenizer.decode(free[0, PROMPT.shape[1] :])[10:15]
    if where == "argument":
        kwargs |= {"stop_strings": [string], "max_new_tokens": 24}
    elif where == "config":
        kwargs["generation_config"] = GenerationConfig(stop_strings=string, max_new_tokens=24)
    else:
        model.generation_config.stop_strings = [string]
        kwargs |= {"max_new_tokens": 24}
    plain = model.generate(**kwargs)
    assert plain.shape[1] < free.shape[1]
    for drafter in ("auto", oracle(free[0].tolist())):
        speculator = Speculator(drafter, 8)
        assert torch.equal(plain, ngramspec.generate(model, **kwargs, speculator=speculator))
        with ngramspec.enable(model, speculator):
            assert torch.equal(plain, model.generate(**kwargs))
    if where == "config":
        assert kwargs["generation_config"].stop_strings == string  # the user's own is untouched


@pytest.mark.parametrize("own", [False, True])
def test_enabled_puts_back_what_was_there(own):
    """Also an attribute of the object's own, and where the block raises."""
    model = tiny_llama()
    if own:
        model.generate = partial(type(model).generate, model)
    before = model.generate
    with pytest.raises(KeyError), ngramspec.enable(model) as outer:  # noqa: PT012
        first = model.generate
        with ngramspec.enable(model, Speculator("none")) as inner:
            model.generate(PROMPT, max_new_tokens=3, do_sample=False)
            assert (outer.stats.runs, inner.stats.runs) == (0, 1)
        assert model.generate == first
        raise KeyError
    assert model.generate == before
    assert ("generate" in vars(model)) == own


def test_enabled_leaves_a_call_with_its_own_custom_generate_alone(tiny):
    mine = Speculator("none")
    with ngramspec.enable(tiny) as handle:
        tiny.generate(PROMPT, max_new_tokens=3, do_sample=False, custom_generate=mine)
    assert (handle.stats.runs, mine.stats.runs) == (0, 1)
    with pytest.raises(ValueError, match="custom_generate"):
        ngramspec.generate(tiny, PROMPT, custom_generate=mine)
    with pytest.raises(TypeError, match="speculator must be a Speculator"):
        ngramspec.generate(tiny, PROMPT, speculator="auto")
    with pytest.raises(TypeError, match=r"the class; pass Speculator\(\)"):
        ngramspec.enable(tiny, Speculator)
    with pytest.raises(TypeError, match=r"pass custom_generate=Speculator\(\)"):
        tiny.generate(PROMPT, custom_generate=Speculator)


@pytest.mark.parametrize("settings", [{"gamma": 5}, {"tree": 8}])
def test_a_hook_that_changes_every_position_acts_as_in_plain_generate(settings):
    """One that changes the last position of a forward does not: there are several to check."""
    model, kwargs = tiny_llama(), {"max_new_tokens": 40, "do_sample": False}
    before = model.generate(PROMPT, **kwargs)
    steering = torch.linspace(-1, 1, 32)
    model.model.layers[0].register_forward_hook(lambda module, args, output: output + steering)
    plain = model.generate(PROMPT, **kwargs)
    assert not torch.equal(before, plain)
    for drafter in ("auto", half_right(plain[0].tolist(), 97)):
        speculator = Speculator(drafter, **settings)
        for ours in three_ways(model, PROMPT, speculator=speculator, **kwargs):
            assert torch.equal(plain, ours)
        assert speculator.stats.drafted > 0


def test_no_prompt_at_all_starts_from_bos(tiny):
    plain = tiny.generate(max_new_tokens=12, do_sample=False)
    assert torch.equal(plain, ngramspec.generate(tiny, max_new_tokens=12, do_sample=False))


# The patched ``generate`` of ``enable``

GREEDY = {"max_new_tokens": 6, "do_sample": False}


@pytest.fixture
def model():
    return tiny_llama()


def spoil(model):
    """Give a model other weights, and so another text."""
    with torch.no_grad():
        model.lm_head.weight.copy_(torch.randn(model.lm_head.weight.shape))
    return model


def deciding(model, speculators):
    """Which of the speculators a call of ``generate`` goes to, by index; None: to none."""
    before = [each.stats.runs for each in speculators]
    model.generate(PROMPT, **GREEDY)
    ran = [i for i, each in enumerate(speculators) if each.stats.runs > before[i]]
    assert len(ran) <= 1
    return ran[0] if ran else None


@pytest.mark.parametrize("order", [(0, 1, 2), (1, 2, 0), (1, 0, 2)])
def test_blocks_that_overlap_end_in_any_order(model, order):
    """The newest that has not ended decides; the last puts back what was there."""
    before = model.generate
    speculators = [Speculator("none") for _ in range(3)]
    blocks = []
    for i, speculator in enumerate(speculators):
        blocks.append(ngramspec.enable(model, speculator))
        assert blocks[-1].__enter__() is blocks[-1]
        assert blocks[-1].speculator is speculator
        assert deciding(model, speculators) == i
    going = [0, 1, 2]
    for i in order:
        blocks[i].__exit__(None, None, None)
        going.remove(i)
        assert deciding(model, speculators) == max(going, default=None)
    assert "generate" not in vars(model)
    assert model.generate == before


def test_it_is_enabled_until_it_is_disabled(model):
    original = model.generate
    handle = ngramspec.enable(model)
    expected = original(PROMPT, **GREEDY)
    assert torch.equal(model.generate(PROMPT, **GREEDY), expected)
    assert handle.stats is handle.speculator.stats
    assert handle.stats.runs == 1
    for _ in range(2):
        handle.disable()
        assert model.generate == original
    model.generate(PROMPT, **GREEDY)
    assert handle.stats.runs == 1
    for runs in (2, 3):
        with handle:
            model.generate(PROMPT, **GREEDY)
        assert handle.stats.runs == runs
        assert model.generate == original


def test_disable_ends_all_handles_of_a_model(model):
    """Also handles that were not kept, ``with`` blocks, and those under another wrapper."""
    original, other = model.generate, copy.deepcopy(model)
    ngramspec.disable(model)  # nothing is on
    with ngramspec.enable(other) as separate, ngramspec.enable(model) as outer:
        ngramspec.enable(model)
        with ngramspec.enable(model) as inner:
            below = model.generate
            model.generate = lambda *args, **kwargs: below(*args, **kwargs)
            above = ngramspec.enable(model)
            ngramspec.disable(torch.compile(model))
            model.generate(PROMPT, **GREEDY)
            assert [each.stats.runs for each in (outer, inner, above)] == [0, 0, 0]
            del model.generate
            with ngramspec.enable(model) as again:
                model.generate(PROMPT, **GREEDY)
            assert again.stats.runs == 1
        other.generate(PROMPT, **GREEDY)
        assert separate.stats.runs == 1
    assert model.generate == original
    for call in (ngramspec.disable, ngramspec.enable):
        with pytest.raises(TypeError, match="must be a transformers model, got int"):
            call(3)


@pytest.mark.parametrize("where", ["argument", "config"])
def test_a_call_s_draft_length_is_num_assistant_tokens(model, where):
    lengths, speculator = set(), Speculator()
    speculator.on_step = lambda event: lengths.add(len(event.drafted))
    given = {"num_assistant_tokens": 3}
    given = given if where == "argument" else {"generation_config": GenerationConfig(**given)}
    prompt, kwargs = PROMPT.repeat(1, 4), {"max_new_tokens": 40, "do_sample": False}
    expected = model.generate(prompt, **kwargs)
    for ours in three_ways(model, prompt, speculator=speculator, **kwargs, **given):
        assert torch.equal(ours, expected)
    assert max(lengths) == 3
    with pytest.raises(ValueError, match=r"num_assistant_tokens must be in 1\.\.4096, got 0"):
        ngramspec.generate(model, prompt, num_assistant_tokens=0)


def test_an_output_has_its_own_call_s_statistics(model):
    speculator, kwargs = Speculator(), GREEDY | {"return_dict_in_generate": True}
    outputs = [ngramspec.generate(model, PROMPT, speculator=speculator, **kwargs) for _ in range(2)]
    assert [each.stats.runs for each in outputs] == [1, 1]
    assert sum(each.stats.emitted for each in outputs) == speculator.stats.emitted
    assert "stats" not in outputs[0]


def test_no_block_is_lost_among_threads(model):
    """Threads are switched within a few instructions here."""
    lost = []

    def work():
        for _ in range(300):
            with ngramspec.enable(model, speculator):
                if "generate" not in vars(model):
                    lost.append(1)

    speculator = Speculator("none")
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        threads = [threading.Thread(target=work) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(interval)
    assert not lost
    assert "generate" not in vars(model)


def test_a_generate_that_was_put_on_the_model_meanwhile_stays(model):
    """A wrapper around the patched ``generate`` speculates inside the block only."""
    expected = model.generate(PROMPT, **GREEDY)
    speculators = [Speculator("none"), Speculator("none")]
    calls = []
    with ngramspec.enable(model, speculators[0]):
        inside = model.generate

        def wrapper(*args, **kwargs):
            calls.append(kwargs)
            return inside(*args, **kwargs)

        model.generate = wrapper
        assert deciding(model, speculators) == 0
        with ngramspec.enable(model, speculators[1]):
            assert deciding(model, speculators) == 1
        assert model.generate is wrapper
        assert deciding(model, speculators) == 0
    assert len(calls) == 3
    assert model.generate is wrapper
    assert torch.equal(model.generate(PROMPT, **GREEDY), expected)
    assert [each.stats.runs for each in speculators] == [2, 1]
    del model.generate
    with ngramspec.enable(model):
        del model.generate
    assert "generate" not in vars(model)


def by_pickle(model):
    return pickle.loads(pickle.dumps(model))


def by_torch(model):
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


COPIES = {"deepcopy": copy.deepcopy, "pickle": by_pickle, "torch.save": by_torch}


@pytest.mark.parametrize("how", COPIES)
@pytest.mark.parametrize("own", [False, True])
def test_a_copy_made_inside_a_block_is_a_plain_model_of_its_own(model, how, own):
    if own:
        model.generate = partial(type(model).generate, model)
    expected = model.generate(PROMPT, **GREEDY)
    with ngramspec.enable(model, Speculator("none")) as handle:
        other = COPIES[how](model)
        assert torch.equal(other.generate(PROMPT, **GREEDY), expected)
        spoil(other)
        inside = other.generate(PROMPT, **GREEDY)
        assert handle.stats.runs == 0
        assert torch.equal(model.generate(PROMPT, **GREEDY), expected)
    outside = tiny_llama()
    outside.load_state_dict(other.state_dict())
    assert torch.equal(inside, outside.generate(PROMPT, **GREEDY))
    assert not torch.equal(inside, expected)
    assert torch.equal(other.generate(PROMPT, **GREEDY), inside)
    again = COPIES[how](other)
    with torch.no_grad():
        other.lm_head.weight.zero_()
    assert torch.equal(again.generate(PROMPT, **GREEDY), inside)
    with ngramspec.enable(again, Speculator("none")) as handle:
        assert deciding(again, [handle]) == 0
    assert deciding(again, [handle]) is None


@pytest.mark.parametrize("duplicate", [copy.copy, copy.deepcopy])
def test_a_copy_s_blocks_are_its_own(model, duplicate):
    speculators = [Speculator("none"), Speculator("none")]
    with ngramspec.enable(model, speculators[0]):
        other = duplicate(model)
        with ngramspec.enable(other, speculators[1]):
            assert deciding(model, speculators) == 0
            assert deciding(other, speculators) == 1
    assert torch.equal(model.generate(PROMPT, **GREEDY), other.generate(PROMPT, **GREEDY))
    assert [each.stats.runs for each in speculators] == [1, 1]


def test_the_patched_generate_looks_like_the_original(model):
    plain = model.generate
    with ngramspec.enable(model):
        assert inspect.signature(model.generate) == inspect.signature(plain)
        assert model.generate.__name__ == "generate"
        assert model.generate.__doc__ == plain.__doc__


def test_a_forgotten_block_may_end_while_another_is_entered():
    """The collector ends it in whichever thread it runs, also in one that is entering a block."""
    model = tiny_llama()

    def entered():
        with hf._lock, ngramspec.enable(model):
            pass

    thread = threading.Thread(target=entered, daemon=True)
    thread.start()
    thread.join(60)
    assert not thread.is_alive()
    assert "generate" not in vars(model)
