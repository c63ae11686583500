"""What sees a whole batch gets what plain ``generate`` gives it, though rows advance separately."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from batches import RowOracle, batch, row_texts
from doubles import Failing, InterruptedStreamer, Puts
from families import ENCODER_DECODER, VARIED, build
from transformers import DynamicCache, StaticCache

import ngramspec
from ngramspec import Speculator
from ngramspec.decoding.observer import Observer
from ngramspec.decoding.ragged import RaggedGroup
from ngramspec.hf_model.compat.caches import cache_argument

NEW = 30
GREEDY = {"do_sample": False, "max_new_tokens": NEW, "pad_token_id": 0}
SCORES = {"return_dict_in_generate": True, "output_scores": True, "output_logits": True}
STATES = {"return_dict_in_generate": True, "output_hidden_states": True}
ATTENTIONS = {"return_dict_in_generate": True, "output_attentions": True}
RATES = (0.95, 0.6, 0.0)  # how often each row's drafts are right


class AtOnce(Observer):
    """Lets the tokens at all positions be sampled at once, as on a GPU."""

    one_transfer = True


class Ends:
    """Ends rows at lengths, {length: rows}, and notes what it is called with."""

    def __init__(self, at=None):
        self.at, self.seen = at or {}, []

    def __call__(self, ids, scores, **_):
        own = None if scores is None else [each.clone() for each in scores]
        self.seen.append((ids.clone(), own))
        ended = torch.zeros(len(ids), dtype=torch.bool)
        for rows in (rows for length, rows in self.at.items() if ids.shape[1] >= length):
            ended[list(rows)] = True
        return ended


def assert_same(mine, theirs, where="output"):
    """Tensors in tuples, dicts and caches are equal, floats nearly."""
    if hasattr(theirs, "self_attention_cache"):
        for name in ("self_attention_cache", "cross_attention_cache"):
            assert_same(getattr(mine, name), getattr(theirs, name), f"{where}.{name}")
    elif hasattr(theirs, "layers"):
        for at, (own, other) in enumerate(zip(mine.layers, theirs.layers, strict=True)):
            assert own.get_seq_length() == other.get_seq_length()
            assert_same((own.keys, own.values), (other.keys, other.values), f"{where}[{at}]")
    elif isinstance(theirs, torch.Tensor):
        assert mine.shape == theirs.shape, (where, mine.shape, theirs.shape)
        torch.testing.assert_close(
            mine, theirs, rtol=2e-3, atol=2e-3, msg=lambda text: where + text
        )
    elif isinstance(theirs, list | tuple):
        assert len(mine) == len(theirs), (where, len(mine), len(theirs))
        for at, (own, other) in enumerate(zip(mine, theirs, strict=True)):
            assert_same(own, other, f"{where}[{at}]")
    else:
        assert mine == theirs, where


def drafter_of(inputs, text, rates=RATES):
    """An oracle that is right as often as ``rates`` say, for each row."""
    texts = row_texts(inputs, text)
    drafter = RowOracle(texts, 1.0)
    for row, rate in zip(texts, rates, strict=True):
        wrong = [at % 20 >= 20 * rate for at in range(len(row))]
        drafter.texts[tuple(row[:4])] = [
            (token + 1) % 61 if miss else token for token, miss in zip(row, wrong, strict=True)
        ]
    return drafter


def inputs_of(name):
    inputs = batch()
    if name in ENCODER_DECODER:
        inputs = {name: value[:, -6:] for name, value in inputs.items()}
    return inputs


CALLS = {
    "scores": SCORES,
    "states": STATES,
    "attentions": ATTENTIONS,
    "cache": {"return_dict_in_generate": True},
    "criterion": {},
    "all": SCORES | STATES | {"repetition_penalty": 1.3},
    "static": SCORES | {"cache_implementation": "static"},
    "static, criterion": {"cache_implementation": "static"},
}


def fields(out):
    """The output's fields, or the sequences alone."""
    return out if isinstance(out, torch.Tensor) else [out[each] for each in out if each != "stats"]


NAMES = ["llama", "mistral sliding", "gemma3 hybrid", "t5", "gpt2"]
WINDOWS = NAMES[1:3]  # whose attentions are not returned
COMBINED = [
    (name, call) for name in NAMES for call in CALLS if call != "attentions" or name not in WINDOWS
]


EOS = pytest.mark.parametrize("eos", [True, False], ids=["eos", "no eos"])


