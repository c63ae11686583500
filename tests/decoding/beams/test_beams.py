"""Beam search with drafts gives plain beam search's sequences and scores; and one by hand."""

from __future__ import annotations

import itertools
import logging
import math

import pytest
import speller
import torch
from beams import BeamOracle, Watching, assert_same
from conftest import tiny_llama
from doubles import Puts
from families import FAMILIES, build
from layer_states import assert_same_cache
from plain_text import PROMPT, same_text
from transformers import DynamicCache, GenerationConfig
from transformers.generation.stopping_criteria import EosTokenCriteria, MaxLengthCriteria
from transformers.utils.logging import warning_once

import ngramspec
from ngramspec import Speculator, UnsupportedError
from ngramspec.decoding.beams.search import BeamSearch
from ngramspec.hf_model.compat.caches import cache_argument, cache_of
from ngramspec.hf_model.compat.package import before

PAIR = torch.tensor([[0, 0, 0, 8, 5, 6, 7, 8, 5, 6], [11, 12, 13, 11, 12, 13, 11, 12, 13, 11]])
MASK = torch.ones_like(PAIR).masked_fill(PAIR == 0, 0)
ENDS = [*range(3, 14)]  # so many end-of-sequence tokens that sequences end early
SETTINGS = [
    {"num_beams": 2},
    {"num_beams": 3, "eos_token_id": ENDS, "pad_token_id": 0},
    {"num_beams": 4, "eos_token_id": ENDS, "early_stopping": True, "length_penalty": 2.0},
    {"num_beams": 4, "eos_token_id": ENDS, "early_stopping": "never", "length_penalty": -0.5},
    {"num_beams": 3, "eos_token_id": 5, "early_stopping": "never", "num_return_sequences": 3},
    {"num_beams": 4, "no_repeat_ngram_size": 3, "repetition_penalty": 1.3, "min_new_tokens": 6},
    {"num_beams": 2, "eos_token_id": ENDS, "num_return_sequences": 2, "length_penalty": 0.0},
    {"num_beams": 5, "eos_token_id": 7, "bad_words_ids": [[8, 9]], "renormalize_logits": True},
]
TIES = {"t5"}  # its logits of hundreds leave ties by rounding, so that it runs in float64
CASES = [*itertools.product(FAMILIES, range(len(SETTINGS)))]


def both(model, settings, *, rows=1, right=0.9, **speculator):
    """What plain and our beam search return, and the Speculator."""
    kwargs = {"max_new_tokens": 14, "do_sample": False, "return_dict_in_generate": True}
    kwargs |= {"output_scores": True, "output_logits": True} | settings
    inputs = {"input_ids": PROMPT} if rows == 1 else {"input_ids": PAIR, "attention_mask": MASK}
    oracle = BeamOracle(right=right)
    plain = model.generate(**inputs, **kwargs, logits_processor=[oracle.watch])
    ours = Speculator(oracle, **{"gamma": 4} | speculator)
    return plain, ngramspec.generate(model, **inputs, **kwargs, speculator=ours), ours


def check(family, which, rows):
    model = build(family).to(torch.float64 if family in TIES else torch.float32)
    plain, ours, speculator = both(model, SETTINGS[which], rows=rows)
    assert_same(plain, ours)
    assert speculator.stats.drafter_faults == 0
    return speculator.stats


@pytest.mark.every(62, 2)
@pytest.mark.parametrize(("family", "which"), CASES, ids=lambda each: str(each))
@pytest.mark.parametrize("rows", [1, 2])
def test_beams_of_every_family_and_setting(family, which, rows):
    check(family, which, rows)


@pytest.mark.parametrize("family", ["llama", "gpt2", "bart", "t5"])
def test_batches_of_beams(family):
    assert check(family, 0, rows=2).drafted > 0


def test_drafts_are_accepted():
    stats = [check("llama", which, rows=1) for which in (0, 5)]
    assert all(each.accepted > 0 and each.tokens_per_call > 1.05 for each in stats)


def test_the_prefill_runs_a_prompt_once_for_all_of_its_beams(tiny, monkeypatch):
    rows, embedding = [], torch.nn.functional.embedding

    def counted(ids, *args, **kwargs):  # hooks on modules would rule it out
        rows.append(len(ids))
        return embedding(ids, *args, **kwargs)

    monkeypatch.setattr(torch.nn.functional, "embedding", counted)
    kwargs = {"attention_mask": MASK, "num_beams": 4, "max_new_tokens": 4, "do_sample": False}
    plain = tiny.generate(PAIR, **kwargs)
    assert rows == [8, 8, 8, 8]
    ours = ngramspec.generate(tiny, PAIR, **kwargs)
    assert torch.equal(plain, ours)
    assert rows[4:] == [2, 8, 8, 8]


