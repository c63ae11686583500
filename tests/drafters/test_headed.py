"""A head with tables: when it is consulted, what is drafted, and the distribution of the text."""

from __future__ import annotations

import gc
import math
import weakref

import numpy as np
import pytest
import torch
from doubles import DraftModelDouble
from engine_pair import costs, ids
from scipy.stats import chisquare
from two_tokens import VOCAB, P, fits, two_tokens

from ngramspec import SharedStore, Speculator, UnsupportedError, build_drafter
from ngramspec.costs.policies import GammaController
from ngramspec.drafters import CopyDrafter, HeadedDrafter, ModelDrafter, MtpDrafter, ValueDrafter
from ngramspec.drafters.headed import HeadOfCalls, with_head
from ngramspec.verification.rule import Rule

TEXT = ids([1, 2, 3, 1, 2, 4, 1, 2, 3, 5, 1, 2])


class Toy(DraftModelDouble):
    """A draft model whose distribution depends on the last token alone."""

    def __init__(self, logits, cost=0.05, broken=()):
        super().__init__(cost)
        self.logits, self.broken, self.calls = logits, broken, 0

    def forward(self, tokens, last, most):
        self.calls += 1
        if self.calls in self.broken:
            raise RuntimeError("broken")
        self.read += tokens.tolist()
        rows = self.logits[self.read[-last:]]
        order = np.argsort(-rows, axis=1)[:, :most].astype(np.int32)
        rows = rows - np.log(np.exp(rows).sum(axis=1, keepdims=True))
        return order, np.take_along_axis(rows, order, 1).astype(np.float32)


def noisy(vocab=VOCAB, scale=1.5, seed=0):
    return np.random.default_rng(seed).normal(size=(vocab, vocab)) * scale


def headed(**arguments):
    return HeadedDrafter(ValueDrafter(), ModelDrafter("toy", **arguments))


def session_of(drafter, tokens, model):
    session = drafter.start(tokens)
    session.begin_models(lambda _: model)
    return session


class Watched(list):
    """A text that counts the tokens that are copied."""

    copied = 0

    def __add__(self, other):
        self.copied += len(self)
        return [*self, *other]

    def __getitem__(self, at):
        found = super().__getitem__(at)
        self.copied += len(found) if isinstance(at, slice) else 0
        return found


@pytest.mark.parametrize("drafter", [ModelDrafter("toy", threshold=1e-9), headed()])
def test_no_step_copies_the_text(drafter):
    session = session_of(drafter, ids(np.arange(3000) % VOCAB), Toy(noisy(), 0.0))
    session.propose(4)
    session.text = Watched(session.text)
    for _ in range(20):
        draft = session.propose(4)
        session.observe(draft, [])
        session.extend(ids([3]))
    assert session.reader.model.calls > 20
    assert session.text.copied < 20 * 8


class KnownCosts(GammaController):
    """The same costs at every step."""

    def plan(self, estimates, required=None):
        return 4, costs(4, 0.03)


@pytest.mark.long
@pytest.mark.parametrize("controller", [GammaController(4), KnownCosts(4)])
@pytest.mark.parametrize("samples", [2000, pytest.param(200_000, marks=pytest.mark.slow)])
def test_mixed_drafts_keep_the_distribution(controller, samples):
    """Two tokens of many generations: chi-square against the target's distribution."""
    logits = noisy()
    made = {"samples": samples, "controller": controller, "models": lambda: Toy(logits)}
    counts, drafts, stats = two_tokens(headed(), TEXT, **made)
    assert stats.drafter_faults == 0
    assert fits(counts) > 1e-5
    sizes = np.concatenate([np.diff(each.proposal.starts) for each in drafts if each.proposal])
    assert (sizes > 1).any()  # sampled tokens, and
    assert (sizes == 1).any()  # tokens of the tables


def test_a_certain_copy_is_drafted_without_the_head():
    rng = np.random.default_rng(0)
    base = rng.integers(0, 500, 80)
    text = ids([*base, *base, *base[:40]])
    model = Toy(noisy(500), cost=0.1)
    session = session_of(headed(), text, model)
    draft = session.propose(16, costs(16, 0.001))
    assert draft.tokens.tolist() == base[40:56].tolist()
    assert model.calls == 0


