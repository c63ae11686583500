"""Drafts drawn from counts: the proposals they hand over, and the text's distribution."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from conftest import tiny_llama
from scipy.stats import chisquare

from ngramspec import DecodeStats, Draft, Drafter, DraftSession, Speculator, build_drafter
from ngramspec.bench.acceptance import DRAWN, MATCHED, measure
from ngramspec.decoding.draft_runner import DraftRunner
from ngramspec.draft import EMPTY_DRAFT, Proposal
from ngramspec.draft_length.schedule import FixedGamma
from ngramspec.drafters import TieredDrafter
from ngramspec.drafters.calibrated import CalibratedDrafter
from ngramspec.drafters.stochastic import DrawingSession
from ngramspec.drafters.validation import check_draft
from ngramspec.verification.rule import Rule
from ngramspec.verification.sampler import DraftCursor, drafted_at

TEXT = np.array([1, 2, 3, 1, 2, 4, 1, 2, 3, 5, 1, 2], np.int32)


def session_of(spec, tokens=TEXT, seed=0):
    session = build_drafter(spec, policy="priority").start(tokens)
    session.begin_sampling(1.0, (seed,))
    return session


def test_the_proposal_is_the_distribution_of_the_counts():
    session = session_of("ngram(order=3,sample=True)")
    drawn = np.zeros(6)
    for _ in range(2000):
        draft = check_draft(session.propose(3), 3, 6)
        ids, probs = draft.proposal.of(0)  # behind 1 2: twice 3, once 4
        assert dict(zip(ids.tolist(), probs.tolist(), strict=True)) == pytest.approx(
            {3: 2 / 3, 4: 1 / 3}
        )
        drawn[draft.tokens[0]] += 1
    assert chisquare(drawn[[3, 4]], [2000 * 2 / 3, 2000 / 3]).pvalue > 1e-7
    assert drawn.sum() == drawn[[3, 4]].sum()


def test_temperature_sharpens_it_and_the_request_s_is_taken_if_asked():
    for spec, temperature in [
        ("ngram(order=3,sample=True,temperature=0.5)", None),
        ("ngram(order=3,sample=True,temperature=request)", 0.5),
        ("copy+ngram(order=3,sample=True,temperature=request)", 0.5),
    ]:
        session = session_of(spec)
        if temperature is not None:
            session.begin_sampling(temperature, (1, 2))
        session = getattr(session, "sessions", [session])[-1]
        _, probs = session.propose(1).proposal.of(0)
        assert sorted(probs.tolist()) == pytest.approx([1 / 5, 4 / 5])


def test_unigram_draws_from_all_counts():
    session = session_of("unigram(sample=True,min_acceptance=0.0)")
    ids, probs = session.propose(5).proposal.of(0)
    assert dict(zip(ids.tolist(), probs.tolist(), strict=True)) == pytest.approx(
        {token: np.mean(token == TEXT) for token in set(TEXT.tolist())}
    )


def test_the_unigram_gate_closes():
    session = session_of("unigram(sample=True)")
    drafted = 0
    for _ in range(300):
        draft = session.propose(1)
        if len(draft):
            drafted += 1
            session.observe(draft, (), 1)
    assert drafted < 30


def test_the_same_seed_drafts_the_same_and_leaves_the_generator_alone():
    drafts = []
    for seed in (0, 0, 1):
        session = session_of("ngram(order=3,sample=True)", seed=seed)
        state = torch.get_rng_state()
        drafts.append([session.propose(8).tokens.tolist() for _ in range(5)])
        assert torch.equal(state, torch.get_rng_state())
    assert drafts[0] == drafts[1] != drafts[2]


def test_tiers_join_their_proposals():
    session = session_of("copy(min_match=9)+ngram(order=3,sample=True)+unigram(sample=True)")
    draft = check_draft(session.propose(6), 6, 6)
    assert draft.proposal is not None
    mixed = session_of("ngram(order=3,window=3)+unigram(sample=True,min_acceptance=0.0)")
    draft = check_draft(mixed.propose(6), 6, 6)
    if len(draft) > 1:
        assert draft.proposal.of(0)[1].tolist() == [1.0]


@pytest.mark.parametrize("value", [0, -1.0, "hot", None])
def test_bad_temperatures_are_named(value):
    with pytest.raises(ValueError, match="temperature must be"):
        build_drafter(f"ngram(sample=True,temperature={value})")


def test_a_request_s_seed_is_what_drafts_are_drawn_with():
    drafts = []
    for seed in ((1, 0, 9), (1, 0, 9), (1, 1, 9), (2, 0, 9)):  # call, row, committed tokens
        session = session_of("ngram(order=3,sample=True)+unigram(sample=True)")
        session.begin_sampling(1.0, seed)
        drafts.append([session.propose(8).tokens.tolist() for _ in range(5)])
    assert drafts[0] == drafts[1]
    assert drafts[1] != drafts[2] != drafts[3] != drafts[1]


def test_drawn_drafts_grow_again_where_they_stand():
    """Their length is decided before; one token more is drawn to learn whether it would stand."""
    drafter = build_drafter("ngram(order=2,sample=True)", policy="priority")
    rng = np.random.default_rng(0)
    cost = (1 + 0.14 * np.arange(-1, 17).clip(0)).astype(np.float32)
    text = np.tile(np.arange(5, 25, dtype=np.int32), 60)  # one continuation each
    session = CalibratedDrafter(drafter).start(text[:60])
    session.begin_sampling(1.0, (0,))
    owner = session.drafter
    lengths = []
    for _ in range(100):  # a poor stretch
        lengths.append(len(session.propose(16, cost)))
        session.extend(rng.integers(5, 25, 1, np.int32))
    at = 60
    while at < 1100:
        drafted = session.propose(16, cost).tokens
        lengths.append(len(drafted))
        right = int(np.cumprod(drafted == text[at : at + len(drafted)]).sum())
        session.extend(text[at : at + right + 1])
        at += right + 1
    assert owner.draws
    assert np.mean(lengths[60:100]) < 1
    assert max(lengths[-60:]) >= 3  # without that one it would stay at 2


def test_rows_and_calls_draw_each_for_itself(monkeypatch):
    """Where sampling leaves torch's global generator alone, drafts must not be the same again."""
    seeds = []
    begin = DrawingSession.begin_sampling

    def watched(session, temperature, seed):
        seeds.append(seed)
        begin(session, temperature, seed)

    monkeypatch.setattr(DrawingSession, "begin_sampling", watched)
    model = tiny_llama(initializer_range=0.15)
    generator = torch.Generator().manual_seed(3)
    kwargs = {"do_sample": True, "max_new_tokens": 4, "generator": generator}
    speculator = Speculator("ngram(order=2,sample=True)", 3)
    for _ in range(2):
        model.generate(torch.ones(2, 6).long(), custom_generate=speculator, **kwargs)
    assert len(seeds) == len(set(seeds)) == 4


