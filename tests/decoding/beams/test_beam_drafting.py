"""How beams are drafted for: short or not at all where forks are frequent, and text by text."""

from __future__ import annotations

import numpy as np
import torch
from beams import BeamOracle
from conftest import tiny_llama
from doubles import draft_of

import ngramspec
from ngramspec import Drafter, DraftSession, Speculator
from ngramspec.decoding.beams.batch import BeamOdds

PROMPT = torch.tensor([[5, 6, 7, 8, 5, 6, 7, 9, 5, 6]])
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