@pytest.mark.parametrize("right", [0.0, 0.9])
def test_right_and_wrong_drafts_over_a_static_cache_change_nothing(tiny, right):
    settings = {"num_beams": 4, "max_new_tokens": 20, "cache_implementation": "static"}
    plain, ours, speculator = both(tiny, settings, right=right)
    assert_same(plain, ours)
    stats = speculator.stats
    assert stats.drafted > 0
    assert (stats.accepted > 0) == (right > 0)
    assert stats.emitted == 4 * 19  # every beam is a row, and the first token is the prefill's
    assert stats.target_calls % 4 == 0


@pytest.mark.parametrize("family", ["llama", "mistral sliding", "bart"])
def test_the_returned_cache_is_that_of_plain_beam_search(family):
    model = build(family)
    plain, ours, speculator = both(model, {"num_beams": 4, "max_new_tokens": 20})
    assert speculator.stats.accepted > 0
    assert_same_cache(cache_of(ours), cache_of(plain))


def test_a_call_that_returns_states_has_no_drafts(tiny):
    plain, ours, speculator = both(tiny, {"num_beams": 3, "output_hidden_states": True})
    assert_same(plain, ours)
    assert speculator.stats.drafted == 0


def test_a_criterion_that_fails_leaves_the_cache_where_plain_beam_search_does(tiny):
    oracle, caches = BeamOracle(right=1.0), []
    for speculator in (None, Speculator(oracle, gamma=4)):
        cache = DynamicCache(config=tiny.config)
        kwargs = {"num_beams": 4, "max_new_tokens": 30, "do_sample": False}
        kwargs |= {**cache_argument(cache), "stopping_criteria": [Watching(fail_at=18)]}
        if speculator is None:
            kwargs["logits_processor"] = [oracle.watch]
        else:
            kwargs["custom_generate"] = speculator
        with pytest.raises(RuntimeError, match="fails at 18"):
            tiny.generate(PROMPT, **kwargs)
        caches.append(cache)
    assert_same_cache(caches[1], caches[0])


def test_the_hook_and_a_config_that_asks_for_beams():
    model = tiny_llama(eos_token_id=3)
    model.generation_config = GenerationConfig(
        num_beams=4, early_stopping=True, length_penalty=2.0, eos_token_id=3, pad_token_id=0
    )
    plain = model.generate(PROMPT, max_new_tokens=16)
    speculator = Speculator()
    assert torch.equal(model.generate(PROMPT, max_new_tokens=16, custom_generate=speculator), plain)
    with ngramspec.enable(model, speculator):
        assert torch.equal(model.generate(PROMPT, max_new_tokens=16), plain)
    assert speculator.stats.runs == 2


REFUSED = [
    ({"do_sample": True}, {}, "num_beams=3 with do_sample=True .*pass num_beams=1"),
    ({"num_beams": 4, "num_beam_groups": 2}, {}, "num_beam_groups=2"),
    ({"constraints": [1]}, {}, "constraints"),
    ({"streamer": Puts()}, {}, "streamer cannot be used with num_beams=3"),
    ({}, {"verification": "typical"}, "verification='typical'"),
    ({}, {"lenience": 0.5}, "lenience below 1"),
]


@pytest.mark.parametrize(("kwargs", "settings", "message"), REFUSED)
def test_what_is_refused_with_beams(tiny, kwargs, settings, message):
    kwargs = {"num_beams": 3, "max_new_tokens": 4, "do_sample": False} | kwargs
    with pytest.raises(UnsupportedError, match=message):
        ngramspec.generate(tiny, PROMPT, speculator=Speculator(**settings), **kwargs)


@pytest.mark.slow
@pytest.mark.parametrize("which", [0, 4])
def test_the_real_model_in_beams(smollm2, prompts, which):
    kwargs = {"num_beams": 2, "max_new_tokens": 16, "do_sample": False, "pad_token_id": 0}
    kwargs |= {"return_dict_in_generate": True, "output_scores": True, "output_logits": True}
    speculator = Speculator(gamma=6)
    ours = ngramspec.generate(smollm2.model, **prompts[which], **kwargs, speculator=speculator)
    assert_same(smollm2.model.generate(**prompts[which], **kwargs), ours)
    assert speculator.stats.accepted > 0


@pytest.mark.parametrize("drafter", ["recycle", "copy+ngram+recycle"])
def test_drafters_that_learn_from_the_target_s_own_candidates(tiny, drafter):
    stats = same_text(tiny, Speculator(drafter, 3), num_beams=3, max_new_tokens=20)
    assert stats.drafter_faults == 0


