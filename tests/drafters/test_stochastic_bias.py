"""What the sampled draft tokens may not decide: whether they are verified."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from conftest import tiny_llama
from doubles import ScriptedDrafter, draft_of
from two_tokens import VOCAB, fits, two_tokens

from ngramspec import Draft, Drafter, DraftSession, Speculator, build_drafter
from ngramspec.draft import EMPTY_DRAFT, Proposal
from ngramspec.drafters import PriorityDrafter
from ngramspec.drafters.priority import CalibratedDrafter
from ngramspec.drafters.stochastic import SamplingSession

TEXT = np.array([1, 2, 3, 1, 2, 4, 1, 2, 3, 5, 1, 2], np.int32)
SAMPLES = 2000


class Sampling(Drafter):
    """Draws from counts by what was drafted before: {(): {1: 3, 2: 1}, (1,): ...}."""

    def __init__(self, counts):
        self.known = counts

    def start(self, tokens):
        known = self.known

        class Session(SamplingSession):
            def counts(self, drafted):
                found = known.get(tuple(drafted), {})
                return np.array([*found], np.int32), np.array([*found.values()], np.int64)

            def extend(self, tokens):
                pass

        return Session(1.0)


REFERENCE = np.array([1, 2, 3, 1, 2, 9, 1, 2, 9, 3, 4, 1, 2, 3, 9, 5, 0, 1, 2], np.int32)


@pytest.mark.every(6)
@pytest.mark.parametrize("policy", ["priority", "value"])
@pytest.mark.parametrize(
    "spec", ["ngram(order=3,sample=true)", "copy(min_match=8)+ngram(order=2,sample=true)"]
)
def test_a_reference_with_ids_outside_the_vocabulary_biases_nothing(spec, policy):
    """Behind 1 2 stands 9, which the target does not have, as often as 3."""
    drafter = build_drafter(spec, policy=policy)
    counts, drafts, stats = two_tokens(drafter, REFERENCE)
    assert stats.drafter_faults == 0
    assert sum(len(draft) for draft in drafts) > 1.5 * SAMPLES
    assert fits(counts) > 1e-7


@pytest.mark.every(4)
@pytest.mark.parametrize(
    "known",
    [
        {(): {1: 1, 2: 1}, (1,): {3: 1, 9: 1}, (2,): {3: 1, 4: 1}},  # an id that is none
        {(): {1: 1, 2: 1}, (2,): {-1: 1, 4: 1}, (2, 4): {1: 1}},
        {(): {1: 1, 2: 1}, (1,): {3: 1}, (2,): {3: 1, 4: 2}, (2, 3): {0: 1, 6: 5}},
        {(): {0: 1, 1: 1, 9: 1}, (1,): {3: 1}},  # then nothing at all stands
    ],
)
def test_a_fault_costs_no_node_before_it(known):
    """Which distribution comes second, a sound one or not, hangs on the token drawn first."""
    counts, drafts, stats = two_tokens(Sampling(known), TEXT)
    assert stats.drafter_faults > SAMPLES / 10
    assert {len(draft) > 0 for draft in drafts} == {9 not in known[()]}
    assert fits(counts) > 1e-7


def test_a_draft_of_stochastic_tokens_that_is_too_long_is_cut():
    class TooLong(Sampling):
        def start(self, tokens):
            session = super().start(tokens)
            propose = session.propose_after
            session.propose_after = lambda drafted, gamma: propose(drafted, 9)
            return session

    known = {(): {1: 1, 2: 1}, (1,): {3: 1, 4: 1}, (2,): {3: 1}, (1, 3): {1: 1}}
    counts, drafts, stats = two_tokens(TooLong(known), TEXT, gamma=2)
    assert SAMPLES / 5 < stats.drafter_faults < SAMPLES / 3
    assert {len(draft) for draft in drafts} == {2}
    assert fits(counts) > 1e-7


class Fickle(Drafter):
    """Continues what was drafted, and fails after some tokens: raises, or returns what is none."""

    def __init__(self, fault):
        self.fault = fault

    def start(self, tokens):
        fault = self.fault

        class Session(DraftSession):
            def propose(self, gamma, cost=None, *, tree=False):
                return EMPTY_DRAFT

            def propose_after(self, drafted, gamma):
                if len(drafted) and drafted[-1] == 1:
                    return fault()
                return Draft(np.array([4], np.int32))

            def extend(self, tokens):
                pass

        return Session()


def raises():
    raise OSError("after 1")


ONE, SLOW = np.array([1], np.int32), pytest.mark.slow
SIBLINGS = Draft(
    np.array([3, 4], np.int32),
    np.array([-1, -1], np.int32),
    proposal=Proposal(
        np.array([0, 2, 4], np.int32), np.array([3, 4] * 2, np.int32), np.full(4, 0.5, np.float32)
    ),
)


@pytest.mark.every(4)
@pytest.mark.parametrize(
    ("fault", "calibrated"),
    [
        (raises, False),
        (raises, True),
        (lambda: "x", False),
        pytest.param(lambda: Draft(ONE, source=ONE.astype(np.int8)), True, marks=SLOW),
        pytest.param(lambda: Draft(ONE, proposal="x"), False, marks=SLOW),
        pytest.param(lambda: Draft(np.ones(99, np.int32)), True, marks=SLOW),
        (lambda: SIBLINGS, False),  # siblings are no chain
    ],
)
def test_a_tier_that_fails_behind_some_tokens_biases_nothing(fault, calibrated):
    above = Sampling({(): {1: 1, 2: 1}})
    drafter = PriorityDrafter([above, Fickle(fault)])
    drafter = CalibratedDrafter(drafter) if calibrated else drafter
    counts, drafts, _ = two_tokens(drafter, TEXT)
    tokens = {tuple(draft.tokens.tolist()) for draft in drafts}
    assert tokens == {(1,), (2, *[4] * 3)} or tokens == {(1,), (2, 4)}
    assert fits(counts) > 1e-7


def test_the_loss_of_whole_drafts_would_be_seen(monkeypatch):
    """What the tests above are there for: the draft is lost where 1 was drawn first."""
    known = {(): {1: 1, 2: 1}, (1,): {3: 1, 9: 1}, (2,): {3: 1, 4: 1}}
    head = "ngramspec.decoding.row.valid_prefix"
    monkeypatch.setattr(head, lambda *args, **kwargs: EMPTY_DRAFT)
    assert fits(two_tokens(Sampling(known), TEXT)[0]) < 1e-12


def lock_step(drafters, rows=2):
    model = tiny_llama(vocab=VOCAB, initializer_range=0.15, bos_token_id=None, pad_token_id=None)
    ids = torch.tensor([[row, 1, 2, 3, 1, 2] for row in range(rows)])
    events = []

    class ByRow(Drafter):
        def start(self, tokens):
            return drafters[tokens[0]].start(tokens)

    speculator = Speculator(ByRow(), 4, on_step=events.append)
    kwargs = {"logits_processor": [lambda ids, scores: scores]}  # so the rows go together
    model.generate(ids, do_sample=True, max_new_tokens=9, custom_generate=speculator, **kwargs)
    assert speculator.stats.drafter_faults == 0
    return [event for event in events if event.index == 1]


class Asked(ScriptedDrafter):
    """Drafts a token for each that is asked for, if these are enough; remembers how many were."""

    def __init__(self, least=0):
        super().__init__(self.zeros)
        self.least, self.gammas = least, []

    def zeros(self, at, gamma):
        self.gammas.append(gamma)
        return draft_of([0] * gamma if gamma >= self.least else [])


def test_in_lock_step_no_row_s_draws_decide_how_much_of_its_draft_is_verified():
    """A row whose sampled draft is short may not stop another from drafting, nor lose its own."""
    sampled, other = Sampling({(): {1: 1, 2: 1}}), Asked(least=2)
    events = lock_step([sampled, other])
    assert [len(event.drafted) for event in events] == [1, 4]
    assert other.gammas[0] == 4
    never = Asked(least=99)
    assert [len(event.drafted) for event in lock_step([sampled, never])] == [1, 0]
    assert [len(event.drafted) for event in lock_step([never, sampled])] == [0, 0]


def test_in_lock_step_other_drafts_are_cut_to_the_shortest():
    assert [len(event.drafted) for event in lock_step([Asked(), Asked()])] == [4, 4]
    assert [len(event.drafted) for event in lock_step([Asked(), Asked(least=99)])] == [0, 0]
