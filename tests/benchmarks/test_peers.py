"""Other projects' drafters: what is skipped, and SGLang's corpus as its worker uses it."""

from __future__ import annotations

from importlib.util import find_spec

import numpy as np
import pytest
from doubles import ids

from benchmarks import peers
from ngramspec.measure.replay import Earlier, ReplayPlan, compare
from ngramspec.measure.traces import Trace

TREE = {1: 0, 2: 1, 3: 0, 4: 3}  # parents of the first nodes; the others are children of the root


class Corpus:
    """Drafts 1 to 11 as the tree above, and records what it is asked."""

    def __init__(self):
        self.calls = []

    def synchronize(self):
        self.calls.append(("synchronize",))

    def batch_match_stateful(self, requests, tokens, offsets, lengths, found, mask):
        self.calls.append(("match", *requests, tokens.tolist(), [*offsets], *lengths))
        found[:] = np.arange(12)
        rows = mask.reshape(12, 12)
        for node in range(12):
            if node:
                rows[node] = rows[TREE.get(node, 0)]
            rows[node, node] = 1

    def async_insert(self, tokens, offsets):
        self.calls.append(("insert", tokens.tolist(), [*offsets]))

    def erase_match_state(self, requests):
        self.calls.append(("erase", *requests))


def test_peers_that_are_not_installed_are_skipped_with_a_hint(monkeypatch):
    monkeypatch.setattr(peers, "find_spec", lambda name: None if name == "sglang" else object())
    here, skipped = peers.installed()
    assert skipped == {"sglang tree": peers.INSTALL["sglang"]}
    assert (
        here.keys() == peers.PEERS["transformers"].keys() | peers.PEERS["arctic_inference"].keys()
    )


def test_a_step_drafts_from_sglangs_corpus_and_then_inserts_the_tail():
    corpus, text = Corpus(), np.arange(100, 130, dtype=np.int32)
    session = peers.SglangSession(corpus, 7, text[:20])
    draft = session.propose(11)
    assert draft.tokens.tolist() == [*range(1, 12)]
    assert draft.parents.tolist() == [TREE.get(node, 0) - 1 for node in range(1, 12)]
    assert session.propose(2).parents.tolist() == [-1, 0]
    assert len(session.propose(0)) == 0
    tail = text[2:20].tolist()
    step = [("synchronize",), ("match", 7, tail, [0, 18], 20), ("insert", tail, [0, 18])]
    assert corpus.calls == 3 * step
    session.extend(text[20:23])
    session.close()
    assert corpus.calls[9:] == [("insert", text[5:23].tolist(), [0, 18]), ("erase", 7)]


@pytest.mark.skipif(find_spec("sglang") is None, reason="sglang is not installed")
def test_sglang_knows_the_earlier_requests_only_if_its_corpus_is_kept(monkeypatch):
    monkeypatch.setattr(peers, "SGLANG_CAPACITY", 20_000)
    said = np.random.default_rng(0).integers(1, 5000, 100).astype(np.int32)
    traces = [Trace(name, name, ids(1, 2), said, "") for name in ("first", "again")]
    plan = ReplayPlan(np.ones(66, np.float32), 11)

    def tokens_per_call(knowledge):
        found = compare(peers.SglangDrafter, plan, traces, knowledge=knowledge)["groups"]
        return [found[name]["tokens_per_call"] for name in ("first", "again")]

    assert tokens_per_call(None) == [1, 1]
    first, again = tokens_per_call(Earlier("outputs"))
    assert first == 1
    assert again > 8