@pytest.mark.parametrize(
    ("spec", "gamma", "own", "ahead"),
    [
        ("ngram(order=2,sample=True)", 3, False, False),
        ("ngram(order=2,sample=True)", 3, False, True),
        ("ngram(order=2,sample=True)", "auto", True, False),
        ("unigram(sample=True)", 3, False, True),
        ("unigram(sample=True,min_acceptance=0.0)+copy(min_match=1)", "auto", True, True),
    ],
)
def test_text_drafted_at_random_has_the_target_s_distribution(spec, gamma, own, ahead, monkeypatch):
    monkeypatch.setattr("ngramspec.decoding.setup.prefers_one_transfer", lambda device: ahead)
    generator = torch.Generator().manual_seed(0) if own else None
    model = tiny_llama(vocab=4, initializer_range=0.15, bos_token_id=None, pad_token_id=None)
    ids = torch.tensor([[1, 2, 3, 1, 2, 0, 3, 1]])
    with torch.no_grad():
        first = model(ids).logits[0, -1].softmax(-1)
        pairs = torch.stack([torch.cat((ids[0], torch.tensor([x]))) for x in range(4)])
        second = model(pairs).logits[:, -1].softmax(-1)
        triples = torch.stack(
            [torch.cat((pairs[x], torch.tensor([y]))) for x in range(4) for y in range(4)]
        )
        third = model(triples).logits[:, -1].softmax(-1)
    expected = ((first[:, None] * second).flatten()[:, None] * third).flatten().double().numpy()
    speculator = Speculator(spec, gamma)
    counts = np.zeros(64)
    torch.manual_seed(0)
    kwargs = {"custom_generate": speculator} | ({"generator": generator} if own else {})
    for _ in range(1500):
        out = model.generate(ids, do_sample=True, max_new_tokens=3, **kwargs)
        a, b, c = out[0, 8:].tolist()
        counts[16 * a + 4 * b + c] += 1
    assert speculator.stats.drafter_faults == 0
    accepted = speculator.stats.accepted + speculator.stats.prefill_accepted
    assert accepted > (200 if gamma == 3 else 0)  # costs decide, under "auto"
    assert chisquare(counts, 1500 * expected / expected.sum()).pvalue > 1e-7


