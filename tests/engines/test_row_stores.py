"""Stores that an engine's requests share: what they add, and when it is found."""

from __future__ import annotations

import numpy as np
import pytest
from engine_rows import Engine
from native_strategies import int32 as ids

from ngramspec import Corpus, SharedStore, build_drafter
from ngramspec.engines.row_options import EngineOptions
from ngramspec.engines.rows import Rows
from ngramspec.stores import open_stores

VOCAB = 200
SAID = list(range(100, 140))  # less than what is added at once
MADE = {"namespace": "all", "max_bytes": 1 << 20}


def sharing(costs=None, *, named=False, **settings):
    """A store, and an engine whose rows share its namespace "all"."""
    store = SharedStore(1 << 20, **settings)
    drafter = build_drafter("auto", stores=[store["all"]])
    return store, Engine(Rows(drafter, 4, VOCAB, 300, costs), named=named)


def held(store):
    """What the namespace holds, -1 for the border before each document."""
    _, codes = store.ring("all").codes(0)
    return [-1 if code > VOCAB else int(code) for code in codes]


def answer(engine, prompt, said, at_once=1):
    """One request alone; its last drafts."""
    text = engine.arrive(prompt)
    for begin in range(0, len(said), at_once):
        drafts = engine.step([said[begin : begin + at_once]])
    engine.leave(text)
    return drafts


@pytest.mark.parametrize("at_once", [1, 3, 64])
def test_an_ended_answer_is_found_by_the_next_request_at_once(at_once):
    """Nobody tells the end; it is seen by the row, which is another text's now."""
    store, engine = sharing()
    answer(engine, [1, 2, 3], SAID, at_once)
    engine.arrive([4, 5, 110, 111])
    drafts = engine.step([[112]])
    assert drafts[0].tokens.tolist() == [113, 114, 115, 116]
    assert held(store) == [-1, *SAID]  # what was said, all of it, and no prompt
    engine.step([[113, 114, 115, 116, 117]])
    assert engine.rows.store_counts()["store_accepted"] == 4
    assert engine.rows.store_counts()["store_tokens"] >= len(SAID)
    assert engine.rows.stats.faults == 0


def test_an_answer_whose_row_is_gone_and_not_taken_is_found():
    store, engine = sharing()
    long, short = engine.arrive([1, 2, 3]), engine.arrive([9, 8])
    engine.step([[50], [100]])
    engine.step([[51], SAID[1:]])
    engine.leave(short)
    assert held(store) == []
    engine.step([[109, 110]])
    assert held(store) == [-1, *SAID]
    assert engine.step([[111]])[0].tokens.tolist()[:2] == [112, 113]
    assert long[-1] == 111


def test_a_text_that_was_away_goes_on_where_it_was():
    store, engine = sharing()
    paused = engine.arrive([1, 2, 3])
    other = engine.arrive([7, 8, 9])
    engine.step([[100], [60]])
    engine.leave(paused)
    engine.step([[61]])
    back = engine.arrive(paused)
    engine.step([[62], [101]])
    assert back == [1, 2, 3, 100, 101]
    assert engine.rows.stats.moved >= 1
    engine.leave(engine.slots[1])
    engine.leave(other)
    engine.arrive([5])
    engine.step([[6]])
    said = held(store)
    assert [token for token in said if token in (100, 101)] in ([100, 101], [100, 100, 101])
    assert 1 not in said
    assert 7 not in said


@pytest.mark.parametrize("live", [True, False])
def test_the_next_turn_of_a_conversation_is_a_prompt(live):
    """It begins with all of the last one's text; what the user says next is not added."""
    store, engine = sharing(live=live)
    answer(engine, [1, 2, 3], [100, 101])
    answer(engine, [1, 2, 3, 100, 101, 50, 51], [102, 103])
    answer(engine, [9], [60])
    assert engine.rows.stats.opened == 2
    engine.rows.close()
    assert held(store) == [-1, 100, 101, -1, 102, 103, -1, 60]


