"""Assistants in live generation: the text stays the baseline's."""

from __future__ import annotations

import copy
import gc
import threading
import weakref

import pytest
import torch
from conftest import tiny_llama
from plain_text import PROMPT

import ngramspec
from ngramspec import Speculator
from ngramspec.drafters import ModelDrafter
from ngramspec.hf_model.compat.caches import cache_argument, cache_of

PADDED = torch.tensor([[0, 0, 0, 8, 5, 6, 7, 9, 5, 6], [5, 6, 7, 8, 5, 6, 7, 9, 5, 7]])
GREEDY = {"do_sample": False, "max_new_tokens": 40}


def arguments(rows):
    """Prompts: one row, two equal rows, two rows of unequal length."""
    if rows == "unequal":
        return {"input_ids": PADDED, "attention_mask": (PADDED != 0).long()}
    ids = PROMPT.repeat(rows, 1)
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids)}


@pytest.mark.every(4)
@pytest.mark.parametrize("rows", [1, 2, "unequal"])
def test_greedy_text_is_the_baselines(tiny, close, rows):
    given = arguments(rows) | GREEDY | {"pad_token_id": 0}
    plain = tiny.generate(**given)
    speculator = Speculator(gamma=8)  # without costs the head is consulted where it adds
    for _ in range(3):
        ours = ngramspec.generate(tiny, **given, speculator=speculator, assistant_model=close)
        assert ours.tolist() == plain.tolist()
    assert speculator.stats.drafter_faults == 0
    assert speculator.stats.sources["model"].accepted > 0


def test_several_sequences_and_a_second_turn(tiny, close):
    given = {"num_return_sequences": 3, "do_sample": True, "max_new_tokens": 12}
    out = ngramspec.generate(tiny, PROMPT, assistant_model=close, **given)
    assert out.shape[0] == 3
    kept = {"return_dict_in_generate": True, **GREEDY}
    first = ngramspec.generate(tiny, PROMPT, assistant_model=close, **kept)
    plain = tiny.generate(PROMPT, **kept)
    assert first.sequences.tolist() == plain.sequences.tolist()
    turn = torch.cat((first.sequences, PROMPT), dim=1)
    more = {"input_ids": turn, **GREEDY}
    ours = ngramspec.generate(
        tiny, **more, **cache_argument(cache_of(first)), assistant_model=close
    )
    assert ours.tolist() == tiny.generate(**more, **cache_argument(cache_of(plain))).tolist()


def test_threads_share_a_model_and_its_assistant(tiny, close):
    plain, found = tiny.generate(PROMPT, **GREEDY).tolist(), []
    speculator = Speculator(ModelDrafter(close))

    def run(drafts):
        own = {"speculator": speculator if drafts else Speculator("none")}
        outs = (ngramspec.generate(tiny, PROMPT, **GREEDY, **own) for _ in range(3))
        found.extend(each.tolist() for each in outs)

    threads = [threading.Thread(target=run, args=(each % 2 == 0,)) for each in range(4)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert found == [plain] * 12


def test_an_error_in_a_head_leaves_the_text(tiny, close):
    broken = copy.deepcopy(close)
    calls = []

    def fail(*_):
        calls.append(1)
        if len(calls) > 2:
            raise RuntimeError("the head is broken")

    broken.register_forward_pre_hook(fail)
    plain = tiny.generate(PROMPT, **GREEDY)
    speculator = Speculator(gamma=8)
    out = ngramspec.generate(tiny, PROMPT, **GREEDY, assistant_model=broken, speculator=speculator)
    assert out.tolist() == plain.tolist()
    assert len(calls) > 2
    assert speculator.stats.drafter_faults > 0


def test_what_cannot_draft_is_refused_by_name(tiny, close):
    named = type("Gemma4AssistantForCausalLM", (type(close),), {})
    other = copy.copy(close)
    other.__class__ = named
    refused = [
        ({"assistant_model": other}, "Gemma4Assistant.*keys and values"),
        ({"assistant_model": close, "use_mtp": True}, "cannot be combined"),
        ({"use_mtp": True}, "no layers for multi-token prediction"),
        ({"assistant_model": tiny_llama(vocab=50)}, "token ids"),
    ]
    for given, message in refused:
        with pytest.raises(ngramspec.UnsupportedError, match=message):
            ngramspec.generate(tiny, PROMPT, **GREEDY, **given)


@pytest.mark.parametrize("given", [5, True, [1]])
def test_an_assistant_that_is_no_model_is_an_error_that_names_it(tiny, given):
    with pytest.raises(TypeError, match=r"assistant_model must be a causal .* or the path .*, got"):
        ngramspec.generate(tiny, PROMPT, **GREEDY, assistant_model=given)


@pytest.mark.parametrize("given", [{"assistant_early_exit": 1}, {"use_mtp": True}])
def test_a_head_that_cannot_draft_is_left_out_where_the_baseline_is_wanted(tiny, given, caplog):
    plain = tiny.generate(PROMPT, **GREEDY)
    speculator = Speculator(unsupported="plain")
    out = ngramspec.generate(tiny, PROMPT, **GREEDY, **given, speculator=speculator)
    assert out.tolist() == plain.tolist()
    assert speculator.stats.runs == 0
    assert f"decoding without speculation: {next(iter(given))}" in caplog.text


@pytest.mark.parametrize("drafter", ["auto", "none", "copy(min_match=2)+ngram(window=64)"])
def test_a_speculator_does_not_keep_a_calls_assistant_alive(tiny, drafter):
    speculator = Speculator(drafter, gamma=4)
    for again in range(2):  # two assistants, each used twice
        assistant = tiny_llama()
        kept = weakref.ref(assistant)
        gc.disable()
        try:
            for _ in range(2):
                ngramspec.generate(
                    tiny, PROMPT, **GREEDY, assistant_model=assistant, speculator=speculator
                )
            assert speculator.stats.sources["model"].accepted > 5 * again
            del assistant
            assert kept() is None
        finally:
            gc.enable()
    assert speculator.stats.drafter_faults == 0
