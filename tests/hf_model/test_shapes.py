"""A fixed width: the text, down to the logits' last bit, does not depend on the drafter."""

from __future__ import annotations

import pytest
import torch
from conftest import _smollm2, tiny_llama
from doubles import half_right, liar, oracle, random_drafter
from families import build
from plain_text import PROMPT as IDS
from prompts import PROMPTS
from transformers import MaxLengthCriteria, StoppingCriteriaList

import ngramspec
from ngramspec import Speculator, UnsupportedError
from ngramspec.hf_model.compat.caches import cache_argument, cache_of
from ngramspec.hf_model.compiled import ForwardShapes

STATIC = {"cache_implementation": "static"}
COMBINATIONS = [("sdpa", STATIC), ("eager", STATIC), ("eager", {})]
NAMES = ["static sdpa", "static eager", "dynamic eager"]


def drafters(text, vocab):
    """Good ones, a random one, one that is always wrong."""
    yield from ("copy", "ngram", "unigram", "auto")
    yield from (oracle(text), liar(text, vocab), half_right(text, vocab), random_drafter(vocab))


def model_of(dtype, attention, **config):
    model = tiny_llama(hidden_size=64, initializer_range=0.2, **config).to(dtype)
    model.set_attn_implementation(attention)
    return model


def run(model, ids, drafter, width, **kwargs):
    speculator = Speculator(drafter, width=width)
    kwargs = {"max_new_tokens": 50, "do_sample": False} | kwargs
    out = ngramspec.generate(
        model,
        ids,
        speculator=speculator,
        return_dict_in_generate=True,
        output_logits=True,
        **kwargs,
    )
    assert speculator.stats.drafter_faults == 0
    return out, speculator.stats


def same(ours, theirs):
    logits = zip(ours.logits, theirs.logits, strict=False)
    return torch.equal(ours.sequences, theirs.sequences) and all(
        torch.equal(mine, its) for mine, its in logits
    )


@pytest.mark.every(6)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
@pytest.mark.parametrize(("attention", "kwargs"), COMBINATIONS, ids=NAMES)
@pytest.mark.parametrize(
    ("width", "length"), [(8, 150), pytest.param(24, 3, marks=pytest.mark.slow)]
)
def test_no_drafter_moves_a_bit(dtype, attention, kwargs, width, length):
    model = model_of(dtype, attention)
    torch.manual_seed(0)
    ids = torch.randint(3, 97, (1, length))
    none, stats = run(model, ids, "none", width, **kwargs)
    assert stats.target_calls == 49
    for drafter in drafters(none.sequences[0].tolist(), 97):
        ours, stats = run(model, ids, drafter, width, **kwargs)
        assert same(ours, none)
    assert same(none, run(model, ids, "none", width, **kwargs)[0])


def test_without_it_bits_move():
    """So the comparison above can see what it looks for."""
    model = model_of(torch.float32, "sdpa")
    ids = torch.randint(3, 97, (1, 150), generator=torch.Generator().manual_seed(0))
    none, _ = run(model, ids, "none", "fit")
    ours, _ = run(model, ids, oracle(none.sequences[0].tolist()), "fit")
    assert torch.equal(ours.sequences, none.sequences)
    assert not same(ours, none)


def test_every_forward_is_as_wide_as_asked():
    model = model_of(torch.float32, "sdpa")
    text = model.generate(IDS, max_new_tokens=50)[0].tolist()
    seen = []
    hook = model.register_forward_pre_hook(
        lambda module, args, kwargs: seen.append(
            (kwargs["input_ids"].shape, kwargs["logits_to_keep"])
        ),
        with_kwargs=True,
    )
    for drafter in ("none", oracle(text), random_drafter(97)):
        seen.clear()
        ours, stats = run(model, IDS, drafter, 16, **STATIC)
        assert ours.sequences[0].tolist() == text
        assert seen[0] == (IDS.shape, 1)
        assert set(seen[1:]) == {((1, 16), 16)}
        assert len(seen) == 1 + stats.target_calls
    hook.remove()
    assert stats.drafted > 100


