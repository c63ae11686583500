"""The value engine with a store equals its twin, and drafts from it."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from native_strategies import CHUNKS, QUICK, int32
from value_play import costs, ids, noisy_repetition, same

from ngramspec._native.store_ring import StoreRing, StoreStream
from ngramspec._native.store_source import StorePair
from ngramspec._native.value import Calibration, ValueEngine
from ngramspec.stores import Corpus
from tests.twins.calibration import Calibration as CalibrationTwin
from tests.twins.store_corpus import CorpusIndex as CorpusTwin
from tests.twins.store_ring import StoreRing as RingTwin
from tests.twins.store_ring import StoreStream as StreamTwin
from tests.twins.value import ValueEngine as ValueTwin

pytest.importorskip("pydivsufsort")
OPTIONS = (True, True, True, 2)


@pytest.fixture
def engines(tmp_path):
    """Makes a native engine and its twin over documents."""

    def make(documents, options=OPTIONS):
        corpus = Corpus.build([int32(each) for each in documents], tmp_path / "c.ngc")
        native = ValueEngine(Calibration(), *options, corpus.index)
        return native, ValueTwin(CalibrationTwin(), *options, CorpusTwin(documents))

    return make


def relatives(seed, vocab=12):
    """A text, and documents that resemble parts of it."""
    text = noisy_repetition(seed, 240, vocab)
    rng = np.random.default_rng(seed)
    documents = []
    for begin in range(0, 240, 40):
        document = text[begin : begin + 60].copy()
        spoilt = rng.random(len(document)) < 0.1
        document[spoilt] = rng.integers(0, vocab, int(spoilt.sum()))
        documents.append(document.tolist())
    return text, documents


@pytest.mark.parametrize("slope", [None, 0.0, 0.02])
@pytest.mark.parametrize(("seed", "vocab"), [(0, 12), (1, 3), (2, 150)])
def test_native_equals_twin(engines, seed, vocab, slope):
    text, documents = relatives(seed, vocab)
    native, twin = engines(documents)
    for begin, size in zip(range(0, 240, 3), [3] * 80, strict=True):
        if begin % 2:
            cost = None if slope is None else costs(12, slope)
            same(native.draft(12, cost), twin.draft(12, cost))
        else:
            cost = None if slope is None else costs(24, slope)
            same(native.draft_tree(24, cost), twin.draft_tree(24, cost))
        native.extend(text[begin : begin + size])
        twin.extend(text[begin : begin + size])
        native.check_integrity()
    assert native.store_counts() == twin.store_counts()
    assert native.store_counts()[1] > 5


@settings(max_examples=40, derandomize=True)
@given(
    documents=st.lists(st.lists(st.integers(0, 3), max_size=90), min_size=1, max_size=4).filter(
        any
    ),
    chunks=st.lists(st.lists(st.integers(0, 4), max_size=70), max_size=8),
    asked=st.lists(st.tuples(st.integers(0, 70), st.booleans()), min_size=8, max_size=8),
    options=st.sampled_from([OPTIONS, (False, False, False, 2), (False, True, False, 2)]),
)
def test_native_equals_twin_by_turns(tmp_path_factory, documents, chunks, asked, options):
    corpus = Corpus.build([int32(each) for each in documents], tmp_path_factory.mktemp("c") / "c")
    native = ValueEngine(Calibration(), *options, corpus.index)
    twin = ValueTwin(CalibrationTwin(), *options, CorpusTwin(documents))
    for chunk, (gamma, tree) in zip(chunks, asked, strict=False):
        if tree:
            same(native.draft_tree(gamma), twin.draft_tree(gamma))
        else:
            same(native.draft(gamma), twin.draft(gamma))
        native.extend(ids(chunk))
        twin.extend(ids(chunk))
        native.check_integrity()


def test_a_document_is_copied_to_its_end_and_no_further(engines):
    document = list(range(100, 180))
    native, _ = engines([document, [5, 6, 7]])
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
    assert native.store_counts() == (1, 1)  # reading along needs no other look-up


def between(seed, size=2400):
    """Tokens that occur in no other document."""
    return (np.random.default_rng(seed).permutation(size) + 10_000 * (seed + 1)).tolist()


def copy_from(part, at, made):
    """Have engines read along in a part of their store from ``at`` on, and then leave it."""
    for engine in made:
        engine.extend(ids(part[at : at + 8]))
        engine.draft(8)
        engine.extend(ids(part[at + 8 : at + 50]))
        engine.extend(ids([5, 7, 8]))
    return made


@pytest.mark.parametrize("copied", [0, 1])
def test_of_equal_matches_that_in_the_part_copied_from_is_drafted(engines, copied):
    """The place nearest to the last copy, and not the other, 2048 positions and more away."""
    documents = [[*between(0), 7, 8, 100, 101], [*between(1), 7, 8, 200, 201]]
    native, twin = copy_from(documents[copied], 2000, engines(documents))
    same(native.draft(2), twin.draft(2))
    assert native.draft(1)[0].tolist() == [100 + 100 * copied]


def test_of_equal_matches_the_one_near_the_last_copy_is_more_probable(engines):
    """In one region: what is right in it does not tell them apart."""
    parts = [between(0, 300), between(1, 300)]
    document = [*parts[0], 7, 8, 100, 101, *parts[1], 7, 8, 200, 201]
    found = []
    for part in parts:
        native, twin = copy_from(part, 200, engines([document]))
        tokens, _, confidence, _ = native.draft_tree(4)
        same(native.draft_tree(4), twin.draft_tree(4))
        found.append(dict(zip(tokens.tolist(), confidence.tolist(), strict=True)))
    near_first, near_second = found
    assert near_first[100] > 1.1 * near_second[100]
    assert near_second[200] > 1.1 * near_first[200]


def test_look_ups_become_rare_where_they_never_help(engines):
    rng = np.random.default_rng(0)
    native, _ = engines([rng.permutation(40).tolist() for _ in range(30)])
    text = rng.permutation(2000) % 40
    for token in text:
        native.draft(4)
        native.extend(ids([int(token) + 1000]))  # unknown to the store
    look_ups, right = native.store_counts()
    assert right == 0
    assert 16 + 2000 // 64 < look_ups < 60


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


class PairTwin:
    """Two stores as one: the places of both, the longest first, the first store's before."""

    SECOND = 1 << 52

    def __init__(self, first, second):
        self.first, self.second = first, second

    def of(self, at):
        return (self.second, at - self.SECOND) if at >= self.SECOND else (self.first, at)

    def look(self, context, most):
        found = self.first.look(context, most)
        found += [(at + self.SECOND, n) for at, n in self.second.look(context, most)]
        return sorted(found, key=lambda each: -each[1])[:most]

    def token(self, at):
        source, at = self.of(at)
        return source.token(at)

    def earlier(self, at):
        source, at = self.of(at)
        return source.earlier(at)


