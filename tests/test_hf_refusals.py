"""What the transformers boundary refuses, or hands to plain generate, and how it says so."""

from __future__ import annotations

import pytest
import torch
from conftest import tiny_llama
from doubles import Puts
from transformers import GenerationConfig

import ngramspec
from ngramspec import Speculator, UnsupportedError
from ngramspec.hf_model.support import check_request

PROMPT = torch.tensor([[5, 6, 7, 8, 5, 6, 7, 9, 5, 6]])

REFUSED = [
    ({"num_beams": 2, "do_sample": True}, "num_beams=2"),
    ({"prompt_lookup_num_tokens": 3}, "prompt_lookup_num_tokens=3"),
    ({"penalty_alpha": 0.6, "top_k": 4}, "penalty_alpha=0.6"),
    ({"use_cache": False}, "use_cache=False"),
    ({"assistant_early_exit": 1}, "assistant_early_exit=1 .* small model as assistant_model"),
]


@pytest.mark.parametrize(("kwargs", "message"), REFUSED)
def test_what_cannot_be_speculated_is_refused_by_name(tiny, kwargs, message):
    kwargs = {"max_new_tokens": 4, "do_sample": False} | kwargs
    for call in (
        lambda: tiny.generate(PROMPT, custom_generate=Speculator(), **kwargs),
        lambda: ngramspec.generate(tiny, PROMPT, **kwargs),
    ):
        with pytest.raises(UnsupportedError, match=message):
            call()


PLAIN = [each[0] for each in REFUSED if "penalty_alpha" not in each[0]]


@pytest.mark.parametrize("kwargs", PLAIN)
def test_unsupported_plain_hands_over_to_generate(tiny, kwargs, caplog):
    kwargs = {"max_new_tokens": 6, "do_sample": False} | kwargs
    torch.manual_seed(0)
    plain = tiny.generate(PROMPT, **kwargs)
    speculator = Speculator(unsupported="plain")
    for _ in range(2):
        torch.manual_seed(0)
        ours = ngramspec.generate(tiny, PROMPT, speculator=speculator, **kwargs)
        for name in ("sequences",) if hasattr(plain, "sequences") else ():
            assert torch.equal(getattr(plain, name), getattr(ours, name))
        if not hasattr(plain, "sequences"):
            assert torch.equal(plain, ours)
    logged = [r for r in caplog.records if "without speculation" in r.getMessage()]
    assert len(logged) == 1
    assert speculator.stats.runs == 0


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("constraints", [1]),
        ("force_words_ids", [[5]]),
        ("num_beam_groups", 2),
        ("dola_layers", "low"),
    ],
)
def test_what_the_hub_would_decode_is_refused_on_the_hook_too(tiny, name, value):
    config = GenerationConfig(max_new_tokens=4, do_sample=False)
    setattr(config, name, value)
    with pytest.raises(UnsupportedError, match=name):
        check_request(config)
    setattr(config, name, 1 if name == "num_beam_groups" else None)
    check_request(config)


def test_what_is_switched_off_is_no_obstacle(tiny):
    kwargs = {"max_new_tokens": 4, "do_sample": False}
    plain = tiny.generate(PROMPT, **kwargs)
    config = GenerationConfig(penalty_alpha=0.0, **kwargs)
    ours = tiny.generate(PROMPT, generation_config=config, custom_generate=Speculator())
    assert torch.equal(plain, ours)


def test_what_plain_decoding_cannot_take_is_refused_and_ends_the_stream(tiny):
    puts = Puts()
    speculator = Speculator(unsupported="plain")
    beams = {"max_new_tokens": 4, "do_sample": False, "num_beams": 2, "speculator": speculator}
    with pytest.raises(UnsupportedError, match=r"streamer .*num_beams=2"):
        ngramspec.generate(tiny, PROMPT, streamer=puts, **beams)
    assert puts.ended == 1
    generator = torch.Generator()
    for extra in ({"do_sample": True}, {"token_healing": True}):
        with pytest.raises(UnsupportedError, match="generator"):
            ngramspec.generate(tiny, PROMPT, generator=generator, **beams | extra)
    other = {"assistant_model": tiny_llama(seed=1), "reference_ids": [1, 2]}
    ours = ngramspec.generate(tiny, PROMPT, **beams | {"num_beams": 1} | other)
    assert torch.equal(ours, tiny.generate(PROMPT, max_new_tokens=4, do_sample=False))