@EOS
@pytest.mark.parametrize(("name", "call"), COMBINED)
def test_everything_is_plain_s(name, call, eos, monkeypatch):
    model, inputs, kwargs = build(name), inputs_of(name), GREEDY | CALLS[call]
    kwargs |= VARIED if name in ENCODER_DECODER else {}
    if call == "attentions":
        model.set_attn_implementation("eager")
    spread, judge = set(), RaggedGroup.judge

    def watch(group):
        spread.add(len({row.length for row in group.rows}))
        judge(group)

    monkeypatch.setattr(RaggedGroup, "judge", watch)
    free = model.generate(**inputs, **kwargs | {"return_dict_in_generate": False})
    start = free.shape[1] - NEW
    if eos:
        kwargs["eos_token_id"] = [int(free[0, start + 9]), int(free[1, start + 17])]
    ends = {start + 12: [2]} if eos else {start + 12: [2], start + 20: [0], start + 23: [1]}
    drafter = "auto" if name in ENCODER_DECODER else drafter_of(inputs, free)
    speculator, found = Speculator(drafter, 6), []
    for more in ({}, {"speculator": speculator}):
        generate = partial(ngramspec.generate, model) if more else model.generate
        criterion, streamer = Ends(ends), Puts()
        if call in ("criterion", "all", "static, criterion"):
            more["stopping_criteria"] = [criterion]
        if call == "all":
            more["streamer"] = streamer
        out = generate(**inputs, **kwargs, **more)
        found.append((fields(out), criterion.seen, streamer.puts, streamer.ended))
    assert_same(found[1], found[0])
    assert speculator.stats.drafter_faults == 0
    assert name in ENCODER_DECODER or max(spread) > 1


@pytest.mark.parametrize("name", ["llama", "mistral sliding", "gemma3 hybrid"])
@pytest.mark.parametrize("how", ["all", "eos", "criterion", "both", "raises", "interrupted"])
def test_a_caller_s_cache_is_left_as_by_plain_generate(name, how):
    """It is used again in a second call, unless the first one raises."""
    model, inputs, kwargs = build(name), batch(), dict(GREEDY)
    free = model.generate(**inputs, **kwargs)
    start = inputs["input_ids"].shape[1]
    if how == "eos":
        kwargs["eos_token_id"] = [int(free[0, start + 9]), int(free[1, start + 17])]
    elif how == "both":  # the criterion ends all others, which are ahead of what it has seen
        kwargs["eos_token_id"] = int(free[0, start + 2])
    drafter = drafter_of(inputs, free, (1.0, 1.0, 1.0) if how == "both" else RATES)
    speculator, found = Speculator(drafter, 6), []
    for generate in (model.generate, partial(ngramspec.generate, model, speculator=speculator)):
        given, cache = dict(kwargs), DynamicCache(config=model.config)
        given |= cache_argument(cache)
        if how == "raises":
            given["stopping_criteria"] = [Failing(ZeroDivisionError, 14)]
        elif how == "criterion":
            given["stopping_criteria"] = [Ends({start + 12: [2, 0], start + 20: [1]})]
        elif how == "both":
            given["stopping_criteria"] = [Ends({start + 10: [0, 1, 2]})]
        elif how == "interrupted":
            given["streamer"] = InterruptedStreamer(14)
        try:
            out = generate(**inputs, **given)
        except (ZeroDivisionError, KeyboardInterrupt):
            found.append((cache.get_seq_length(), cache))
            continue
        first, more = cache.get_seq_length(), torch.full((3, 4), 7)
        ids = torch.cat((out, more), dim=1)
        mask = torch.nn.functional.pad(inputs["attention_mask"], (0, ids.shape[1] - start), value=1)
        again = generate(input_ids=ids, attention_mask=mask, **kwargs, **cache_argument(cache))
        found.append((out, first, again, cache))
    assert_same(found[1], found[0])


@pytest.mark.parametrize("new", [2, 3, 9])
@pytest.mark.parametrize("name", ["mistral sliding", "gemma3 hybrid"])
def test_layers_with_windows_hold_what_the_baseline_s_do(name, new):
    model, inputs = build(name), batch()
    kwargs = GREEDY | {"max_new_tokens": new, "return_dict_in_generate": True}
    plain = model.generate(**inputs, **kwargs)
    speculator = Speculator(drafter_of(inputs, plain.sequences, (1.0, 1.0, 1.0)), 6)
    ours = ngramspec.generate(model, **inputs, **kwargs, speculator=speculator)
    assert_same(fields(ours), fields(plain))