@pytest.mark.parametrize("between", [False, True])
@pytest.mark.parametrize("named", [False, True])
def test_of_a_conversation_s_next_turn_only_what_is_new_is_added(between, named):
    """With ``write="all"``, whether the turn continues in the same row or after other requests."""
    store, engine = sharing(named=named, namespace_bytes=1 << 20, write="all")
    text, added = list(range(60)), []
    for turn in range(4):
        before = store["all"].statistics().added
        row = engine.arrive(text)
        for token in range(100 + 10 * turn, 104 + 10 * turn):
            engine.step([[token]])
        name = engine.leave(row)
        if named:
            engine.rows.finish(name)
        other = 1 if between else 0
        if between:  # another conversation in the same slot
            short = engine.arrive([150 + turn])
            engine.step([[160 + turn]])
            engine.rows.finish(engine.leave(short))
        engine.step([])
        added.append(store["all"].statistics().added - before - 2 * other)
        text = [*row, 170 + turn, 180 + turn]
    assert added[0] == 64
    # What lies between two parts of the conversation is overlapped by at most 32 tokens.
    assert all(6 <= each <= 6 + 32 for each in added[1:])
    (kept,) = [each for each in store.opened("all")[1]._ends if each[0] > 60]
    assert kept[0] == len(row)


def test_a_paused_row_that_goes_on_keeps_one_conversation():
    store, engine = sharing(namespace_bytes=1 << 20, write="all")
    paused = engine.arrive(list(range(70)))
    engine.step([[100]])
    engine.leave(paused)
    other = engine.arrive([190])
    engine.step([[191]])
    assert {length for length, _ in store.opened("all")[1]._ends} == {71}
    engine.leave(other)
    engine.arrive(paused)
    engine.step([[101]])
    engine.leave(engine.slots[0])
    engine.step([])
    assert {length for length, _ in store.opened("all")[1]._ends} == {72, 2}


def test_ids_outside_of_the_vocabulary_do_not_move_the_prompt_s_end():
    store, engine = sharing()
    answer(engine, [1, VOCAB + 7], [VOCAB + 3, 100], at_once=2)
    answer(engine, [4], [5])
    assert held(store) == [-1, 100]


def test_rows_without_a_draft_add_what_they_say():
    """As long as nothing pays no session begins."""

    class Never:
        def curve(self, rows):
            return None

        def record_time(self, rows, drafted, seconds):
            pass

    store, engine = sharing(Never())
    answer(engine, [1, 2, 3], SAID)
    answer(engine, [4], [5])
    assert engine.rows.stats.opened == 0
    assert held(store) == [-1, *SAID]


def test_requests_that_end_with_a_notice_add_all():
    store, engine = sharing(named=True, live=False)
    text = engine.arrive([1, 2, 3])
    engine.step([SAID])
    assert held(store) == []
    engine.rows.finish(engine.leave(text))
    assert held(store) == [-1, *SAID]


def test_settings_make_a_store_and_paths_open_corpora(tmp_path):
    path = str(tmp_path / "known.ngc")
    Corpus.build([np.arange(20, 40, dtype=np.int32)], path)
    with pytest.raises(TypeError, match="options: costs of 8 rows must be a table, got 1.2"):
        EngineOptions.read({"costs": {"8": 1.2}}, "options")
    rows = EngineOptions.read({"stores": [path, MADE], "costs": "none"}, "options").rows(
        4, vocab=VOCAB, max_len=300, device="cpu", dtype="float32"
    )
    engine = Engine(rows)
    answer(engine, [1, 2, 3], SAID)
    engine.arrive([1, 23, 24])
    assert engine.step([[25]])[0].tokens.tolist() == [26, 27, 28, 29]
    engine.leave(engine.slots[0])
    engine.arrive([1, 110, 111])
    assert engine.step([[112]])[0].tokens.tolist() == [113, 114, 115, 116]


def test_a_saved_store_is_begun_with(tmp_path):
    path = str(tmp_path / "said.ngs")
    store = SharedStore(1 << 20)
    store["all"].add(ids(SAID))
    store.save(path)
    given = [{"path": path, "namespace": "all", "max_bytes": 1 << 19}]
    (namespace,) = open_stores(given)
    assert namespace.statistics().tokens == len(SAID)
    assert namespace.store.max_bytes == 1 << 19


def test_nothing_is_shared_unless_asked():
    rows = EngineOptions().rows(4, vocab=VOCAB, max_len=300, device="cpu", dtype="float32")
    assert rows.drafter.stores == ()
    assert rows.store_counts() == {}
