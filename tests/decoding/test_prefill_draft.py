"""Drafts after the prompt, which the prefill checks."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from conftest import tiny_llama
from doubles import (
    InterruptedStreamer,
    Puts,
    ScriptedDrafter,
    draft_of,
    half_right,
    liar,
    oracle,
    random_drafter,
)
from families import build
from layer_states import assert_same_cache
from plain_text import PROMPT as IDS
from plain_text import same_text
from transformers import DynamicCache

from ngramspec import Speculator, generate
from ngramspec.costs.policies import PrefillDraftLength
from ngramspec.hf_model.compat.caches import cache_argument, cache_of

VOCAB = 97


def drafters(text):
    return {
        "right": oracle(text),
        "wrong": liar(text, VOCAB),
        "half": half_right(text, VOCAB),
        "random": random_drafter(VOCAB),
    }


@pytest.mark.parametrize("kind", ["right", "wrong", "half", "random"])
@pytest.mark.parametrize("new", [2, 9, 40])  # of 2 and 9, all may be accepted in the prefill
def test_the_text_and_the_cache_are_plain_generate_s(tiny, kind, new):
    asked = {"max_new_tokens": new, "return_dict_in_generate": True, "output_scores": True}
    plain = tiny.generate(IDS, **asked)
    drafter = drafters(plain.sequences[0].tolist())[kind]
    speculator = Speculator(drafter)
    ours = tiny.generate(IDS, custom_generate=speculator, **asked)
    assert torch.equal(plain.sequences, ours.sequences)
    assert_same_cache(cache_of(ours), cache_of(plain))
    torch.testing.assert_close(*map(torch.stack, (ours.scores, plain.scores)), rtol=1e-4, atol=1e-4)
    stats = speculator.stats
    assert 1 + stats.prefill_accepted + stats.emitted == new
    if kind == "right":
        assert stats.prefill_drafted == stats.prefill_accepted == min(new - 1, 8)
    elif kind == "wrong":
        assert stats.prefill_drafted == min(new - 1, 8)
        assert stats.prefill_accepted == 0
    session, tokens = drafter.sessions[0], plain.sequences[0].tolist()
    assert session.tokens == tokens
    assert len(drafter.sessions) == drafter.closed == 1


@pytest.mark.parametrize("at", [0, 1, 4])
def test_it_ends_at_the_token_that_ends_it(tiny, at):
    plain = tiny.generate(IDS, max_new_tokens=20)
    end = int(plain[0, 10 + at])
    at = plain[0, 10:].tolist().index(end)
    asked = {"eos_token_id": end, "max_new_tokens": 20, "return_dict_in_generate": True}
    ours = tiny.generate(IDS, custom_generate=Speculator(oracle(plain[0].tolist())), **asked)
    assert torch.equal(ours.sequences, plain[:, : 11 + at])
    assert_same_cache(cache_of(ours), cache_of(tiny.generate(IDS, **asked)))


def test_a_padded_prompt_and_a_kept_cache(tiny):
    padded = torch.cat((torch.zeros((1, 3), dtype=torch.int64), IDS), 1)
    given = {"attention_mask": (torch.arange(13) >= 3).long()[None], "max_new_tokens": 20}
    stats = same_text(tiny, lambda text: Speculator(oracle(text[3:])), padded, **given)
    assert stats.prefill_accepted == 8
    cache, kept = DynamicCache(), DynamicCache()
    turn = IDS
    for _ in range(3):
        plain = tiny.generate(turn, **cache_argument(cache), max_new_tokens=12)
        speculator = Speculator(oracle(plain[0].tolist()))
        ours = generate(
            tiny, turn, **cache_argument(kept), max_new_tokens=12, speculator=speculator
        )
        assert torch.equal(plain, ours)
        assert speculator.stats.prefill_accepted == 8
        assert_same_cache(kept, cache)
        turn = torch.cat((ours, IDS), 1)


def test_sampled_text_is_that_of_the_seed(tiny):
    hot = tiny_llama(initializer_range=0.15)
    asked = {"do_sample": True, "max_new_tokens": 30}
    torch.manual_seed(3)
    plain = hot.generate(IDS, **asked)
    for kind, drafter in drafters(plain[0].tolist()).items():
        torch.manual_seed(3)
        speculator = Speculator(drafter)
        assert torch.equal(plain, hot.generate(IDS, custom_generate=speculator, **asked)), kind
        assert (speculator.stats.prefill_accepted > 0) == (kind in ("right", "half"))


def test_streamers_and_processors_see_every_token_in_order(tiny):
    given = {"max_new_tokens": 16, "repetition_penalty": 1.7}
    plain = tiny.generate(IDS, **given)
    lengths, events, streamer = [], [], Puts()

    def note(ids, scores):
        lengths.append(ids.shape[1])
        return scores

    speculator = Speculator(oracle(plain[0].tolist()), on_step=events.append)
    given |= {"logits_processor": [note], "streamer": streamer, "speculator": speculator}
    assert torch.equal(generate(tiny, IDS, **given), plain)
    assert [token for _, _, put in streamer.puts for token in np.ravel(put)] == plain[0].tolist()
    assert streamer.ended == 1
    assert lengths == list(range(10, 26))
    assert (events[0].index, events[0].width, len(events[0].accepted)) == (0, 9, 8)
    assert [token for event in events for token in event.verdict.emitted] == plain[0, 10:].tolist()


def test_an_error_while_the_prefill_s_tokens_are_told_leaves_the_cache_as_plain(tiny):
    plain = tiny.generate(IDS, max_new_tokens=12)
    cache = DynamicCache()
    given = {"max_new_tokens": 12, "streamer": InterruptedStreamer(4)}  # at the third token
    given["speculator"] = Speculator(oracle(plain[0].tolist()))
    with pytest.raises(KeyboardInterrupt):
        generate(tiny, IDS, **cache_argument(cache), **given)
    assert cache.get_seq_length() == 12  # the prompt, and those before the one told last
    again = tiny.generate(plain[:, :15], **cache_argument(cache), max_new_tokens=7)
    assert torch.equal(again, plain)


OFF = {
    "a fixed gamma": ({"gamma": 4}, {}),
    "a heuristic one": ({"gamma": "heuristic"}, {}),
    "batches": ({}, {"batch": 2}),
    "chunks": ({}, {"prefill_chunk_size": 4}),
    "static caches": ({}, {"cache_implementation": "static"}),
    "a fixed width": ({"width": 8}, {"cache_implementation": "static"}),
    "embeddings": ({}, {"embeds": True}),
    "hidden states": ({}, {"output_hidden_states": True, "return_dict_in_generate": True}),
    "one token": ({}, {"max_new_tokens": 1}),
}


@pytest.mark.parametrize("why", OFF)
def test_elsewhere_the_prefill_is_plain(tiny, why):
    settings, asked = OFF[why][0], {"max_new_tokens": 12, **OFF[why][1]}
    ids = IDS.repeat(asked.pop("batch", 1), 1)
    if asked.pop("embeds", False):
        asked["inputs_embeds"] = tiny.get_input_embeddings()(ids)
    text = tiny.generate(ids, max_new_tokens=12)[0].tolist()
    widths = []
    hook = tiny.register_forward_pre_hook(
        lambda module, args, kwargs: widths.append(kwargs["input_ids"]), with_kwargs=True
    )
    speculator = Speculator(ScriptedDrafter(lambda at, n: draft_of(text[at : at + n])), **settings)
    try:
        out = generate(tiny, ids, speculator=speculator, **asked)
    finally:
        hook.remove()
    assert speculator.stats.prefill_drafted == 0
    assert widths[0] is None or widths[0].shape[1] in (10, 4)
    sequences = out.sequences if hasattr(out, "sequences") else out
    assert sequences[0].tolist() == text[: sequences.shape[1]]


@pytest.mark.parametrize("family", ["mistral sliding", "t5"])
def test_nor_do_windows_and_encoders_have_one(family):
    speculator = Speculator(random_drafter(VOCAB))
    stats = same_text(build(family), speculator, torch.arange(5, 25)[None], max_new_tokens=10)
    assert stats.prefill_drafted == 0


def test_how_far_is_learned_from_what_became_of_it():
    ahead = PrefillDraftLength(40)
    seen = []
    for drafted, accepted in [(16, 0), (9, 0), (8, 0), (4, 0), (2, 0), (2, 2), (4, 1), (0, 0)]:
        ahead.learn(drafted, accepted)
        seen.append(ahead.limit)
    assert seen == [8, 4, 2, 2, 2, 4, 4, 4]
    for drafted in (3, 4, 8, 16, 32, 40):
        ahead.learn(drafted, drafted)
    assert ahead.limit == 40
    assert PrefillDraftLength(1).limit == 1


def test_a_speculator_learns_it_over_its_calls(tiny):
    text = tiny.generate(IDS, max_new_tokens=30)[0].tolist()
    speculator = Speculator(ScriptedDrafter(lambda at, n: draft_of([(text[10] + 1) % VOCAB] * n)))
    drafted = []
    for _ in range(5):
        tiny.generate(IDS, max_new_tokens=30, custom_generate=speculator)
        drafted.append(speculator.stats.prefill_drafted - sum(drafted))
    assert drafted == [8, 8, 4, 2, 2]  # a drafter without estimates is asked for 8 at first