@pytest.mark.parametrize(("beams", "least"), [(2, 1.8), (8, 1.25)])
def test_copying_takes_fewer_forwards(beams, least):
    """Six sentences alone, and three of them in a batch."""
    model, speculator = speller.load(), Speculator(gamma=6)
    kwargs = {"num_beams": beams, "max_new_tokens": 30, "do_sample": False}
    kwargs |= {"return_dict_in_generate": True, "output_scores": True, "output_logits": True}
    given = [each for each, _ in speller.sentences(seed=7, count=6)]
    for rows in (*([each] for each in given), given[:3]):
        ids = speller.padded(rows)
        own = {"input_ids": ids, "attention_mask": (ids != speller.PAD).long(), **kwargs}
        alone = speculator if len(rows) == 1 else Speculator(gamma=6)
        assert_same(model.generate(**own), ngramspec.generate(model, **own, speculator=alone))
    assert speculator.stats.tokens_per_call > least


def test_the_drafts_of_beams_are_chains(tiny):
    speculator = Speculator(gamma=4, tree=8)
    kwargs = {"num_beams": 2, "max_new_tokens": 30, "do_sample": False}
    ours = ngramspec.generate(tiny, PROMPT, **kwargs, speculator=speculator)
    assert torch.equal(ours, tiny.generate(PROMPT, **kwargs))
    assert speculator.stats.limits == {"drafts are chains: beam search": 1}


def test_padding_tokens_of_beams_that_are_dropped_are_warned_of(caplog):
    """GPT-2 does so in a forward without a mask, once; the sequences have no such token.

    In transformers 5.16 it does not.
    """
    model, caught = build("gpt2", pad_token_id=30), []
    ids = torch.tensor([[5, 6, 7, 8, 5, 6, 7, 9, 5, 6], [2, 3, 9, 8, 7, 6, 5, 9, 8, 7]])
    caplog.set_level(logging.WARNING, "transformers")
    for custom in (None, Speculator(gamma=6)):
        warning_once.cache_clear()
        caplog.clear()
        model.generate(ids, custom_generate=custom, num_beams=2, max_new_tokens=24)
        caught.append("may be padded" in caplog.text)
    assert caught == [not before("5.19")] * 2


EOS = 0
FIRST = [[0.1, 0.6, 0.3]] * 2  # both beams are the prompt: only the first is continued
SECOND = [[0.5, 0.3, 0.2], [0.9, 0.05, 0.05]]  # after token 1, after token 2


def search(**changes):
    settings = {"num_beams": 2, "num_return_sequences": 2, "eos_token_id": EOS, "length_penalty": 1}
    settings |= {"early_stopping": True, "max_length": 9} | changes
    criteria = [MaxLengthCriteria(settings["max_length"]), EosTokenCriteria(EOS)]
    return BeamSearch(torch.tensor([[9], [9]]), GenerationConfig(**settings), criteria)


def logs(probs):
    return torch.tensor(probs).log()


def test_two_beams_by_hand():
    beams = search()
    assert beams.step(logs(FIRST)) == ([0, 0], [1, 2])  # 0.6 and 0.3; EOS, 0.1, is third
    assert not beams.stopped
    # 0.6 * 0.5 and 0.3 * 0.9 end; then 0.6 * 0.3 and 0.6 * 0.2, both after the first beam.
    assert beams.step(logs(SECOND)) == ([0, 0], [1, 2])
    assert beams.stopped
    assert beams.ids().tolist() == [[9, 1, 1], [9, 1, 2]]
    result = beams.result()
    assert result.ids.tolist() == [[9, 1, EOS], [9, 2, EOS]]
    assert result.origins.tolist() == [[0, 0], [0, 1]]
    expected = [math.log(0.3) / 2, math.log(0.27) / 2]
    assert result.scores.tolist() == pytest.approx(expected, abs=1e-6)


def test_the_search_goes_on_while_a_beam_may_become_better():
    beams = search(early_stopping="never", length_penalty=4.0)  # the longer, the better
    beams.step(logs(FIRST))
    beams.step(logs(SECOND))
    assert not beams.stopped
    early = search(early_stopping=False)  # log(0.18) / 2 is below both
    early.step(logs(FIRST))
    early.step(logs(SECOND))
    assert early.stopped


def test_fillers_follow_a_sequence_s_end():
    beams = search(early_stopping="never", length_penalty=4.0, max_length=4, pad_token_id=7)
    for probs in (FIRST, SECOND, FIRST):
        beams.step(logs(probs))
    found = beams.result()
    assert beams.stopped
    assert all(set(row[row.index(EOS) + 1 :]) <= {7} for row in found.ids.tolist() if EOS in row)
    assert search(eos_token_id=None).filler == -1
    assert search(pad_token_id=0).filler == EOS