def test_a_wide_draft_costs_nothing_so_drafts_are_as_long_as_they_can_be():
    model = model_of(torch.float32, "sdpa")
    text = model.generate(IDS, max_new_tokens=65)[0].tolist()
    for gamma in ("auto", "heuristic", 15):
        speculator = Speculator(oracle(text), gamma, width=16)
        model.generate(IDS, max_new_tokens=65, custom_generate=speculator, **STATIC)
        assert speculator.stats.target_calls == 4


def test_a_callers_criterion_may_exceed_the_configs_length():
    model = model_of(torch.float32, "eager")
    asked = {"do_sample": False, "stopping_criteria": StoppingCriteriaList([MaxLengthCriteria(90)])}
    plain = model.generate(IDS, **asked)
    ours = model.generate(IDS, **asked, custom_generate=Speculator(width=16))
    assert plain.shape == (1, 90)
    assert torch.equal(ours, plain)


def test_sampled_text_does_not_depend_on_the_drafter_either():
    model = model_of(torch.bfloat16, "sdpa")
    texts = []
    for drafter in ("none", "auto", "unigram", random_drafter(97)):
        torch.manual_seed(3)
        texts.append(run(model, IDS, drafter, 8, do_sample=True, top_k=20, **STATIC)[0].sequences)
    assert all(torch.equal(texts[0], each) for each in texts)


def test_left_padding_and_the_last_positions_of_the_model():
    """The text ends at the model's last position; what pads the forwards lies beyond it."""
    model = model_of(torch.float32, "sdpa", max_position_embeddings=60)
    ids = torch.cat((torch.zeros(1, 4, dtype=torch.int64), IDS), dim=1)
    mask = (ids != 0).long()
    plain = model.generate(ids, attention_mask=mask, max_new_tokens=50, do_sample=False)
    for drafter in ("none", "auto", oracle(plain[0].tolist())):
        ours, _ = run(model, ids, drafter, 16, attention_mask=mask, **STATIC)
        assert torch.equal(ours.sequences, plain)
    gpt2 = build("gpt2", n_positions=60)  # its positions are a table
    plain = gpt2.generate(IDS, max_new_tokens=50, do_sample=False)
    for drafter in ("none", "auto", oracle(plain[0].tolist())):
        assert torch.equal(run(gpt2, IDS, drafter, 16, **STATIC)[0].sequences, plain)


def test_a_static_cache_has_room_for_the_padding():
    from transformers import StaticCache

    model = model_of(torch.float32, "sdpa")
    for kwargs in ({}, {"prefill_chunk_size": 4}, {"max_cache_len": 300}):
        out, _ = run(model, IDS, "auto", 32, **STATIC, **kwargs)
        capacity = cache_of(out).layers[0].keys.shape[2]
        assert capacity == max(10 + 50 - 1, kwargs.get("max_cache_len", 0))  # the baseline's
    assert run(model, IDS, "auto", 8, max_new_tokens=1, **STATIC)[0].sequences.shape == (1, 11)
    small = StaticCache(model.config, max_cache_len=89)
    with pytest.raises(UnsupportedError, match="width=32 needs a static cache of 90 .* has 89"):
        run(model, IDS, "auto", 32, **cache_argument(small))
    enough = StaticCache(model.config, max_cache_len=90)
    run(model, IDS, liar([5] * 60, 97), 32, **cache_argument(enough))
    more = torch.cat((IDS, IDS), dim=1)  # a kept cache, with all tokens or only the new ones
    kept = StaticCache(model.config, max_cache_len=36)
    model.generate(IDS, max_new_tokens=5, **cache_argument(kept))
    with pytest.raises(UnsupportedError, match="a static cache of 37 positions"):
        run(model, more, "auto", 8, max_new_tokens=11, **cache_argument(kept))
    mask = torch.ones(1, 24, dtype=torch.int64)
    with pytest.raises(UnsupportedError, match="a static cache of 37 positions"):
        run(model, IDS, "auto", 8, max_new_tokens=7, **cache_argument(kept), attention_mask=mask)
    run(model, more, "auto", 8, max_new_tokens=10, **cache_argument(kept))


