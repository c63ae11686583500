"""The value engine drafts from a store."""

from __future__ import annotations

import numpy as np
import pytest
from engine_pair import Pair, ids, noisy_repetition, relatives
from native_strategies import int32

from ngramspec._native.store_ring import StoreRing, StoreStream
from ngramspec._native.store_source import StorePair
from ngramspec._native.value import Calibration, ValueEngine
from ngramspec.stores import Corpus

pytest.importorskip("pydivsufsort")


@pytest.fixture(autouse=True)
def folders(tmp_path_factory):
    Pair.folders = tmp_path_factory


def test_a_document_is_copied_to_its_end_and_no_further():
    document = list(range(100, 180))
    native = Pair(documents=[document, [5, 6, 7]]).native
    native.extend(ids(document[:10]))
    tokens, confidence, source = native.draft(64)
    assert len(tokens) > 16
    assert tokens.tolist() == document[10 : 10 + len(tokens)]
    assert set(source.tolist()) == {4}
    assert (confidence > 0.5).all()
    native.extend(ids(document[10:74]))
    tokens, _, source = native.draft(64)
    assert tokens[:6].tolist() == document[74:]
    assert set(source[:6].tolist()) == {4}
    assert not {5, 6, 7} & set(tokens.tolist())  # of the next document


def test_of_equal_matches_the_one_near_the_last_copy_is_more_probable():
    """In one region: what is right in it does not tell them apart."""
    parts = np.random.default_rng(0).permutation(600).reshape(2, 300) + 1000
    document = [*parts[0], 7, 8, 100, 101, *parts[1], 7, 8, 200, 201]
    found = []
    for part in parts:
        pair = Pair(documents=[document])
        pair.extend(part[200:208])
        pair.draft(8)
        pair.extend([*part[208:250], 5, 7, 8])  # it reads along, and then leaves it
        tokens, _, confidence, _ = pair.draft(4, tree=True)
        found.append(dict(zip(tokens.tolist(), confidence.tolist(), strict=True)))
    near_first, near_second = found
    assert near_first[100] > 1.1 * near_second[100]
    assert near_second[200] > 1.1 * near_first[200]


def test_two_stores_are_one_source(tmp_path):
    first = Corpus.build([int32([1, 2, 3, 4, 5, 6])], tmp_path / "a.ngc")
    second = Corpus.build([int32([9, 3, 4, 7, 8]), int32([30, 31, 32])], tmp_path / "b.ngc")
    third = Corpus.build([int32([40, 41, 42, 43])], tmp_path / "c.ngc")
    source = StorePair(first.index, StorePair(second.index, third.index))
    for context, expected in (
        ([2, 3, 4], [5, 6]),
        ([9, 3, 4], [7, 8]),
        ([30, 31], [32]),
        ([40, 41], [42, 43]),
    ):
        engine = ValueEngine(Calibration(), True, False, False, 2, source)
        engine.extend(ids(context))
        assert engine.draft(2)[0].tolist()[: len(expected)] == expected
    engine = ValueEngine(Calibration(), True, False, False, 2, source)
    engine.extend(ids([3, 4]))  # both know it
    assert {5, 7} <= set(engine.draft_tree(8)[0].tolist())


def test_what_earlier_requests_are_worth_says_nothing_of_a_corpus(tmp_path):
    """Where what earlier requests said was always wrong, a corpus is believed as before."""
    document = list(range(100, 180))
    corpus = Corpus.build([int32(document)], tmp_path / "c.ngc")
    ring = StoreRing(1000)
    writer = StoreStream(ring)
    writer.append(int32(document))
    writer.finish()
    calibration = Calibration()

    def first(source):
        engine = ValueEngine(calibration, False, False, False, 2, source)
        engine.extend(ids(document[:2]))
        confidence = float(engine.draft(8)[1][0])
        engine.extend(ids([5]))
        return confidence

    before = first(corpus.index)
    assert first(StoreStream(ring)) > 0.3
    for _ in range(30):
        first(StoreStream(ring))
    assert first(StoreStream(ring)) < 0.2
    assert first(corpus.index) > before - 0.15


def test_a_store_that_knows_nothing_changes_nothing():
    text = noisy_repetition(3, 240)
    with_store, without = Pair(documents=[[5000, 5001]]), Pair()
    for begin in range(0, 240, 4):
        ours, theirs = (each.draft(16, tree=True) for each in (with_store, without))
        assert [each.tolist() for each in ours] == [each.tolist() for each in theirs]
        for engine in (with_store, without):
            engine.extend(text[begin : begin + 4])


def test_rehearsing_is_drafting_along_known_text():
    """The same text, calibration and drafts as of a generation that says those tokens."""
    text, documents = relatives(4)
    pair, generated = (Pair(documents=documents) for _ in range(2))
    pair.rehearse(text)
    at = 0
    while at < len(text):
        drafted = generated.draft(min(16, len(text) - at - 1))[0]
        differs = np.flatnonzero(drafted != text[at : at + len(drafted)])
        n = 1 + int(differs[0] if len(differs) else len(drafted))
        generated.extend(text[at : at + n])
        at += n
    learned = pair.native.calibration.to_array()
    assert (learned == generated.native.calibration.to_array()).all()
    assert not (learned == Calibration().to_array()).all()
    pair.draft(24, tree=True)
    pair.draft(0)


def test_a_rehearsal_in_vain_does_not_make_look_ups_rare():
    native = Pair(documents=[list(range(100, 180)), [5, 6, 7]]).native
    native.rehearse(np.arange(1000, 1400, dtype=np.int32))  # unknown to the store
    native.extend(ids(range(100, 110)))
    assert native.draft(4)[0].tolist() == [110, 111, 112, 113]
