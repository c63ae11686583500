"""Where texts part: units in the last place by hand, ties and errors, the exit status."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
import torch
from conftest import tiny_llama

import ngramspec
from benchmarks import divergence
from benchmarks.__main__ import main
from benchmarks.divergence import (
    Divergence,
    compare,
    departure,
    histogram,
)
from ngramspec import Speculator
from ngramspec.measure import models

BFLOAT16 = torch.bfloat16


def test_a_departure_by_hand():
    """Best 20 (token 3), second 19.75 (token 1), which is two units of 1/8; token 0 is 16 away."""
    scores = torch.tensor([18.0, 19.75, 0.0, 20.0])
    second = departure(5, 3, 1, scores, BFLOAT16)
    assert second == Divergence(5, 3, 1, 0.25, 2.0, 0.25, 2.0)
    assert second.is_tie(BFLOAT16)
    assert not second.is_tie(torch.float32)
    third = departure(5, 3, 0, scores, BFLOAT16)  # the two best are near, but it chose another
    assert (third.gap_ulps, third.chosen_gap, third.chosen_ulps) == (2.0, 2.0, 16.0)
    assert not third.is_tie(BFLOAT16)
    near = departure(1, 0, 1, torch.tensor([1.0, 1.0 - 2**-14]), torch.float32)
    assert near.is_tie(torch.float32)


def test_eight_units_are_a_tie_and_more_are_not():
    for gap, tie in [(1.0, True), (1.125, False)]:
        found = departure(1, 0, 1, torch.tensor([20.0, 20.0 - gap]), BFLOAT16)
        assert found.chosen_ulps == 8 * gap
        assert found.is_tie(BFLOAT16) == tie


def test_the_histogram_counts_every_departure_once():
    gaps = [0.0, 0.5, 1.0, 1.5, 8.0, 8.5, math.inf]
    counts = histogram([Divergence(1, 0, 1, 0.0, gap, 0.0, gap) for gap in gaps])
    assert counts == dict.fromkeys("34567", 0) | {"0": 1, "1": 2, "2": 1, "8": 1, ">8": 2}


def prompts_of(model, count, seed=0):
    rng = np.random.default_rng(seed)
    lengths = rng.integers(4, 20, count)
    vocab = model.config.vocab_size
    return [
        (str(number), rng.integers(3, vocab, length).astype(np.int32))
        for number, length in enumerate(lengths)
    ]


@pytest.mark.parametrize("rows", [1, 3])
def test_texts_of_one_kind_do_not_part(rows):
    model = tiny_llama(eos_token_id=5)
    found = list(compare(model, Speculator(), prompts_of(model, 7), 24, rows))
    assert [each.name for each in found] == [*"0123456"]
    assert [each.tokens for each in found] == [24] * 7  # no EOS token ends one
    assert all(each.divergence is None for each in found)


def changed(row, token, to):
    """A ``generate`` whose text has another token at one place."""

    def other(model, speculator, **kwargs):
        out = ngramspec.generate(model, speculator=speculator, **kwargs)
        start = kwargs["input_ids"].shape[1]
        out[row, start + token - 1] = to
        return out

    return other


def test_a_departure_is_found_where_it_is_with_plain_generate_s_logits(monkeypatch):
    model = tiny_llama()
    prompts = prompts_of(model, 3)
    monkeypatch.setattr(divergence, "generate", changed(2, 4, 0))
    *same, found = compare(model, Speculator(), prompts, 8, 3)
    assert [each.divergence for each in same] == [None, None]
    assert found.tokens == 3
    at = found.divergence
    assert (at.token, at.speculative) == (4, 0)
    ids = torch.from_numpy(prompts[2][1])[None].long()
    kwargs = {"attention_mask": torch.ones_like(ids), "do_sample": False, "max_new_tokens": 8}
    plain = model.generate(ids, **kwargs)[0, ids.shape[1] :]
    assert at.plain == int(plain[3])
    with torch.no_grad():
        logits = model(torch.cat((ids[0], plain[:3]))[None]).logits[0, -1]
    best, second = logits.topk(2).values.tolist()
    assert at.gap == pytest.approx(best - second, abs=1e-4)
    assert at.chosen_gap == pytest.approx(best - float(logits[0]), abs=1e-4)


# The command


@pytest.fixture
def embedded(monkeypatch):
    """A tiny random model in place of the embedded one."""

    class Tokenizer:
        chat_template = None

        def __call__(self, text):
            return {"input_ids": [3 + byte % 90 for byte in text.encode()[:40]]}

        def decode(self, ids):
            return f"<{ids[0]}>"

    def load(model, dtype, on_stage):
        made = tiny_llama().to(getattr(torch, dtype))
        return models.LoadedModel(made, Tokenizer(), "tiny")

    monkeypatch.setattr(models, "load", load)


ARGUMENTS = ["divergence", "--count", "4", "--tokens", "12", "--batch", "2"]


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_a_wrong_text_is_told_and_fails(embedded, monkeypatch, tmp_path, capsys, dtype):
    monkeypatch.setattr(divergence, "generate", changed(0, 3, 0))
    out = tmp_path / "out.json"
    assert main([*ARGUMENTS, "--dtype", dtype, "--json", str(out)]) == 1
    printed = capsys.readouterr().out
    assert "WRONG code 1, token 3: '<0>' instead of" in printed
    report = json.loads(out.read_text())
    assert report["wrong"] == 2  # the first row of either batch
    assert sum(report["histogram_ulps"].values()) == len(report["departures"])
    assert report["departures"][0]["name"] == "code 1"
    assert report["departures"][0]["divergence"]["token"] == 3


# The real model