REFUSED = [
    ("llama", "sdpa", {}, "a dynamic cache with sdpa, .*; use cache_implementation='static' or"),
    ("mistral sliding", "eager", {}, "a text .* window; use cache_implementation='static'"),
    ("t5", "eager", {}, "an encoder-decoder model; use width='fit'"),
    ("bloom (alibi)", "eager", {}, "unknown modules that count positions; use width='fit'"),
    ("mixtral (experts)", "eager", STATIC, "experts, whose .*; use width='fit'"),
    ("llama", "flex_attention", STATIC, "attention implementation flex_attention; load the model"),
]


@pytest.mark.parametrize(("name", "attention", "kwargs", "message"), REFUSED)
def test_combinations_for_which_it_does_not_hold_are_refused_by_name(
    name, attention, kwargs, message
):
    model = build(name)
    model.config._attn_implementation = attention
    speculator = Speculator(width=8)
    with pytest.raises(UnsupportedError, match=f"width=8 is not supported with {message}"):
        model.generate(IDS, max_new_tokens=5, custom_generate=speculator, **kwargs)


ARGUMENTS = [
    ({"width": 0}, ValueError, r"width must be in 8\.\.4096, got 0"),
    ({"width": 12}, ValueError, "width must be a multiple of 8, got 12"),
    ({"width": 8.0}, TypeError, "width must be an integer, got 8.0"),
    ({"compiled": 1}, TypeError, "compiled must be True, False or None, got 1"),
    ({"width": "fix"}, ValueError, "width must be an integer or 'fit', got 'fix'"),
    ({"width": 8, "gamma": 8}, ValueError, "gamma must be below width = 8, .* got 8"),
    ({"width": 8, "tree": 4}, ValueError, "remove them, or use width='fit'"),
    ({"width": 8, "lenience": 0.5}, ValueError, "remove them, or use width='fit'"),
    ({"width": 8, "verification": "typical"}, ValueError, "remove them, or use width='fit'"),
]


@pytest.mark.parametrize(("arguments", "error", "message"), ARGUMENTS)
def test_arguments_are_checked(arguments, error, message):
    with pytest.raises(error, match=message):
        Speculator(**arguments)


def test_widths():
    fit, one, few = (object.__new__(ForwardShapes) for _ in range(3))
    fit.widths, one.widths, few.widths = (), (16,), (1, 2, 4, 8, 11)
    assert [each.least_width(5) for each in (fit, one, few)] == [5, 16, 8]
    assert [few.least_width(8), few.least_width(9)] == [8, 11]
    # A draft's room: the last committed token takes a position.
    assert [each.rooms(None, 20) for each in (fit, one, few)] == [[], [15], [10]]
    assert [few.rooms(20 + free, 20) for free in (1, 3, 7, 10, 11, 99)] == [
        [each - 1] for each in (1, 2, 4, 8, 11, 11)
    ]
    assert (fit.rooms(27, 20), one.rooms(22, 20)) == ([6], [15])


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
@pytest.mark.parametrize(
    ("attention", "kwargs"), [COMBINATIONS[0], COMBINATIONS[2]], ids=[NAMES[0], NAMES[2]]
)
def test_fifty_real_prompts(dtype, attention, kwargs):
    real = _smollm2(dtype)
    real.model.set_attn_implementation(attention)
    vocab = real.model.config.vocab_size
    texts = [*PROMPTS, *(text[: len(text) // 2] for text in PROMPTS[: 50 - len(PROMPTS)])]
    assert len(texts) == len(set(texts)) == 50
    for text in texts:
        ids = real.encode(text)["input_ids"]
        none, _ = run(real.model, ids, "none", 8, max_new_tokens=12, **kwargs)
        told = none.sequences[0].tolist()
        for drafter in ("copy", "ngram", "unigram", random_drafter(vocab), liar(told, vocab)):
            ours, _ = run(real.model, ids, drafter, 8, max_new_tokens=12, **kwargs)
            assert same(ours, none), text
