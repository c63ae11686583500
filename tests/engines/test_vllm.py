"""vLLM's proposer without vLLM: what it reads, refuses, and does with what it is told."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
from tiny_tokenizers import letters

import ngramspec
from ngramspec.costs.engine import GivenEngineCosts, LearnedEngineCosts
from ngramspec.engines import vllm
from ngramspec.engines.row_options import EngineOptions
from ngramspec.engines.vllm import NgramspecProposer

VOCAB, LENGTH = 50, 64


def config(options=None, k=4, device="cpu", vocab=VOCAB):
    return SimpleNamespace(
        model_config=SimpleNamespace(
            max_model_len=LENGTH, dtype="torch.float32", get_vocab_size=lambda: vocab
        ),
        speculative_config=SimpleNamespace(num_speculative_tokens=k),
        device_config=SimpleNamespace(device_type=device),
        additional_config={} if options is None else {"ngramspec": options},
    )


def batch(texts):
    """As vLLM holds them: stale columns after each text, stale rows after the last."""
    tokens = np.full((8, LENGTH), 7, np.int32)
    lengths = np.full(8, 3, np.int32)
    for at, text in enumerate(texts):
        tokens[at, : len(text)] = text
        lengths[at] = len(text)
    return lengths, tokens


def test_rows_of_a_batch_are_drafted_for():
    proposer = NgramspecProposer(config({"costs": "none"}))
    proposer.load_model("the target")
    texts = [[5, 6, 7, 8, 5, 6], [1, 2, 3], [9, 10, 11, 12, 9]]
    drafts = proposer.propose([[6], [], [12, 9]], *batch(texts), slot_mappings={})
    assert drafts[0] == [7, 8, 5, 6]
    assert drafts[1] == []
    assert drafts[2][:2] == [10, 11]
    assert all(type(token) is int for draft in drafts for token in draft)


def test_corpora_of_another_tokenizer_are_refused(tmp_path, monkeypatch):
    path = str(tmp_path / "known.ngc")
    ngramspec.Corpus.build(["aab"], path, tokenizer=letters())
    other = letters()
    other.add_tokens(["new"])
    monkeypatch.setattr(vllm, "tokenizer_of", lambda model: letters())
    NgramspecProposer(config({"stores": [path]}, vocab=200))
    monkeypatch.setattr(vllm, "tokenizer_of", lambda model: other)
    with pytest.raises(ValueError, match="was built with another tokenizer: its fingerprint"):
        NgramspecProposer(config({"stores": [path]}, vocab=200))


def test_corpora_with_ids_outside_are_refused(tmp_path, caplog):
    path = str(tmp_path / "known.ngc")
    ngramspec.Corpus.build([np.array([1, VOCAB], np.int32)], path)
    with pytest.raises(ValueError, match=f"token id {VOCAB}, the vocabulary has {VOCAB}"):
        NgramspecProposer(config({"stores": [path]}))
    assert "not checked against the model's tokenizer" in caplog.text  # it names none


def test_options_are_read():
    given = {"drafter": "copy", "policy": "priority", "max_sessions": 7, "max_mib": 2}
    proposer = NgramspecProposer(config(given | {"costs": {"1": {"8": 1.5}}, "log_every": 2.5}))
    assert proposer.options == EngineOptions(
        "copy", "priority", {"1": {"8": 1.5}}, max_sessions=7, max_mib=2, log_every=2.5
    )
    assert isinstance(proposer.rows.costs, GivenEngineCosts)
    assert isinstance(NgramspecProposer(config()).rows.costs, LearnedEngineCosts)
    assert NgramspecProposer(config({"costs": "none"})).rows.costs is None


def test_what_is_assumed_depends_on_the_device():
    on_cpu, on_gpu = (NgramspecProposer(config(device=d)).rows.costs for d in ("cpu", "cuda"))
    for _ in range(500):  # steps without a draft
        on_cpu.record_time(1, 0, 0.1)
        on_gpu.record_time(1, 0, 0.1)
    assert on_cpu.curve(1)[4] > 1.1
    assert on_gpu.curve(1)[4] < 1.05


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"slope": 1}, "--additional-config ngramspec: no option slope; known: drafter, policy,"),
        ("auto", "must be a dict of drafter, policy"),
        ({"drafter": "copi"}, "'copi' is no drafter's name; known: auto, copy"),
        ({"drafter": 3}, "drafter must be a string, got 3"),
        ({"policy": "best"}, "policy must be 'value' or 'priority', got 'best'"),
        ({"costs": "free"}, "costs must be 'learned', 'none' or a table, got 'free'"),
        ({"costs": {"1": {"8": -1}}}, "its cost > 0 and finite, got 8: -1.0"),
        ({"costs": {"one": {"8": 1}}}, "invalid literal"),
        ({"max_sessions": 0}, "max_sessions must be >= 1, got 0"),
        ({"max_mib": 1.5}, "max_mib must be an integer, got 1.5"),
        ({"log_every": -1}, "log_every must be a number >= 0, got -1"),
        ({"log_every": float("nan")}, "log_every must be a number >= 0, got nan"),
    ],
)
def test_wrong_options_are_refused_at_the_start(options, message):
    with pytest.raises((TypeError, ValueError), match=message):
        NgramspecProposer(config(options))


def test_only_the_first_rank_drafts(monkeypatch):
    monkeypatch.setattr(vllm, "tensor_parallel_rank", lambda: 1)
    proposer = NgramspecProposer(config({"costs": "none"}))
    for _ in range(3):
        assert proposer.propose([[6]], *batch([[5, 6, 7, 8, 5, 6]])) == [[]]
    assert proposer.rows.stats.calls == 0
    assert len(proposer.rows) == 0


def test_garbage_raises_nothing():
    proposer = NgramspecProposer(config({"costs": "none"}))
    lengths, tokens = batch([[5, 6, 7, 8, 5, 6]] * 2)
    assert proposer.propose([[6], [6]], None, tokens) == [[], []]
    assert proposer.propose([[6], None], lengths, tokens) == [[], []]
    assert proposer.rows.stats.faults == 2
    assert proposer.propose([[6], [6]], lengths, tokens) == [[7, 8, 5, 6]] * 2


def test_counts_are_logged_now_and_then(caplog, monkeypatch):
    now = [100.0]
    monkeypatch.setattr(vllm.time, "monotonic", lambda: now[0])
    proposer = NgramspecProposer(config({"log_every": 10}))
    with caplog.at_level("INFO", "vllm.ngramspec"):
        for _ in range(30):
            now[0] += 1
            proposer.propose([[6]], *batch([[5, 6, 7, 8, 5, 6]]))
    assert len(caplog.records) == 2
    assert '"calls": 11' in caplog.messages[0]
