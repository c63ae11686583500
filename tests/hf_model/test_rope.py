"""Rotary positions that change with the length: the text stays plain ``generate``'s."""

from __future__ import annotations

import pytest
import torch
import transformers
from doubles import half_right
from families import SIZES, VOCAB

import ngramspec
from ngramspec import Speculator, UnsupportedError
from ngramspec.hf_model.compat.caches import cache_of

TURN = 40  # positions after which longrope takes its long factors
LONG = {
    "rope_type": "longrope",
    "rope_theta": 10000.0,
    "short_factor": [1.0] * 4,
    "long_factor": [4.0, 3.0, 6.0, 2.0],
    "original_max_position_embeddings": TURN,
}
SCALED = {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 2.0}
GREEDY = {"do_sample": False, "max_new_tokens": 60}


def model_of(kind, config, **settings):
    torch.manual_seed(3)
    made = getattr(transformers, config)(**(SIZES | settings))
    model = getattr(transformers, kind)(made).eval()
    model.generation_config.pad_token_id = 0
    return model


@pytest.fixture(scope="module")
def phi3():
    """Reads its whole text anew where the factors change."""
    settings = {"original_max_position_embeddings": TURN, "rope_parameters": LONG | {"factor": 5.0}}
    return model_of("Phi3ForCausalLM", "Phi3Config", **settings)


def scaled_llama():
    """A Llama whose frequencies follow the largest position of a batch, from 40 on."""
    settings = {"max_position_embeddings": 40, "rope_parameters": SCALED}
    return model_of("LlamaForCausalLM", "LlamaConfig", **settings)


@pytest.fixture(scope="module")
def scaled():
    return scaled_llama()


def prompt(length=10, seed=0):
    torch.manual_seed(seed)
    return torch.randint(3, VOCAB, (1, length))


def test_drafts_are_accepted_on_both_sides_of_the_turn(phi3):
    ids = prompt()
    text = phi3.generate(ids, **GREEDY)[0].tolist()
    events = []
    speculator = Speculator(half_right(text, VOCAB), 5, on_step=events.append)
    assert ngramspec.generate(phi3, ids, speculator=speculator, **GREEDY).tolist() == [text]
    where, accepted = ids.shape[1], []
    for event in events:
        accepted.append((where, len(event.verdict.accepted)))
        where += len(event.verdict.emitted)
    assert any(count for at, count in accepted if at < TURN - 8)
    kept = cache_of(phi3.generate(ids, return_dict_in_generate=True, **GREEDY))
    if kept.get_seq_length() == len(text) - 1:  # older transformers forget the text there
        assert any(count for at, count in accepted if at > TURN + 2)


@pytest.mark.parametrize("offset", [20, 35])
def test_positions_that_do_not_begin_at_zero(offset):
    """Each call has a new model: beyond 40, one keeps the frequencies of its longest text."""
    asked = GREEDY | {"input_ids": prompt(), "position_ids": torch.arange(10)[None] + offset}
    plain = scaled_llama().generate(**asked)
    speculator = Speculator(half_right(plain[0].tolist(), VOCAB), 5)
    assert torch.equal(scaled_llama().generate(**asked, custom_generate=speculator), plain)
    assert (speculator.stats.accepted > 0) == (offset == 20)  # none is drafted beyond 40


@pytest.mark.parametrize("name", ["phi3", "scaled"])
def test_compiled_forwards_are_refused_where_positions_change(name, request):
    asked = {"cache_implementation": "static", "max_new_tokens": 4}
    model, speculator = request.getfixturevalue(name), Speculator(compiled=True)
    with pytest.raises(UnsupportedError, match="rotary positions that change"):
        ngramspec.generate(model, prompt(), speculator=speculator, **asked)