def corpus_and_stream(tmp_path, documents, said):
    """A corpus and what an earlier request said, as one source: native and twin."""
    corpus = Corpus.build([int32(each) for each in documents], tmp_path / "c.ngc")
    streams = []
    for ring, stream, tokens in (
        (StoreRing(1000), StoreStream, int32(said)),
        (RingTwin(1000), StreamTwin, said),
    ):
        writer = stream(ring)
        writer.append(tokens)
        writer.finish()
        streams.append(stream(ring))
    native, twin = streams
    return StorePair(native, corpus.index), PairTwin(twin, CorpusTwin(documents))


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_native_equals_twin_with_a_corpus_and_earlier_requests(tmp_path, seed):
    text, documents = relatives(seed)
    said = [token for document in documents[::2] for token in document]
    source, source_twin = corpus_and_stream(tmp_path, documents[1::2], said)
    native = ValueEngine(Calibration(), *OPTIONS, source)
    twin = ValueTwin(CalibrationTwin(), *OPTIONS, source_twin)
    for begin in range(0, 240, 3):
        ask = "draft" if begin % 2 else "draft_tree"
        same(getattr(native, ask)(12), getattr(twin, ask)(12))
        native.extend(text[begin : begin + 3])
        twin.extend(text[begin : begin + 3])
    kinds = {each[1] for each in twin.calibration.cells if each[0] == "store"}
    assert kinds == {False, True}


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