@pytest.mark.parametrize("spec", ["ngram(sample=True)", "unigram(sample=True)"])
def test_match_gives_the_text_of_the_seed_whatever_was_drawn(spec):
    model = tiny_llama(initializer_range=0.15)
    ids = torch.tensor([[5, 6, 7, 8, 5, 6, 7, 9, 5, 6]])
    torch.manual_seed(5)
    plain = model.generate(ids, do_sample=True, max_new_tokens=40)
    torch.manual_seed(5)
    speculator = Speculator(spec, verification="match")
    ours = model.generate(ids, do_sample=True, max_new_tokens=40, custom_generate=speculator)
    assert torch.equal(plain, ours)


# What the tokens drawn may not decide: whether they are verified

VOCAB = 6
SAMPLES = 5000
P = torch.tensor([0.25, 0.2, 0.1, 0.25, 0.1, 0.1])
P_NEXT = torch.softmax(torch.randn((VOCAB, VOCAB), generator=torch.Generator().manual_seed(1)), -1)


def two_tokens(drafter, tokens, gamma=4):
    """What two positions commit in many generations of their own: counts, drafts, faults.

    P is the target's distribution at the first, P_NEXT[first] at the second.
    """
    stats, drafts = DecodeStats(), []
    for row in range(SAMPLES):
        drafting = DraftRunner(
            lambda: drafter,
            FixedGamma(gamma),
            tokens,
            VOCAB,
            stats,
            temperature=1.0,
            seed=(7, row),
        )
        drafts.append(drafting.propose(gamma))
    rule = Rule(True, generator=torch.Generator().manual_seed(0))
    walks = [DraftCursor(draft) for draft in drafts]
    cpu = torch.device("cpu")
    scores = P.log().expand(SAMPLES, -1)
    first = rule.choose(scores, *drafted_at([(walk, 0) for walk in walks], VOCAB, cpu))
    nothing = DraftCursor(EMPTY_DRAFT)
    stands = [walk.drafted(0) == [token] for walk, token in zip(walks, first.tolist(), strict=True)]
    walks = [walk if stood else nothing for walk, stood in zip(walks, stands, strict=True)]
    spots = [(walk, 1 if walk.tokens else 0) for walk in walks]
    second = rule.choose(P_NEXT[first].log(), *drafted_at(spots, VOCAB, cpu))
    counts = np.bincount((VOCAB * first + second).numpy(), minlength=VOCAB**2)
    return counts, drafts, stats


def fits(counts):
    """The p-value of the counts under the target's distribution of two tokens."""
    expected = (P[:, None].double() * P_NEXT.double()).flatten().numpy()
    return chisquare(counts, counts.sum() * expected / expected.sum()).pvalue


class Drawing(Drafter):
    """Draws from counts by what was drafted before: {(): {1: 3, 2: 1}, (1,): ...}."""

    def __init__(self, counts):
        self.known = counts

    def start(self, tokens):
        known = self.known

        class Session(DrawingSession):
            def counts(self, drafted):
                found = known.get(tuple(drafted), {})
                return np.array([*found], np.int32), np.array([*found.values()], np.int64)

            def extend(self, tokens):
                pass

        return Session(1.0)


REFERENCE = np.array([1, 2, 3, 1, 2, 9, 1, 2, 9, 3, 4, 1, 2, 3, 9, 5, 0, 1, 2], np.int32)


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
    counts, drafts, stats = two_tokens(Drawing(known), TEXT)
    assert stats.drafter_faults > SAMPLES / 10
    assert {len(draft) > 0 for draft in drafts} == {9 not in known[()]}
    assert fits(counts) > 1e-7


def test_a_draft_of_stochastic_tokens_that_is_too_long_is_cut():
    class TooLong(Drawing):
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
    """Continues what was drafted, and fails behind some tokens: raises, or returns what is none."""

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
    raise OSError("behind 1")


ONE = np.array([1], np.int32)
SIBLINGS = Draft(
    np.array([3, 4], np.int32),
    np.array([-1, -1], np.int32),
    proposal=Proposal(
        np.array([0, 2, 4], np.int32), np.array([3, 4] * 2, np.int32), np.full(4, 0.5, np.float32)
    ),
)


