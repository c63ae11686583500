"""What stands in for a model's ``generate``: overlapping blocks, threads, copies, replacements."""

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
from conftest import tiny_llama

import ngramspec
from ngramspec import Speculator, hf

PROMPT = torch.tensor([[5, 6, 7, 8, 5, 6, 7, 9, 5, 6]])
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


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 2, 0), (1, 0, 2), (2, 0, 1)])
def test_blocks_that_overlap_end_in_any_order(model, order):
    """The newest that has not ended decides; the last puts back what was there."""
    before = model.generate
    speculators = [Speculator("none") for _ in range(3)]
    blocks = []
    for i, speculator in enumerate(speculators):
        blocks.append(ngramspec.enabled(model, speculator))
        assert blocks[-1].__enter__() is speculator
        assert deciding(model, speculators) == i
    going = [0, 1, 2]
    for i in order:
        blocks[i].__exit__(None, None, None)
        going.remove(i)
        assert deciding(model, speculators) == max(going, default=None)
    assert "generate" not in vars(model)
    assert model.generate == before


def test_one_speculator_in_two_blocks_of_a_model(model):
    speculator = Speculator("none")
    first, second = (ngramspec.enabled(model, speculator) for _ in range(2))
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    assert deciding(model, [speculator]) == 0
    second.__exit__(None, None, None)
    assert "generate" not in vars(model)


def test_an_attribute_of_the_object_s_own_is_put_back(model):
    own = model.generate = partial(type(model).generate, model)
    outer, inner = ngramspec.enabled(model), ngramspec.enabled(model)
    outer.__enter__()
    inner.__enter__()
    outer.__exit__(None, None, None)
    inner.__exit__(None, None, None)
    assert model.generate is own


def test_threads_that_come_and_go_leave_the_model_as_it_was(model):
    expected = model.generate(PROMPT, **GREEDY)
    start, wrong = threading.Barrier(4), []

    def work():
        start.wait()
        for _ in range(25):
            with ngramspec.enabled(model, Speculator("none")):
                if not torch.equal(model.generate(PROMPT, **GREEDY), expected):
                    wrong.append(1)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert "generate" not in vars(model)


def test_no_block_is_lost_among_threads(model):
    """Threads are switched within a few instructions here."""
    lost = []

    def work():
        for _ in range(1500):
            with ngramspec.enabled(model, speculator):
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


@pytest.mark.parametrize("step", ["enter", "leave"])
def test_blocks_begin_and_end_one_at_a_time(model, step):
    block = ngramspec.enabled(model)
    if step == "leave":
        block.__enter__()
    call = block.__enter__ if step == "enter" else partial(block.__exit__, None, None, None)
    thread = threading.Thread(target=call)
    with hf._lock:
        before = vars(model).get("generate")
        thread.start()
        thread.join(0.1)
        assert thread.is_alive()
        assert vars(model).get("generate") is before
    thread.join()
    assert ("generate" in vars(model)) == (step == "enter")


def test_a_generate_that_was_put_on_the_model_meanwhile_stays(model):
    """A wrapper around the stand-in speculates inside the block and is plain behind it."""
    expected = model.generate(PROMPT, **GREEDY)
    speculators = [Speculator("none"), Speculator("none")]
    calls = []
    with ngramspec.enabled(model, speculators[0]):
        inside = model.generate

        def wrapper(*args, **kwargs):
            calls.append(kwargs)
            return inside(*args, **kwargs)

        model.generate = wrapper
        assert deciding(model, speculators) == 0
        with ngramspec.enabled(model, speculators[1]):
            assert deciding(model, speculators) == 1
        assert model.generate is wrapper
        assert deciding(model, speculators) == 0
    assert len(calls) == 3
    assert model.generate is wrapper
    assert torch.equal(model.generate(PROMPT, **GREEDY), expected)
    assert [each.stats.runs for each in speculators] == [2, 1]
    del model.generate
    with ngramspec.enabled(model):
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
    with ngramspec.enabled(model, Speculator("none")) as speculator:
        other = COPIES[how](model)
        assert torch.equal(other.generate(PROMPT, **GREEDY), expected)
        spoil(other)
        inside = other.generate(PROMPT, **GREEDY)
        assert speculator.stats.runs == 0
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
    with ngramspec.enabled(again, Speculator("none")) as speculator:
        assert deciding(again, [speculator]) == 0
    assert deciding(again, [speculator]) is None


def test_blocks_of_a_model_and_of_its_copy_are_apart(model):
    speculators = [Speculator("none"), Speculator("none")]
    first = ngramspec.enabled(model, speculators[0])
    first.__enter__()
    other = copy.deepcopy(model)
    with ngramspec.enabled(other, speculators[1]):
        assert deciding(model, speculators) == 0
        assert deciding(other, speculators) == 1
        first.__exit__(None, None, None)
        assert deciding(model, speculators) is None
        assert deciding(other, speculators) == 1
    assert deciding(other, speculators) is None


def test_a_shallow_copy_s_blocks_are_its_own(model):
    speculators = [Speculator("none"), Speculator("none")]
    with ngramspec.enabled(model, speculators[0]):
        other = copy.copy(model)
        with ngramspec.enabled(other, speculators[1]):
            assert deciding(model, speculators) == 0
            assert deciding(other, speculators) == 1
    assert torch.equal(model.generate(PROMPT, **GREEDY), other.generate(PROMPT, **GREEDY))
    assert [each.stats.runs for each in speculators] == [1, 1]


def test_the_stand_in_looks_like_what_it_stands_in_for(model):
    plain = model.generate
    with ngramspec.enabled(model):
        assert inspect.signature(model.generate) == inspect.signature(plain)
        assert model.generate.__name__ == "generate"
        assert model.generate.__doc__ == plain.__doc__


def test_a_forgotten_block_may_end_while_another_is_entered():
    """The collector ends it in whichever thread it runs, also in one that is entering a block."""
    model = tiny_llama()

    def entered():
        with hf._lock, ngramspec.enabled(model):
            pass

    thread = threading.Thread(target=entered, daemon=True)
    thread.start()
    thread.join(60)
    assert not thread.is_alive()
    assert "generate" not in vars(model)