def test_a_store_that_knows_nothing_changes_nothing(engines):
    text = noisy_repetition(3, 240)
    with_store, _ = engines([[5000, 5001]])
    without = ValueEngine(Calibration(), *OPTIONS)
    for begin in range(0, 240, 4):
        same(with_store.draft_tree(16), without.draft_tree(16))
        for engine in (with_store, without):
            engine.extend(text[begin : begin + 4])


def test_rehearsing_is_drafting_along_known_text(engines):
    """The same text, calibration and drafts as of a generation that says those tokens."""
    text, documents = relatives(4)
    rehearsed, twin = engines(documents)
    generated, _ = engines(documents)
    rehearsed.rehearse(text)
    twin.rehearse(text)
    at = 0
    while at < len(text):
        drafted = generated.draft(min(16, len(text) - at - 1))[0]
        differs = np.flatnonzero(drafted != text[at : at + len(drafted)])
        n = 1 + int(differs[0] if len(differs) else len(drafted))
        generated.extend(text[at : at + n])
        at += n
    learned = rehearsed.calibration.to_array()
    assert (learned == generated.calibration.to_array()).all()
    assert not (learned == Calibration().to_array()).all()
    assert generated.store_counts()[0] > 16
    assert rehearsed.store_counts() == (0, 0)
    same(rehearsed.draft_tree(24), twin.draft_tree(24))
    same(rehearsed.draft(0), twin.draft(0))


def test_a_rehearsal_in_vain_does_not_make_look_ups_rare(engines):
    native, _ = engines([list(range(100, 180)), [5, 6, 7]])
    native.rehearse(np.arange(1000, 1400, dtype=np.int32))  # unknown to the store
    native.extend(ids(range(100, 110)))
    assert native.draft(4)[0].tolist() == [110, 111, 112, 113]


class StoreMachine(RuleBasedStateMachine):
    """Chains and trees by turns, texts of the store's and others: native and twin agree."""

    @initialize(documents=st.lists(CHUNKS.filter(bool), min_size=1, max_size=4))
    def begin(self, documents):
        corpus = Corpus.build([int32(each) for each in documents], FOLDERS.mktemp("m") / "c.ngc")
        self.documents = documents
        self.native = ValueEngine(Calibration(), *OPTIONS, corpus.index)
        self.twin = ValueTwin(CalibrationTwin(), *OPTIONS, CorpusTwin(documents))

    def commit(self, tokens):
        self.native.extend(ids(tokens))
        self.twin.extend(tokens)

    @rule(tokens=CHUNKS)
    def extend(self, tokens):
        self.commit(tokens)

    @rule(tokens=CHUNKS)
    def rehearse(self, tokens):
        self.native.rehearse(ids(tokens))
        self.twin.rehearse(tokens)

    @rule(document=st.integers(0, 3), start=st.integers(0, 40), n=st.integers(1, 12))
    def come_back(self, document, start, n):
        self.commit(self.documents[document % len(self.documents)][start:][:n])

    @rule(gamma=st.integers(0, 20), tree=st.booleans())
    def draft(self, gamma, tree):
        if tree:
            same(self.native.draft_tree(gamma), self.twin.draft_tree(gamma))
        else:
            same(self.native.draft(gamma), self.twin.draft(gamma))

    @invariant()
    def intact(self):
        self.native.check_integrity()
        assert self.native.store_counts() == self.twin.store_counts()


@pytest.fixture(autouse=True)
def folders(tmp_path_factory):
    global FOLDERS
    FOLDERS = tmp_path_factory


TestStoreMachine = StoreMachine.TestCase
TestStoreMachine.settings = settings(QUICK, max_examples=20, stateful_step_count=15)
