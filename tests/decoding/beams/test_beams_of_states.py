"""Beams over convolutions, an index of the keys, and recurrent states: those of plain generate."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from beams import BeamOracle, assert_same
from conftest import tiny_llama
from doubles import draft_of
from layer_states import PROMPT, assert_same_cache, model_of

import ngramspec
from ngramspec import Drafter, DraftSession, Speculator, UnsupportedError
from ngramspec.decoding.beams.group import BeamOdds
from ngramspec.hf_model.compat.caches import cache_of

CROPPED = ("Lfm2ForCausalLM", "Lfm3ForCausalLM", "DeepseekV32ForCausalLM")
REPLAYED = ("BambaForCausalLM", "Qwen3NextForCausalLM", "ZayaForCausalLM", "Mamba2ForCausalLM")
OTHERS = (
    "InklingForCausalLM",
    "GlmMoeDsaForCausalLM",
    "FalconH1ForCausalLM",
    "GraniteMoeHybridForCausalLM",
    "OlmoHybridForCausalLM",
    "Qwen3_5ForCausalLM",
    "Qwen4ExpForCausalLM",
)
PAIR = torch.cat((PROMPT, torch.tensor([[0, 0, 0, 9, 8, 5, 6, 9, 8, 5]])))
SETTINGS = [
    {"num_beams": 3},
    {"num_beams": 4, "eos_token_id": [3, 4, 5], "length_penalty": 2.0, "early_stopping": True},
]


def both(name, settings, *, rows=1, right=0.9):
    """What plain and our beam search return, and the statistics."""
    model, ids, oracle = model_of(name), PAIR[:rows], BeamOracle(right=right)
    kwargs = {"max_new_tokens": 20, "do_sample": False, "return_dict_in_generate": True}
    kwargs |= {"attention_mask": (ids != 0).long(), "output_scores": True, "output_logits": True}
    plain = model.generate(ids, **kwargs | settings, logits_processor=[oracle.watch])
    speculator = Speculator(oracle, gamma=4)
    ours = ngramspec.generate(model, ids, **kwargs | settings, speculator=speculator)
    assert speculator.stats.drafter_faults == 0
    return plain, ours, speculator.stats


@pytest.mark.every(4)
@pytest.mark.parametrize(("rows", "settings"), [(1, SETTINGS[0]), (2, SETTINGS[1])])
@pytest.mark.parametrize("name", [*CROPPED, *REPLAYED])
def test_beams_and_their_cache_are_those_of_plain_generate(name, rows, settings):
    """Rejected drafts leave no trace."""
    plain, ours, stats = both(name, settings | {"max_new_tokens": 32}, rows=rows, right=0.75)
    assert_same(plain, ours)
    if rows == 1:
        assert stats.drafted > stats.accepted > 0
        assert_same_cache(cache_of(ours), cache_of(plain))


@pytest.mark.slow
@pytest.mark.parametrize("settings", SETTINGS, ids=["open", "ending"])
@pytest.mark.parametrize("rows", [1, 2])
@pytest.mark.parametrize("name", OTHERS)
def test_beams_of_other_classes(name, rows, settings):
    plain, ours, _ = both(name, settings, rows=rows)
    assert_same(plain, ours)


def test_a_state_outside_the_cache_is_refused_by_name():
    model = model_of("RecurrentGemmaForCausalLM")
    with pytest.raises(UnsupportedError, match=r"RecurrentGemma.*state is not in its cache"):
        ngramspec.generate(model, PROMPT, num_beams=2, do_sample=False, max_new_tokens=4)


SURE = np.full(4, 0.9, np.float32)


def test_forks_make_drafts_worth_less():
    odds = BeamOdds()
    before = odds.reach(SURE)
    for _ in range(20):
        odds.count(False)
    assert (odds.reach(SURE) < before / 4).all()
    for _ in range(100):
        odds.count(True)
    np.testing.assert_allclose(odds.reach(SURE), 0.9 ** np.arange(1, 5), rtol=0.1)


def test_wrong_drafts_make_drafts_worth_less():
    odds = BeamOdds()
    for _ in range(50):
        odds.count(True)
        odds.judge(0.9, False)
    assert (odds.reach(SURE) < 0.1).all()


def test_reach_is_a_probability_that_falls():
    odds = BeamOdds()
    for _ in range(50):
        odds.count(True)
        odds.judge(0.2, True)  # better than was said
    reach = odds.reach(np.array([0.9, 0.5, 0.9, 0.1], np.float32))
    assert ((reach >= 0) & (reach <= 1)).all()
    assert (np.diff(reach) <= 0).all()


class Following(Drafter):
    """Keeps the text of every session at every step."""

    source_names = ("following",)

    def __init__(self):
        self.texts = set()

    def start(self, tokens):
        owner = self

        class Session(DraftSession):
            text = tokens.tolist()

            def propose(self, gamma, cost=None, *, tree=False):
                owner.texts.add(tuple(self.text))
                return draft_of([96])  # all beams are asked, and go on

            def extend(self, tokens):
                self.text += tokens.tolist()

        return Session()


def test_every_session_has_read_the_text_of_a_beam():
    model, oracle, drafter = tiny_llama(), BeamOracle(), Following()
    kwargs = {"num_beams": 4, "max_new_tokens": 20, "do_sample": False}
    model.generate(PROMPT, **kwargs, logits_processor=[oracle.watch])
    known = {(*text, last) for text, lasts in oracle.texts.items() for last in lasts}
    ngramspec.generate(model, PROMPT, **kwargs, speculator=Speculator(drafter, gamma=4))
    assert len(drafter.texts) > 19
    assert drafter.texts <= known
