"""What sees a whole batch gets what plain ``generate`` gives it, though rows advance separately."""

from __future__ import annotations

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


NAMES = ["llama", "mistral sliding", "gemma3 hybrid", "t5", "gpt2"]
WINDOWS = NAMES[1:3]  # whose attentions are not returned
COMBINED = [
    (name, call) for name in NAMES for call in CALLS if call != "attentions" or name not in WINDOWS
]


@pytest.mark.parametrize("eos", [True, False], ids=["eos", "no eos"])
@pytest.mark.parametrize(("name", "call"), COMBINED)
def test_everything_is_plain_s(name, call, eos, monkeypatch):
    model, inputs, kwargs = build(name), inputs_of(name), GREEDY | CALLS[call]
    if name in ENCODER_DECODER:
        kwargs |= VARIED
    if call == "attentions":
        model.set_attn_implementation("eager")
    ragged, judge = set(), RaggedGroup.judge
    monkeypatch.setattr(
        RaggedGroup, "judge", lambda self: (ragged.add(len({*map(len_of, self.rows)})), judge(self))
    )
    free = model.generate(**inputs, **kwargs | {"return_dict_in_generate": False})
    start = free.shape[1] - NEW
    if eos:
        kwargs["eos_token_id"] = [int(free[0, start + 9]), int(free[1, start + 17])]
    ends = {start + 12: [2]} if eos else {start + 12: [2], start + 20: [0], start + 23: [1]}
    found = []
    for ours in (False, True):
        seen = (
            {"stopping_criteria": [Ends(ends)]}
            if call in ("criterion", "all", "static, criterion")
            else {}
        )
        streamer = Puts() if call == "all" else None
        if ours:
            spec = Speculator(
                drafter_of(inputs, free) if name not in ENCODER_DECODER else "auto", 6
            )
            out = ngramspec.generate(
                model, **inputs, **kwargs, **seen, streamer=streamer, speculator=spec
            )
            assert spec.stats.drafter_faults == 0
        else:
            out = model.generate(**inputs, **kwargs, **seen, streamer=streamer)
        fields = (
            [out]
            if isinstance(out, torch.Tensor)
            else [out[each] for each in out if each != "stats"]
        )
        notes = [each.seen for each in seen.get("stopping_criteria", [])]
        found.append([*fields, notes, streamer and (streamer.puts, streamer.ended)])
    assert_same(found[1], found[0])
    if name not in ENCODER_DECODER:
        assert max(ragged) > 1


def len_of(row):
    return row.length


@pytest.mark.parametrize("name", ["llama", "mistral sliding", "gemma3 hybrid"])
@pytest.mark.parametrize("how", ["all", "eos", "criterion", "raises", "interrupted"])
def test_a_caller_s_cache_is_left_as_by_plain_generate(name, how):
    model, inputs, kwargs, found = build(name), batch(), GREEDY, []
    free = model.generate(**inputs, **kwargs)
    start = inputs["input_ids"].shape[1]
    if how == "eos":
        kwargs = kwargs | {"eos_token_id": [int(free[0, start + 9]), int(free[1, start + 17])]}
    for ours in (False, True):
        given, cache = dict(kwargs), DynamicCache(config=model.config)
        if how == "raises":
            given["stopping_criteria"] = [Failing(ZeroDivisionError, 14)]
        elif how == "criterion":
            given["stopping_criteria"] = [Ends({start + 12: [2, 0], start + 20: [1]})]
        elif how == "interrupted":
            given["streamer"] = InterruptedStreamer(14)
        if ours:
            speculator = Speculator(drafter_of(inputs, free), 6)
            call = lambda **more: ngramspec.generate(model, speculator=speculator, **more)  # noqa: B023,E731
        else:
            call = model.generate
        try:
            out = call(**inputs, **given, **cache_argument(cache))
        except (ZeroDivisionError, KeyboardInterrupt):
            found.append((cache.get_seq_length(), cache))
            continue
        again = torch.cat((out, torch.full((3, 4), 7)), dim=1)
        mask = torch.nn.functional.pad(
            inputs["attention_mask"], (0, again.shape[1] - start), value=1
        )
        more = {"input_ids": again, "attention_mask": mask} | kwargs
        before = cache.get_seq_length()
        second = call(**more, **cache_argument(cache))
        found.append((out, before, second, cache))
    assert_same(found[1], found[0])


SAMPLED = {"do_sample": True, "temperature": 1.3, "top_k": 12, "max_new_tokens": NEW}
DRAWN = {
    "plain": {},
    "scores": SCORES,
    "criterion": {},
    "several": {"num_return_sequences": 2},
    "generator": {},
    "forced": {"repetition_penalty": 1.3, "top_p": 0.9, "bad_words_ids": [[5, 6]]},
}


@pytest.mark.parametrize("eos", [True, False], ids=["eos", "no eos"])
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
    """One row's drafts are always right and another's never, over several times a draft's length."""
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
    assert_same(
        *(
            [each[name] for name in each if name != "stats"] if how == "dict" else each
            for each in (ours, plain)
        )
    )
    assert bool(speculator.stats.limits) is (how == "full")
