"""Evidence: what drafters that ask get to know of the target's forwards."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from doubles import ScriptedDrafter, bushy, half_right, ids

import ngramspec
from ngramspec import Draft, Drafter, DraftSession, EvidenceRequest, Speculator, build_drafter
from ngramspec.decoding import row
from ngramspec.decoding.observer import Observer
from ngramspec.draft import Evidence
from ngramspec.drafters import CalibratedDrafter, PriorityDrafter
from ngramspec.verification import evidence as channel

PROMPT = [5, 6, 7, 8, 5, 6, 7, 9, 5, 6]
VOCAB = 97


class Asking(Drafter):
    """Another drafter's drafts; keeps the evidence, with the committed tokens before it."""

    def __init__(self, inner, request):
        self.inner, self.source_names, self.evidence = inner, inner.source_names, request
        self.seen, self.drafts = [], []

    def start(self, tokens):
        return AskingSession(self, tokens)


class AskingSession(DraftSession):
    def __init__(self, owner, tokens):
        self.owner, self.inner = owner, owner.inner.start(tokens)
        self.tokens = tokens.tolist()

    def propose(self, gamma, cost=None, *, tree=False):
        return self.inner.propose(gamma, cost, tree=tree)

    def observe(self, draft, accepted, verified=None, evidence=None):
        self.owner.drafts.append((draft, accepted))
        self.owner.seen.append((list(self.tokens), evidence))

    def extend(self, tokens):
        self.tokens += tokens.tolist()
        self.inner.extend(tokens)


class OneTransfer(Observer):
    one_transfer = True


def generated(model, drafter, *, observer=None, new=40, **arguments):
    speculator = Speculator(drafter, gamma=12, tree=12)
    speculator.observer = observer
    own = {"do_sample": False, "max_new_tokens": new} | arguments
    own.setdefault("input_ids", torch.tensor([PROMPT]))
    return ngramspec.generate(model, speculator=speculator, **own), speculator


def texts_of(before, evidence):
    """The tokens that each position follows, from the first of the prompt on."""
    texts = []
    for token, parent in zip(evidence.tokens.tolist(), evidence.parents.tolist(), strict=True):
        texts.append([*(texts[parent] if parent >= 0 else before[:-1]), token])
    return texts


def check(model, before, evidence, k=8):
    """Compare evidence with plain forwards over every position's text."""
    for at, text in enumerate(texts_of(before, evidence)):
        with torch.no_grad():
            out = model(torch.tensor([text]), output_hidden_states=True)
        log_probs = torch.log_softmax(out.logits[0, -1].float(), -1)
        assert evidence.ids[at].tolist() == log_probs.topk(k).indices.tolist()
        np.testing.assert_allclose(
            evidence.log_probs[at], log_probs[evidence.ids[at].tolist()], atol=1e-4
        )
        if evidence.hidden is not None:
            np.testing.assert_allclose(evidence.hidden[at], out.hidden_states[-1][0, -1], atol=1e-4)


def check_shapes(evidence, k=8):
    m = len(evidence.tokens)
    assert evidence.tokens.dtype == evidence.parents.dtype == evidence.ids.dtype == np.int32
    assert evidence.ids.shape == evidence.log_probs.shape == (m, k)
    assert evidence.log_probs.dtype == np.float32
    assert evidence.accepted[0] == 0


@pytest.mark.parametrize("observer", [None, OneTransfer()], ids=["cpu", "one transfer"])
def test_every_position_of_a_tree_comes_back_as_a_plain_forward_gives_it(tiny, observer):
    plain, _ = generated(tiny, "none")
    drafter = Asking(bushy(plain[0].tolist(), VOCAB), EvidenceRequest(top_k=8, hidden=True))
    out, speculator = generated(tiny, drafter, observer=observer)
    assert out.tolist() == plain.tolist()
    assert len(drafter.seen) == speculator.stats.target_calls
    assert max(len(evidence.tokens) for _, evidence in drafter.seen) == 13
    rejected = 0
    for (before, evidence), (draft, accepted) in zip(drafter.seen, drafter.drafts, strict=True):
        check_shapes(evidence)
        assert evidence.hidden.shape == (len(evidence.tokens), 32)
        assert evidence.tokens.tolist() == [before[-1], *draft.tokens.tolist()]
        assert evidence.accepted == (0, *(node + 1 for node in accepted))
        check(tiny, before, evidence)
        rejected += len(draft) - len(accepted)
    assert rejected > 20


PROCESSED = [
    {"repetition_penalty": 1.3, "suppress_tokens": [1, 2, 3, 4]},
    {"do_sample": True, "temperature": 0.7, "top_k": 5},
]


@pytest.mark.parametrize("observer", [None, OneTransfer()], ids=["cpu", "one transfer"])
@pytest.mark.parametrize("arguments", PROCESSED, ids=str)
def test_evidence_is_of_raw_logits_and_changes_no_text(tiny, arguments, observer):
    torch.manual_seed(3)
    plain, _ = generated(tiny, "none", **arguments)
    inner = half_right(plain[0].tolist(), VOCAB)
    drafter = Asking(inner, EvidenceRequest(top_k=8, hidden=True))
    torch.manual_seed(3)
    out, _ = generated(tiny, drafter, observer=observer, **arguments)
    assert out.tolist() == plain.tolist()
    for before, evidence in drafter.seen:
        check(tiny, before, evidence)


