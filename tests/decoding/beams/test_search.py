"""One beam search by hand; the tests of whole generations compare with plain beam search."""

from __future__ import annotations

import math

import pytest
import torch
from transformers import GenerationConfig
from transformers.generation.stopping_criteria import EosTokenCriteria, MaxLengthCriteria

from ngramspec.decoding.beams.search import BeamSearch

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