def test_a_head_that_is_right_is_consulted_and_a_useless_one_is_not():
    rng = np.random.default_rng(0)
    said = rng.permutation(3000)
    calls = {}
    for right in (True, False):
        logits = np.zeros((3000, 3000), np.float32)
        logits[said[:-1], said[1:]] = 12.0 if right else 0.0
        logits[said[:-1], said[:-1] - 1] += 0.0 if right else 12.0
        model, drafter = Toy(logits, cost=0.3), headed()
        session = session_of(drafter, ids(said[:2]), model)
        at, accepted, steps = 2, 0, 0
        while at < 400:
            draft = session.propose(6, costs(6, 0.01)).tokens.tolist()
            agree = 0
            while agree < len(draft) and draft[agree] == said[at + agree]:
                agree += 1
            session.extend(ids(said[at : at + agree + 1]))
            at, accepted, steps = at + agree + 1, accepted + agree, steps + 1
        calls[right] = model.calls / steps
        assert (accepted > 150) == right
    assert calls[True] > 0.6
    assert calls[False] < 0.2


def test_tables_continue_the_heads_path():
    logits = np.zeros((60, 60), np.float32)
    logits[9, 20] = 12  # the head knows what follows 9
    text = ids([20, 21, 22, 23, 24, *range(30, 50), 7, 8, 9])
    session = session_of(headed(), text, Toy(logits, cost=0.0))
    assert session.propose(4).tokens.tolist() == [20, 21, 22, 23]


@pytest.mark.parametrize("sampled", [False, True])
def test_an_error_after_sampled_tokens_keeps_them(sampled):
    drafter = headed()
    session = session_of(drafter, TEXT, Toy(noisy(scale=4.0), broken=(2, 3, 4)))
    if sampled:
        session.begin_sampling(1.0, (0,))
        draft = session.propose(4)
        assert draft.proposal is not None
        with pytest.raises(RuntimeError, match="broken"):
            session.extend(ids([1]))
    else:
        with pytest.raises(RuntimeError, match="broken"):
            session.propose(4)


def test_a_head_that_computes_nan_drafts_until_there():
    logits = np.full((60, 60), -30, np.float32)
    logits[9, 20:22], logits[20] = 9, np.nan
    tokens = set()
    for seed in range(20):
        session = session_of(headed(), ids([7, 8, 9]), Toy(logits, cost=0.0))
        session.begin_sampling(1.0, (seed,))
        tokens.add(session.propose(4).tokens.tolist()[0])
    assert tokens == {20, 21}


@pytest.mark.parametrize("cost", [None, costs(8, 0.03)])
@pytest.mark.parametrize("temperature", [None, 1.0])
def test_a_draft_may_be_proposed_again(temperature, cost):
    model = Toy(noisy(scale=3.0))
    session = session_of(headed(), TEXT, model)
    if temperature is not None:
        session.begin_sampling(temperature, (0,))
    for committed in (1, 4, 2, 5, 3, 3, 0, 2):
        first = session.propose(4, cost)
        forwards, paid = model.calls, session._paid + session._verifying
        for _ in range(2):
            draft = session.propose(4, cost)
            assert draft.tokens.tolist() == first.tokens.tolist()
            assert (draft.proposal is None) == (first.proposal is None)
        assert model.calls == forwards
        assert session._paid + session._verifying == paid  # the step's cost is counted once
        for gamma, tree in ((1, False), (0, False), (2, True), (8, False)):
            draft = session.propose(gamma, cost, tree=tree)
            assert len(draft) <= gamma
        session.observe(draft, [], 1 if len(draft) else 0)
        session.extend(ids([]))
        session.extend(ids([committed]))
        session.tables.engine.check_integrity()
    assert model.calls