def test_stochastic_drafts_bring_evidence_of_their_chain(tiny):
    torch.manual_seed(0)
    drafter = Asking(build_drafter("ngram(sample=true)", policy="priority"), EvidenceRequest(3))
    generated(tiny, drafter, do_sample=True, observer=OneTransfer())
    assert max(len(evidence.tokens) for _, evidence in drafter.seen) > 1
    for before, evidence in drafter.seen:
        check(tiny, before, evidence, k=3)


@pytest.mark.parametrize("ragged", [True, False])
def test_each_row_of_a_batch_gets_its_own(tiny, ragged):
    prompts = torch.tensor([PROMPT, [9, 8, 7, 6, 9, 8, 7, 5, 9, 8]])
    mask = torch.ones_like(prompts)
    drafter = Asking(build_drafter("ngram"), EvidenceRequest(top_k=4, hidden=True))
    arguments = {} if ragged else {"return_dict_in_generate": True}
    generated(tiny, drafter, input_ids=prompts, attention_mask=mask, **arguments)
    starts = {tuple(before[:10]) for before, _ in drafter.seen}
    assert starts == set(map(tuple, prompts.tolist()))
    for before, evidence in drafter.seen:
        check(tiny, before, evidence, k=4)


def test_tiers_get_it_of_the_whole_draft_if_they_ask(tiny):
    asking = Asking(build_drafter("ngram"), EvidenceRequest(top_k=8))
    plain, _ = generated(tiny, "none")
    source_names = PriorityDrafter(
        [half_right(plain[0].tolist(), VOCAB), asking, build_drafter("copy")]
    )
    assert source_names.evidence == EvidenceRequest(top_k=8)
    drafter = CalibratedDrafter(source_names)
    assert drafter.evidence == source_names.evidence
    assert generated(tiny, drafter)[0].tolist() == plain.tolist()
    with_evidence = [(before, evidence) for before, evidence in asking.seen if evidence]
    assert len(with_evidence) > 5
    for before, evidence in with_evidence:
        check(tiny, before, evidence)


def test_drafters_that_do_not_ask_cost_nothing(tiny, monkeypatch):
    def never(*_, **__):
        raise AssertionError("evidence that nobody asked for")

    for name in ("evidence_tensor", "evidence_of_rows"):
        monkeypatch.setattr(channel, name, never)
    monkeypatch.setattr(row.Evidence, "of", never)
    monkeypatch.setattr(type(tiny.lm_head), "register_forward_pre_hook", never)
    generated(tiny, "copy+ngram+unigram")
    scripted = ScriptedDrafter(lambda at, gamma: Draft(ids(3, 4)))  # whose observe takes none
    generated(tiny, scripted)
    assert scripted.observed
    assert not scripted.sessions[0].owner.evidence


def test_hooks_do_not_outlive_the_forward(tiny):
    generated(tiny, Asking(build_drafter("ngram"), EvidenceRequest(hidden=True)), new=5)
    assert not tiny.lm_head._forward_pre_hooks


def test_requests_are_checked():
    with pytest.raises(ValueError, match="top_k must be in 0..1024, got 2000"):
        EvidenceRequest(top_k=2000)
    with pytest.raises(ValueError, match="must have top_k >= 1 or hidden=True"):
        EvidenceRequest()
    with pytest.raises(TypeError, match="hidden must be True or False"):
        EvidenceRequest(hidden=1)
    joined = EvidenceRequest(top_k=3) | EvidenceRequest(top_k=1, hidden=True)
    assert joined == EvidenceRequest(top_k=3, hidden=True)
    assert joined | None is joined


@pytest.mark.parametrize("n", [1, 7, 97, 4096, 49152])
@pytest.mark.parametrize("k", [0, 8])
def test_the_k_largest_are_torch_s(n, k):
    torch.manual_seed(n)
    scores = torch.randn(3, 2, n)
    k = min(k, n)
    values, which = channel.top_k(scores, k)
    expected = scores.topk(k)
    assert torch.equal(values, expected.values)
    assert torch.equal(which, expected.indices)
    flat = torch.zeros(2, n)
    values, which = channel.top_k(flat, k)
    assert (values == 0).all()
    assert all(len(set(row)) == k for row in which.tolist())


def test_bfloat16_logits_give_float32_probabilities():
    torch.manual_seed(0)
    logits = torch.randn(4, 5000).bfloat16()
    request = EvidenceRequest(top_k=5)
    ((found, log_probs, hidden),) = channel.evidence_of_rows(request, [4], logits[None], None, None)
    at_once = channel.evidence_tensor(logits[None], None, request).numpy()
    ((ids_at_once, *_),) = channel.evidence_of_rows(request, [4], logits[None], None, at_once)
    assert found.tolist() == ids_at_once.tolist()
    expected = torch.log_softmax(logits.float(), -1)
    np.testing.assert_allclose(log_probs, expected.gather(1, torch.tensor(found).long()), atol=1e-6)
    np.testing.assert_allclose(log_probs, expected.topk(5).values, atol=1e-6)
    assert hidden is None


def test_a_row_s_evidence_is_cut_to_its_draft():
    draft = Draft(ids(4, 5, 6), np.array([-1, 0, 0], np.int32))
    rows = np.arange(10, dtype=np.int32)[:, None]
    evidence = Evidence.of(draft, [0, 2], 9, (rows, rows.astype(np.float32), None))
    assert evidence.tokens.tolist() == [9, 4, 5, 6]
    assert evidence.parents.tolist() == [-1, 0, 1, 1]
    assert evidence.accepted == (0, 1, 3)
    assert evidence.ids.tolist() == [[0], [1], [2], [3]]