def test_unsupported_plain_streams_too(tiny):
    ids = PROMPT.repeat(1, 1)
    plain, ours = Puts(), Puts()
    kwargs = {"max_new_tokens": 6, "do_sample": False, "use_cache": False}
    tiny.generate(ids, streamer=plain, **kwargs)
    ngramspec.generate(
        tiny, ids, streamer=ours, speculator=Speculator(unsupported="plain"), **kwargs
    )
    assert plain.puts == ours.puts
    assert ours.ended == 1


def test_two_heads_and_healing_beside_a_speculator(tiny):
    other = tiny_llama(seed=1)
    kwargs = {"max_new_tokens": 6, "do_sample": False}
    two = {"assistant_model": other, "use_mtp": True}
    for extra in (two, {"token_healing": True}):
        name = next(iter(extra))
        with pytest.raises(UnsupportedError, match=name):
            ngramspec.generate(tiny, PROMPT, **kwargs, **extra)
        with ngramspec.enabled(tiny), pytest.raises(UnsupportedError, match=name):
            tiny.generate(PROMPT, **kwargs, **extra)
    plain = tiny.generate(PROMPT, **kwargs, assistant_model=other)
    speculator = Speculator(unsupported="plain")
    ours = ngramspec.generate(tiny, PROMPT, speculator=speculator, **kwargs, assistant_model=other)
    assert torch.equal(plain, ours)
    assert torch.equal(
        ngramspec.generate(tiny, PROMPT, **kwargs, assistant_model=None, synced_gpus=False),
        tiny.generate(PROMPT, **kwargs),
    )


def test_recurrent_models_are_refused_by_name():
    from transformers import MambaConfig, MambaForCausalLM

    mamba = MambaForCausalLM(MambaConfig(vocab_size=40, hidden_size=16, num_hidden_layers=1))
    with pytest.raises(UnsupportedError, match="recurrent|cache"):
        ngramspec.generate(mamba, PROMPT, max_new_tokens=4)


def test_bad_prompts_name_the_argument_the_bound_and_the_value(tiny):
    for ids, message in [
        (torch.tensor([[3, -1, 4]]), r"input_ids must lie in 0\.\.96, got -1"),
        (torch.tensor([[3, 97, 4]]), r"input_ids must lie in 0\.\.96, got 97"),
        (torch.empty((1, 0), dtype=torch.long), r"at least one token, got shape \(1, 0\)"),
    ]:
        with pytest.raises(ValueError, match=message):
            ngramspec.generate(tiny, ids, max_new_tokens=4)


def test_nan_logits_end_as_in_plain_generate(tiny):
    """Greedy: argmax takes the NaN's place, as plain does; sampling: torch's own error."""

    def poison(ids, scores):
        return scores.fill_(float("nan")) if ids.shape[1] == 14 else scores

    kwargs = {"max_new_tokens": 10, "logits_processor": [poison]}
    plain = tiny.generate(PROMPT, do_sample=False, **kwargs)
    ours = ngramspec.generate(tiny, PROMPT, do_sample=False, **kwargs)
    assert torch.equal(plain, ours)
    with pytest.raises(RuntimeError):
        tiny.generate(PROMPT, do_sample=True, **kwargs)
    with pytest.raises(RuntimeError):
        ngramspec.generate(tiny, PROMPT, do_sample=True, **kwargs)


def test_embeddings_in_chunks_are_refused_because_every_chunk_would_read_them_all(tiny):
    embeddings = tiny.get_input_embeddings()(PROMPT).detach()
    given = {"inputs_embeds": embeddings, "max_new_tokens": 4, "do_sample": False}
    with pytest.raises(UnsupportedError, match="remove prefill_chunk_size"):
        ngramspec.generate(tiny, PROMPT, prefill_chunk_size=4, **given)
    ours = ngramspec.generate(tiny, PROMPT, **given)
    assert ours.tolist() == tiny.generate(PROMPT, **given).tolist()
