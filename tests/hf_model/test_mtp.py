"""MTP layers: their rows equal a computation from scratch, and the text stays the baseline's."""

from __future__ import annotations

import copy
from collections import OrderedDict
from importlib import import_module

import numpy as np
import pytest
import torch
from mtp_models import FAMILIES, mtp_model
from plain_text import PROMPT

import ngramspec
from ngramspec import Speculator
from ngramspec.decoding.distributed import Ranks
from ngramspec.hf_model import outputs
from ngramspec.hf_model.assistants import MtpHead, StateChannel, mtp_layers
from ngramspec.hf_model.compat.caches import cache_argument, cache_of

MTP = getattr(import_module("transformers.modeling_layers"), "MtpModel", None)
if not hasattr(MTP, "forward_layer"):
    pytest.skip("this version of transformers runs no single MTP layer", allow_module_level=True)
PADDED = torch.tensor([[0, 0, 0, 8, 5, 6, 7, 9, 5, 6], [5, 6, 7, 8, 5, 6, 7, 9, 5, 7]])
GREEDY = {"do_sample": False, "max_new_tokens": 24, "pad_token_id": 0}


@pytest.mark.every(4)
def test_a_version_without_single_layers_is_refused(model, monkeypatch):
    monkeypatch.delattr(MTP, "forward_layer")
    with pytest.raises(ngramspec.UnsupportedError, match=r"use_mtp=True .* transformers 5\.20"):
        ngramspec.generate(model, PROMPT, use_mtp=True, **GREEDY)


def test_only_one_process_may_draft_with_mtp_layers(model, monkeypatch):
    monkeypatch.setattr("ngramspec.decoding.setup.ranks_for", lambda call: Ranks(synced=True))
    with pytest.raises(ngramspec.UnsupportedError, match="where one process decodes"):
        ngramspec.generate(model, PROMPT, use_mtp=True, **GREEDY)


@pytest.fixture(scope="module", params=sorted(FAMILIES))
def model(request, tmp_path_factory):
    return mtp_model(request.param, tmp_path_factory.mktemp(request.param))


def from_scratch(model, layers, text, path):
    """The logits of every layer for a text and draft tokens after it, with a new cache."""
    from transformers.cache_utils import MtpCache

    with torch.no_grad():
        states = model.model(torch.tensor([text[:-1]])).last_hidden_state
        cache, rows = MtpCache(config=layers.config), []
        for k in range(len(path) + 1):
            ids = torch.tensor([[*text, *path][1 + k : len(text) + k]])
            places = torch.arange(1 + k, len(text) + k)[None]
            states = layers.forward_layer(k, states, places, cache, input_ids=ids)
            rows.append(layers._project_to_logits(states[:, -1])[0])
    return torch.stack(rows)


@pytest.mark.every(4)
@pytest.mark.parametrize("seed", range(2))
def test_rows_equal_a_computation_from_scratch(model, seed):
    """Over steps that accept some tokens, consult some layers, and change the path."""
    rng, layers = np.random.default_rng(seed), mtp_layers(model)
    text = rng.integers(2, 97, 9).tolist()
    channel = StateChannel(model, None, 1)
    head = MtpHead(layers, channel, 0)
    with torch.no_grad(), channel.reading():
        model(torch.tensor([text[:-1]]))
    channel.keep_prompt(0)
    for _ in range(20):
        head.commit(len(text))
        assert head.ready
        for _ in range(int(rng.integers(0, 3))):
            path = rng.integers(2, 97, int(rng.integers(0, head.ahead))).tolist()
            keep = min(head.length, len(text) - 1)
            head.truncate(keep)
            rows = head.forward(torch.tensor([*text, *path][keep:]), len(path) + 1)
            torch.testing.assert_close(
                rows, from_scratch(model, layers, text, path), atol=1e-4, rtol=1e-3
            )
        new = rng.integers(2, 97, int(rng.integers(1, 5))).tolist()
        with torch.no_grad(), channel.reading():
            model(torch.tensor([[*text, *new][:-1]]))
        count = len(new)
        channel.offer(lambda states, count=count: states[:, -count:])
        channel.keep([range(count)], prefill=False)
        head.truncate(len(text))
        text += new


def test_missing_states_make_the_head_begin_again(model):
    channel = StateChannel(model, None, 1)
    head = MtpHead(mtp_layers(model), channel, 0)
    text = [5, 6, 7, 8, 9, 10, 11]
    head.commit(3)
    assert not head.ready
    with torch.no_grad(), channel.reading():
        model(torch.tensor([text]))
    channel.offer(lambda states: states[:, :2])
    channel.keep([range(2)], prefill=False)
    head.commit(6)  # the states of tokens 3 and 4, after three unknown ones
    assert head.ready
    head.forward(torch.tensor(text[:6]), 1)
    head.commit(7)
    assert not head.ready