@pytest.mark.parametrize(
    "fault",
    [
        raises,
        lambda: "x",
        lambda: Draft(ONE, source=ONE.astype(np.int8)),
        lambda: Draft(ONE, proposal="x"),
        lambda: Draft(np.ones(99, np.int32)),
        lambda: SIBLINGS,  # siblings are no chain
    ],
)
@pytest.mark.parametrize("calibrated", [False, True])
def test_a_tier_that_fails_behind_some_tokens_biases_nothing(fault, calibrated):
    above = Drawing({(): {1: 1, 2: 1}})
    drafter = TieredDrafter([above, Fickle(fault)])
    drafter = CalibratedDrafter(drafter) if calibrated else drafter
    counts, drafts, _ = two_tokens(drafter, TEXT)
    tokens = {tuple(draft.tokens.tolist()) for draft in drafts}
    assert tokens == {(1,), (2, *[4] * 3)} or tokens == {(1,), (2, 4)}
    assert fits(counts) > 1e-7


def test_the_loss_of_whole_drafts_would_be_seen(monkeypatch):
    """What the tests above are there for: the draft is lost where 1 was drawn first."""
    known = {(): {1: 1, 2: 1}, (1,): {3: 1, 9: 1}, (2,): {3: 1, 4: 1}}
    runner = "ngramspec.decoding.draft_runner"
    monkeypatch.setattr(f"{runner}.sound_head", lambda *args, **kwargs: EMPTY_DRAFT)
    assert fits(two_tokens(Drawing(known), TEXT)[0]) < 1e-12


def lock_step(drafters, rows=2):
    """The events of the first step of a batch whose rows go together."""
    model = tiny_llama(vocab=VOCAB, initializer_range=0.15, bos_token_id=None, pad_token_id=None)
    ids = torch.tensor([[row, 1, 2, 3, 1, 2] for row in range(rows)])
    events = []

    class ByRow(Drafter):
        def start(self, tokens):
            return drafters[tokens[0]].start(tokens)

    speculator = Speculator(ByRow(), 4, on_step=events.append)
    kwargs = {"return_dict_in_generate": True, "output_scores": True}  # so the rows go together
    model.generate(ids, do_sample=True, max_new_tokens=9, custom_generate=speculator, **kwargs)
    assert speculator.stats.drafter_faults == 0
    return [event for event in events if event.index == 1]


class Asked(Drafter):
    """Drafts a token for each that is asked for, if these are enough; remembers how many were."""

    def __init__(self, least=0):
        self.least = least
        self.asked = []

    def start(self, tokens):
        owner = self

        class Session(DraftSession):
            def propose(self, gamma, cost=None, *, tree=False):
                owner.asked.append(gamma)
                return Draft(np.zeros(gamma if gamma >= owner.least else 0, np.int32))

            def extend(self, tokens):
                pass

        return Session()


def test_in_lock_step_no_row_s_draws_decide_how_much_of_its_draft_is_verified():
    """A row that was drawn short may not keep another one from drafting, and lose its own."""
    drawn, other = Drawing({(): {1: 1, 2: 1}}), Asked(least=2)
    events = lock_step([drawn, other])
    assert [len(event.drafted) for event in events] == [1, 4]
    assert other.asked[0] == 4
    never = Asked(least=99)
    assert [len(event.drafted) for event in lock_step([drawn, never])] == [1, 0]
    assert [len(event.drafted) for event in lock_step([never, drawn])] == [0, 0]


def test_in_lock_step_other_drafts_are_cut_to_the_shortest():
    assert [len(event.drafted) for event in lock_step([Asked(), Asked()])] == [4, 4]
    assert [len(event.drafted) for event in lock_step([Asked(), Asked(least=99)])] == [0, 0]


# The benchmark that compares the ways of verifying


def test_acceptance_is_what_the_formulas_say():
    model = tiny_llama(vocab=8, initializer_range=0.15, bos_token_id=None, pad_token_id=None)
    rng = np.random.default_rng(0)
    prompts = [rng.integers(0, 8, 40).tolist() for _ in range(6)]
    found = measure(model, prompts, new=200, gamma=4, temperature=0.7, draft_temperature=1.0)
    drawn, matched = found[DRAWN], found[MATCHED]
    assert drawn.calls + drawn.accepted == drawn.emitted == matched.emitted == 6 * 199
    for way, tally in found.items():
        error = (tally.formula(DRAWN) * (1 - tally.formula(DRAWN)) / tally.tested) ** 0.5
        if way == DRAWN:  # the formulas were summed up at these very positions
            assert abs(tally.alpha - tally.formula(DRAWN)) < 4 * error
        else:
            assert abs(tally.alpha - drawn.formula(way)) < 0.1
    assert drawn.formula(DRAWN) > drawn.formula(MATCHED) + 0.1
    assert matched.formulas == {}
    assert drawn.tokens_per_call > matched.tokens_per_call > 1