SAMPLED = {"do_sample": True, "temperature": 1.3, "top_k": 12, "max_new_tokens": NEW}
DRAWN = {
    "plain": {},
    "scores": SCORES,
    "criterion": {},
    "several": {"num_return_sequences": 2},
    "generator": {},
    "forced": {"repetition_penalty": 1.3, "top_p": 0.9, "bad_words_ids": [[5, 6]]},
}


@EOS
@pytest.mark.parametrize("call", DRAWN)
@pytest.mark.parametrize("name", ["llama", "gemma3 hybrid", "t5"])
@pytest.mark.parametrize("at_once", [False, True], ids=["one by one", "at once"])
def test_sampled_text_is_plain_s_for_the_same_seed(name, call, eos, at_once):
    model, inputs = build(name), inputs_of(name)
    kwargs = SAMPLED | {"pad_token_id": 0} | DRAWN[call]
    several = kwargs.get("num_return_sequences", 1)

    def plain(**more):
        torch.manual_seed(5)
        return model.generate(**inputs, **kwargs | more)

    free = plain(return_dict_in_generate=False)
    start = free.shape[1] - NEW
    if eos:
        kwargs["eos_token_id"] = [int(free[0, start + 9]), int(free[1, start + 17])]
    ends = {"stopping_criteria": [Ends({start + 12: [2, 0], start + 21: [1]})]}
    given = (lambda: dict(ends)) if call == "criterion" else dict
    expected, state = plain(**given()), torch.get_rng_state()
    texts = {key: value.repeat_interleave(several, 0) for key, value in inputs.items()}
    right = name in ENCODER_DECODER or several > 1
    drafter = "auto" if right else drafter_of(texts, free)
    speculator = Speculator(drafter, 6)
    speculator.observer = AtOnce() if at_once else None
    torch.manual_seed(5)
    own = {}
    if call == "generator":
        own["generator"] = torch.Generator().manual_seed(5)
    ours = ngramspec.generate(model, **inputs, **kwargs, **given(), **own, speculator=speculator)
    after = own["generator"].get_state() if own else torch.get_rng_state()
    if call == "scores":
        for each in ("sequences", "scores", "logits"):
            assert_same(ours[each], expected[each], each)
    else:
        assert_same(ours, expected)
    assert torch.equal(state, after)
    assert eos or right or speculator.stats.accepted > 10


@pytest.mark.parametrize("how", ["text", "dict", "eos", "full"])
@pytest.mark.parametrize("name", ["llama", "gemma3 hybrid"])
def test_the_slowest_row_of_a_static_cache_finds_room(name, how):
    """One row's drafts are always right and another's never, over many drafts' lengths."""
    model, inputs, kwargs = build(name), batch(), GREEDY | {"max_new_tokens": 200}
    free = model.generate(**inputs, **kwargs)
    start = inputs["input_ids"].shape[1]
    if how == "eos":
        kwargs["eos_token_id"] = int(free[0, start + 150])
    if how == "dict":
        kwargs["return_dict_in_generate"] = True
    if how == "full":
        cache = StaticCache(config=model.config, max_cache_len=start + 199)
        kwargs |= cache_argument(cache)
    else:
        kwargs["cache_implementation"] = "static"
    plain = model.generate(**inputs, **kwargs)
    if how == "full":
        cache.reset()
    speculator = Speculator(drafter_of(inputs, free, (1.0, 0.5, 0.0)), 6)
    ours = ngramspec.generate(model, **inputs, **kwargs, speculator=speculator)
    assert_same(fields(ours), fields(plain))
    assert bool(speculator.stats.limits) is (how == "full")


def test_what_sees_the_batch_costs_no_tokens_per_call():
    model, inputs = build("llama"), batch()
    free = model.generate(**inputs, **GREEDY)
    eos = {"eos_token_id": int(free[1, inputs["input_ids"].shape[1] + 17])}
    ways = {name: CALLS[name] for name in ("scores", "states", "cache", "static")}
    ways |= {"criterion": {"stopping_criteria": [Ends()]}, "streamer": {"streamer": Puts()}}
    found = {}
    for name, kwargs in ({"plain": {}} | ways).items():
        speculator = Speculator(drafter_of(inputs, free), 6)
        ngramspec.generate(model, **inputs, **GREEDY | eos | kwargs, speculator=speculator)
        assert not speculator.stats.limits
        found[name] = speculator.stats.tokens_per_call
    assert found["plain"] > 1.3
    assert found == pytest.approx(dict.fromkeys(found, found["plain"]), rel=0.03)
