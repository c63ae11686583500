"""The rows of an engine: found again wherever they went, bounded, and never a fault of theirs."""

from __future__ import annotations

import logging

import numpy as np
import pytest
from engine_rows import FAULTY, VOCAB, K, Recorder, recorded
from native_strategies import int32 as ids

from ngramspec import build_drafter
from ngramspec._native import rows as row_text
from ngramspec.engines import rows
from ngramspec.engines.row_options import EngineOptions
from ngramspec.engines.rows import Rows, RowState


@pytest.mark.parametrize("named", [False, True])
def test_every_request_has_one_session_wherever_its_row_moves(named):
    """Eight rows, forty requests that end by turns; rows slide, and none is read twice."""
    rng = np.random.default_rng(0)
    drafter, engine = recorded(named=named)
    waiting = [rng.integers(0, VOCAB, rng.integers(20, 40)).tolist() for _ in range(40)]
    ends: dict[int, int] = {}
    while waiting or engine.slots:
        while waiting and len(engine.slots) < 8:
            text = engine.arrive(waiting.pop())
            ends[id(text)] = len(text) + int(rng.integers(3, 30))
        engine.step([rng.integers(0, VOCAB, rng.integers(1, 4)).tolist() for _ in engine.slots])
        for text in [each for each in engine.slots if len(each) >= ends[id(each)]]:
            engine.leave(text)
    stats = engine.rows.stats
    assert (drafter.started, stats.opened, stats.faults) == (40, 40, 0)
    assert named or stats.moved > 10


def test_what_was_accepted_is_counted_from_what_came():
    drafter, engine = recorded([[4, 4]])
    engine.step([[4]])  # drafts 0 1 2
    engine.step([[0, 1, 4]])
    engine.step([[0, 1, 2, 3]])
    engine.step([[0, 1]])  # the engine verified one token of it, and this is the bonus token
    engine.step([[4]])
    found = [((0, 1), None), ((0, 1, 2), None), ((0, 1), 2), ((), None)]
    assert drafter.observed == [(3, *each) for each in found]
    assert engine.rows.stats.accepted == 7


def test_sessions_are_bounded_in_bytes():
    rows = Rows(Recorder(), K, VOCAB, 1 << 20, max_bytes=60_000)
    rng = np.random.default_rng(0)
    for _ in range(200):
        text = rng.integers(0, VOCAB, int(rng.integers(1, 400))).astype(np.int32)
        rows.step([RowState(None, text, len(text), [int(text[-1])])])
        assert rows.bytes <= 60_000
    assert 1 < len(rows) < 100
    huge = np.ones(5000, np.int32)
    assert len(rows.step([RowState(None, huge, 5000, [1])])[0]) == 0
    assert rows.bytes <= 60_000


@pytest.mark.parametrize("length", [100, row_text.WHOLE + 5000])
def test_a_text_of_equal_length_in_the_same_row_is_another_text(length):
    """Its first, its last, and in time any token tells them apart."""
    for other in (0, 1, length - 1, length - 30):
        drafter = Recorder()
        rows = Rows(drafter, K, VOCAB, 1 << 20)
        text = np.arange(length + 1, dtype=np.int32) % VOCAB
        rows.step([RowState(None, text, length, [int(text[length - 1])])])
        text = text.copy()
        text[other] = (text[other] + 1) % VOCAB
        rows.step([RowState(None, text, length + 1, [int(text[length])])])
        assert drafter.asked[-1] == tuple(text.tolist())
        assert drafter.started == 2


def test_no_step_hashes_the_text(monkeypatch):
    """Only rows that came or moved are looked for by their hash."""
    hashed = []
    known = rows.text_hash
    monkeypatch.setattr(rows, "text_hash", lambda tokens, n: hashed.append(n) or known(tokens, n))
    rng = np.random.default_rng(1)
    texts = [rng.integers(0, VOCAB, 200).tolist() for _ in range(3)]
    _, engine = recorded(texts)
    engine.step([[1]] * 3)
    assert hashed == [200] * 3
    for _ in range(9):
        engine.step([[1]] * 3)
    engine.leave(engine.slots[0])
    engine.step([[1]] * 2)
    assert hashed[3:] == [210]
    assert engine.rows.stats.moved == 1