@pytest.mark.every(4)
@pytest.mark.parametrize("rows", [1, 2, "unequal"])
def test_greedy_text_is_the_baselines(model, rows):
    ids = PADDED if rows == "unequal" else PROMPT.repeat(rows, 1)
    given = {"input_ids": ids, "attention_mask": (ids != 0).long(), **GREEDY}
    plain = model.generate(**given)
    speculator = Speculator("none", gamma=4)
    ours = ngramspec.generate(model, **given, use_mtp=True, speculator=speculator)
    assert ours.tolist() == plain.tolist()
    assert speculator.stats.drafter_faults == 0
    assert speculator.stats.sources["mtp"].drafted > 10
    ours = ngramspec.generate(model, **given, speculator=Speculator("auto+mtp", gamma=4))
    assert ours.tolist() == plain.tolist()


def test_its_draft_is_transformers_own(model):
    from transformers.generation.candidate_generator import MTPCandidateGenerator

    with torch.no_grad():
        out = model(PROMPT, output_hidden_states=True)
    text = torch.cat((PROMPT, out.logits[:, -1:].argmax(-1)), dim=1)
    config = model.generation_config
    generator = MTPCandidateGenerator(model, config, {})
    places = {"position_ids": torch.arange(text.shape[1])[None]}
    theirs, _ = generator.get_candidates(text, places, out, False, 0)
    steps = []
    speculator = Speculator("none", gamma=2, on_step=steps.append)
    ngramspec.generate(model, PROMPT, use_mtp=True, speculator=speculator, **GREEDY)
    first = next(step for step in steps if step.drafted)
    assert first.index == 1
    assert list(first.drafted) == theirs[0, text.shape[1] :].tolist()[: len(first.drafted)]


def test_sampling_and_a_second_turn(model):
    own = {"return_dict_in_generate": True, **GREEDY}
    plain = model.generate(PROMPT, **own)
    ours = ngramspec.generate(model, PROMPT, use_mtp=True, speculator=Speculator(gamma=4), **own)
    assert ours.sequences.tolist() == plain.sequences.tolist()
    turn = torch.cat((ours.sequences, PROMPT), dim=1)
    second = ngramspec.generate(
        model,
        turn,
        **cache_argument(cache_of(ours)),
        use_mtp=True,
        speculator=Speculator("none", gamma=4),
        **GREEDY,
    )
    expected = model.generate(turn, **cache_argument(cache_of(plain)), **GREEDY)
    assert second.tolist() == expected.tolist()
    sampled = {"do_sample": True, "max_new_tokens": 16, "num_return_sequences": 2}
    speculator = Speculator("none", gamma=2)
    out = ngramspec.generate(model, PROMPT, use_mtp=True, speculator=speculator, **sampled)
    assert out.shape == (2, PROMPT.shape[1] + 16)
    assert speculator.stats.drafter_faults == 0


def test_without_states_it_drafts_nothing(model):
    given = {"do_sample": False, "max_new_tokens": 12, "num_beams": 2, "pad_token_id": 0}
    speculator = Speculator("none", gamma=2)
    ours = ngramspec.generate(model, PROMPT, use_mtp=True, speculator=speculator, **given)
    assert ours.tolist() == model.generate(PROMPT, **given).tolist()
    assert speculator.stats.drafter_faults == speculator.stats.drafted == 0


def test_a_model_without_a_checkpoint_is_refused(model):
    from transformers import AutoModelForCausalLM

    bare = AutoModelForCausalLM.from_config(model.config).eval()
    with pytest.raises(ngramspec.UnsupportedError, match="cannot be read"):
        ngramspec.generate(bare, PROMPT, use_mtp=True, **GREEDY)


def test_the_hook_and_a_config_ask_for_it_too(model):
    plain = model.generate(PROMPT, **GREEDY)
    hook, by_config = Speculator("none", gamma=2), Speculator("none", gamma=2)
    ours = model.generate(PROMPT, use_mtp=True, custom_generate=hook, **GREEDY)
    assert ours.tolist() == plain.tolist()
    config = copy.deepcopy(model.generation_config)
    config.use_mtp = True
    given = {"generation_config": config, "speculator": by_config, **GREEDY}
    assert ngramspec.generate(model, PROMPT, **given).tolist() == plain.tolist()
    for speculator in (hook, by_config):
        assert speculator.stats.sources["mtp"].drafted > 0


def test_a_forward_that_was_compiled_before_drafts_nothing(model, monkeypatch):
    """Its graph calls no hook that was registered later, so the head never knows a state."""
    plain, decoder = model.generate(PROMPT, **GREEDY), model.get_decoder()
    monkeypatch.setattr(decoder, "_forward_hooks", OrderedDict())
    monkeypatch.setattr(outputs, "call_after", lambda *_: None)
    speculator = Speculator("none", gamma=2)
    ours = ngramspec.generate(model, PROMPT, use_mtp=True, speculator=speculator, **GREEDY)
    assert ours.tolist() == plain.tolist()
    assert speculator.stats.drafted == speculator.stats.drafter_faults == 0
