"""How far lossy verification moves whole texts: against all texts written out, and by decoding."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
import torch
from conftest import tiny_llama

from ngramspec import Speculator, build_drafter
from ngramspec.draft import Draft
from ngramspec.measure.alpha import target_text
from ngramspec.measure.alpha_drafters import CountModel, ModelDrafter
from ngramspec.measure.alpha_run import Plan, measure
from ngramspec.measure.change import Change, Recorder, add, decode
from ngramspec.theory.acceptance import output

IDS = list(range(1, 20))
P = np.array([0.5, 0.3, 0.2])  # at every position


def spots(text, draft, steps):
    """What each token of a text was compared with, if the draft began at its first one."""
    accepted = True
    found = []
    for node, token in enumerate(text):
        found.append((draft, node) if accepted and node < steps else None)
        accepted = accepted and token == draft.tokens[node]
    return found


@pytest.mark.parametrize("lenience", [1.0, 0.5, 0.1])
def test_estimates_add_up_to_the_distance_of_all_texts(lenience):
    """Two tokens of three ids: the distance between P and Q, and the estimate's mean under Q."""
    draft = Draft(np.array([2, 1], np.int32))
    scores = [torch.tensor(np.log(P), dtype=torch.float32)[None]] * 2
    mean = distance = total = 0.0
    for text in product(range(3), repeat=2):
        q = 1.0
        for token, spot in zip(text, spots(text, draft, 2), strict=True):
            drafted = np.eye(3)[draft.tokens[spot[1]]] if spot else None
            q *= (P if spot is None else output(P, drafted, lenience))[token]
        change = Change()
        add(change, text, scores, spots(text, draft, 2), lenience, True)
        distance += abs(q - P[list(text)].prod()) / 2
        mean += q * change.text_moved
        total += q
    assert total == pytest.approx(1)
    assert mean == pytest.approx(distance, abs=1e-6)
    assert (distance > 0.02) == (lenience < 1)


def test_greedy_text_tells_by_itself_where_it_leaves_the_target_s():
    scores = [torch.tensor(np.log(P), dtype=torch.float32)[None]] * 4
    change = Change()
    add(change, [0, 0, 1, 0], scores, [None] * 4, 0.3, False)
    add(change, [0, 0, 0, 0], scores, [None] * 4, 0.3, False)
    assert change.mean_moved == 1 / 8
    assert change.texts == [1.0, 0.0]
    assert change.perplexity == pytest.approx(np.exp(-(7 * np.log(0.5) + np.log(0.3)) / 8))


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_decoding_with_lenience_moves_texts_and_without_it_does_not(temperature):
    model = tiny_llama(vocab=23)
    plain = target_text(model, IDS, new=40, temperature=temperature, seed=0)
    prompts, seen = [("a", IDS)], {}
    plan = Plan(prompts, new=40, gamma=4, leniences=(1.0, 0.1))
    for row in measure(model, plan, temperature, ["ngram(order=2)"]):
        seen = {each.lenience: each for each in row.observed}
    exact, lenient = seen[1.0], seen[0.1]
    assert exact.moved == pytest.approx(0, abs=1e-9)
    assert exact.text_moved == pytest.approx(0, abs=1e-4)
    chosen = plain.probs[np.arange(len(plain.output)), plain.output].astype(float)
    assert exact.perplexity == pytest.approx(np.exp(-np.log(chosen).mean()), rel=1e-4)
    assert lenient.alpha > exact.alpha
    assert lenient.moved > 0.01
    assert lenient.text_moved > 0.1


def test_sampled_drafts_have_a_distance_for_each_token_and_none_for_texts():
    counts = CountModel([IDS * 3], 2)
    speculator = Speculator(Recorder(ModelDrafter(counts, "x")), 3, tree=None, lenience=0.2)
    change = Change()
    torch.manual_seed(1)
    arguments = {"max_new_tokens": 30, "do_sample": True, "top_k": 0}
    text = decode(tiny_llama(vocab=23), IDS, speculator, change, **arguments)
    assert len(text) == len(change.moved) == 30
    assert change.text_moved is None
    assert change.mean_moved > 0
    assert speculator.on_step is None


def test_a_recorder_forgets_a_draft_that_was_taken():
    recorder = Recorder(build_drafter("copy"))
    session = recorder.start(np.array([1, 2, 3, 1, 2], np.int32))
    draft = session.propose(2)
    assert recorder.take() is draft
    assert not len(recorder.take())
    session.close()