def test_sessions_are_bounded_in_number_and_come_back():
    drafter = Recorder()
    rows = Rows(drafter, K, VOCAB, 300, max_sessions=4)
    texts = [ids([at % VOCAB, at // VOCAB % VOCAB, at // 25, 1, 2, 3]) for at in range(100)]
    for text in texts:
        rows.step([RowState(None, text, 5, [2])])
        assert drafter.open <= 4
        assert len(rows) <= 4
    rows.step([RowState(None, texts[0], 6, [3])])
    assert drafter.asked[-1] == tuple(texts[0].tolist())
    assert rows.stats.dropped == 97
    rows.close()
    assert drafter.open == len(rows) == rows.bytes == 0


def test_rows_beyond_the_bound_go_undrafted_and_the_others_keep_theirs():
    drafter, engine = recorded([[at] * 6 for at in range(5)] * 2, max_sessions=4)
    for _ in range(20):
        drafts = engine.step([[1]] * 10)
        assert [len(each) > 0 for each in drafts] == [True] * 4 + [False] * 6
    assert drafter.started == 4
    assert engine.rows.stats.crowded == 120


def test_an_id_that_is_told_to_have_ended_is_forgotten():
    drafter, engine = recorded([[1], [2]], named=True)
    engine.step([[1], [1]])
    engine.rows.finish(engine.leave(engine.slots[0]))
    engine.rows.finish("unknown")
    assert drafter.open == len(engine.rows) == 1


def test_drafts_leave_room_for_the_token_behind_them():
    _, engine = recorded([[1] * 4], max_len=10)
    assert [len(engine.step([[1]])[0]) for _ in range(6)] == [3, 3, 2, 1, 0, 0]


@pytest.mark.parametrize("what", FAULTY)
def test_a_fault_costs_its_row_a_draft_and_is_logged_once(what, caplog):
    drafter, engine = recorded([[1], [2]], [what] * 100)
    with caplog.at_level(logging.WARNING, "ngramspec"):
        for _ in range(8):
            drafts = engine.step([[1], [1]])
            assert [len(each) for each in drafts] == [0, 0]
    assert len(caplog.records) == 1
    assert engine.rows.stats.faults == 8  # four in each text; then it is asked no more
    assert drafter.open == engine.rows._open_sessions
    drafter.script.clear()
    engine.arrive([3])
    assert [len(each) for each in engine.step([[1]] * 3)] == [0, 0, K]


def test_a_drafter_s_own_calibration_stays():
    drafter = build_drafter("auto", calibration="request")
    assert Rows(drafter, K, VOCAB, 300).drafter.by_request


def test_drafters_that_run_a_model_are_refused():
    with pytest.raises(ValueError, match=r"o: drafter must run no model in an engine, got 'mtp'"):
        EngineOptions.read({"drafter": "mtp"}, "o")


def test_garbage_instead_of_rows_raises_nothing():
    rows = Rows(Recorder(), K, VOCAB, 300)
    good = RowState(None, ids([1, 2]), 2, [2])
    for bad in (
        RowState(None, None, 2, [2]),
        RowState([], ids([1]), 1, [1]),
        None,
        RowState(None, ids([]), 5, [1]),
    ):
        assert [len(each) for each in rows.step([bad, good])] in ([0, 0], [0, K], [K, K])
    assert len(rows.step([good])[0]) == K


def test_ids_outside_the_vocabulary_are_kept_from_sessions():
    drafter = Recorder()
    rows = Rows(drafter, K, VOCAB, 300)
    text = ids([1, 99, -1, 2, 77, 3])
    rows.step([RowState(None, text, 4, [2])])
    rows.step([RowState(None, text, 6, [77, 3])])
    assert drafter.asked == [(1, 2), (1, 2, 3)]
    assert drafter.started == 1