@pytest.mark.long
@pytest.mark.parametrize("repeated", [(4, 1), (0, 4, 4)])
@pytest.mark.parametrize("samples", [2000, pytest.param(200_000, marks=pytest.mark.slow)])
def test_repeated_proposals_keep_the_distribution(samples, repeated):
    """The first token of many generations: chi-square against the target's distribution."""
    drafter, logits, drafts = headed(), noisy(), []
    for row in range(samples):
        session = session_of(drafter, TEXT, Toy(logits))
        session.begin_sampling(0.9, (7, row))
        for gamma in repeated:
            session.propose(gamma)
        drafts.append(session.propose(4))
        session.close()
    rule = Rule(True, generator=torch.Generator().manual_seed(0))
    first = rule.choose(P.log().expand(samples, -1), [(draft, 0) for draft in drafts])
    counts = np.bincount(first.numpy(), minlength=VOCAB)
    assert chisquare(counts, samples * P.double().numpy()).pvalue > 1e-6
    assert any(draft.proposal is not None for draft in drafts)


def test_specs_by_name():
    drafter = build_drafter("auto+mtp(gamma=3)")
    assert isinstance(drafter, HeadedDrafter)
    assert isinstance(drafter.head, MtpDrafter)
    assert drafter.head.gamma == 3
    assert build_drafter(drafter.spec).spec == drafter.spec
    assert build_drafter("auto+mtp").source_names[-1] == "mtp"
    assert build_drafter("auto+model(folder)").assistants[0].assistant == "folder"
    assert "recycle" in build_drafter("auto+mtp").source_names
    own = drafter.with_calibration(by_request=True)
    assert own.by_request
    assert own.worth is not drafter.worth
    assert own.tables.calibrations is not drafter.tables.calibrations


def test_what_is_learned_of_a_calls_head_is_kept():
    heads, own = HeadOfCalls(), ValueDrafter()
    first = heads.drafter(own, MtpDrafter(2), by_request=False)
    assert heads.drafter(own, MtpDrafter(2), by_request=False) is first
    assert heads.drafter(own, MtpDrafter(1), by_request=False) is not first
    assert heads.drafter(own, MtpDrafter(2), by_request=False) is first
    for tables in (own, build_drafter("none"), build_drafter("copy", policy="priority")):
        assert heads.drafter(tables, MtpDrafter(2), by_request=True).by_request
    alone = with_head(build_drafter("none"), MtpDrafter())
    assert alone.tables.sources == ()
    assert len(alone.start(TEXT).propose(4)) == 0  # without its model
    other = with_head(alone, MtpDrafter(2))
    assert (other.head.gamma, other.spec.count("mtp")) == (2, 1)


def test_a_replaced_drafter_is_freed_with_its_stores():
    speculator = Speculator(stores=[SharedStore()["a"]])
    first = speculator._drafter_with(MtpDrafter(2))
    speculator.gamma = 4
    assert speculator._drafter_with(MtpDrafter(2)) is first
    replaced = weakref.ref(speculator.drafter), weakref.ref(speculator.stores[0].store)
    del first
    speculator.drafter = ValueDrafter()
    gc.collect()
    assert [each() for each in replaced] == [None, None]
    assert speculator._drafter_with(MtpDrafter(2)).stores == ()


def steps_until_read(reading, promised, steps=400):
    """Undrafted steps before a head that promises a gain reads the text; None: it never did."""
    model = Toy(noisy(500), cost=0.8 - promised)
    model.reading = reading
    session = session_of(headed(), ids(range(100)), model)
    for step in range(steps):
        draft = session.propose(4, costs(4, 0.5))
        if model.calls:
            return step
        session.observe(draft, [])
        session.extend(ids([100 + step]))
    return None


def test_a_text_is_read_once_the_missed_gains_exceed_the_cost_of_reading():
    assert steps_until_read(0.0, promised=0.3) == 0
    soon, later = (steps_until_read(cost, promised=0.3) for cost in (0.01, 0.02))
    assert 0 < soon < later
    assert steps_until_read(math.inf, promised=0.3) is None  # its cost is not known yet


def test_a_head_that_does_not_pay_is_tried_less_often_where_it_must_read_much():
    assert steps_until_read(0.0, promised=-0.3) < steps_until_read(0.02, promised=-0.3)


def test_no_head_drafts_beside_a_drafter_with_stores_of_its_own():
    other = CopyDrafter()
    other.stores = ("a store",)
    with pytest.raises(UnsupportedError, match="no model can draft beside .* has stores"):
        with_head(other, MtpDrafter(2))
