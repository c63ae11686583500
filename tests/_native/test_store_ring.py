"""The ring of a shared store equals its twin, and so does a value engine that drafts from it."""

from __future__ import annotations

import numpy as np
import pytest
from engine_pair import Pair, noisy_repetition
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from native_strategies import CHUNKS, QUICK, int32, salted

from ngramspec._native import common
from ngramspec._native.store_ring import StoreRing, StoreStream
from ngramspec._native.store_source import StorePair
from ngramspec._native.value import Calibration, StorePrior, ValueEngine
from tests.twins import store_ring as twin_module
from tests.twins.calibration import Calibration as CalibrationTwin
from tests.twins.reader import StorePrior as StorePriorTwin
from tests.twins.store_ring import StoreRing as RingTwin
from tests.twins.store_ring import StoreStream as StreamTwin

STREAMS = st.integers(0, 2)
PROMPTS = st.builds(lambda n, rest: [7] * n + rest, st.sampled_from([0, 8, 16, 40]), CHUNKS)
OPTIONS = (True, True, True, 2)


def assert_equal(stream, twin, context):
    found = stream.find(int32(context))
    assert found == [place[:2] for place in twin.look(context, 32)]
    assert stream.find(int32(context), 3) == [place[:2] for place in twin.look(context, 3)]
    for at, _ in found[:3]:
        after = []
        while len(after) < 9 and twin.token(at + len(after)) is not None:
            after.append(twin.token(at + len(after)))
        assert stream.tokens_at(at, 9).tolist() == after


class RingMachine(RuleBasedStateMachine):
    """Streams add by turns, end, and look for what others said; the text is cleared now and then.

    No chain is longer than the native one follows: the rings are small.
    """

    @initialize(capacity=st.sampled_from([16, 17, 40, 150, 180]), limit=st.sampled_from([0, 9]))
    def begin(self, capacity, limit):
        self.ring, self.ring_twin = StoreRing(capacity), RingTwin(capacity)
        self.limit = limit
        self.streams = [self.new() for _ in range(3)]

    def new(self):
        return StoreStream(self.ring, self.limit), StreamTwin(self.ring_twin, self.limit)

    @rule(which=STREAMS, prompt=PROMPTS)
    def begin_with_a_prompt(self, which, prompt):
        native, twin = self.streams[which]
        native.begin(int32(prompt))
        twin.begin(prompt)

    @rule(which=STREAMS, tokens=CHUNKS, times=st.integers(1, 3))
    def append(self, which, tokens, times):
        native, twin = self.streams[which]
        native.append(int32(tokens * times))
        twin.append(tokens * times)

    @rule(which=STREAMS, documents=st.lists(CHUNKS, max_size=4), times=st.integers(1, 3))
    def append_documents(self, which, documents, times):
        codes = [code for tokens in documents for code in (*tokens * times, twin_module.BORDER)]
        native, twin = self.streams[which]
        native.append_documents(int32(codes[:-1]))
        twin.append_documents(codes[:-1])

    @rule(which=STREAMS, well=st.booleans())
    def end(self, which, well):
        for stream in self.streams[which]:
            stream.finish() if well else stream.end()

    @rule(which=STREAMS)
    def begin_another(self, which):
        self.streams[which] = self.new()

    @rule(which=STREAMS)
    def begin_the_next_of_a_conversation(self, which):
        earlier, self.streams[which] = self.streams[which], self.new()
        for stream, before in zip(self.streams[which], earlier, strict=True):
            before.close()
            stream.follow(before)

    @rule()
    def clear(self):
        self.ring.clear()
        self.ring_twin.clear()

    @rule(which=STREAMS, context=CHUNKS)
    def look(self, which, context):
        assert_equal(*self.streams[which], context)

    @rule(which=STREAMS, at=st.integers(0, 200), n=st.integers(1, 70))
    def look_for_what_was_said(self, which, at, n):
        codes = self.ring_twin.codes
        at = at % (len(codes) + 1)
        context = [code for code in codes[max(at - n, 0) : at] if code != twin_module.BORDER]
        assert_equal(*self.streams[which], context)

    @invariant()
    def the_same_text(self):
        self.ring.check_integrity()
        for native, _ in self.streams:
            native.check_integrity()
        begin, codes = self.ring.codes(0)
        assert begin == self.ring_twin.oldest
        assert codes.tolist() == self.ring_twin.codes[begin:]
        assert self.ring.written == len(self.ring_twin.codes)
        assert self.ring.counts()[0] == self.ring_twin.tokens()
        assert self.ring.largest_id == self.ring_twin.largest


TestRingMachine = RingMachine.TestCase
TestRingMachine.settings = settings(QUICK, max_examples=60)


def test_engines_of_one_conversation_equal_their_twins():
    """What the first one learned about the store, the second one knows."""
    text = noisy_repetition(3, 400, 30).tolist()
    familiar, calibrations = (StorePrior(), StorePriorTwin()), (Calibration(), CalibrationTwin())
    confidences = []
    for known in (familiar, familiar, (None, None)):
        with salted(0):  # contexts that share a bucket of the ring end a look-up earlier
            pair = Pair(earlier=text, familiar=known, calibrations=calibrations)
        for begin in range(100, 160, 3):
            pair.draft(24, tree=True)
            pair.extend(text[begin : begin + 3])
            if begin == 100:
                confidences.append(pair.draft(8)[1].tolist())
    assert confidences[1] != confidences[2]


def test_an_engine_does_not_find_what_its_own_stream_adds():
    """Other requests said much the same; what this one adds the twin does not find either."""
    text, rng = noisy_repetition(0, 240).tolist(), np.random.default_rng(0)
    with salted(0):
        pair = Pair(earlier=[t if rng.random() < 0.9 else int(rng.integers(12)) for t in text])
    for begin in range(0, 240, 3):
        pair.draft(12, tree=begin % 2 == 0)
        pair.extend(text[begin : begin + 3])
        for stream in pair.sources:
            stream.append(int32(text[begin : begin + 3]))
        pair.check()
    assert pair.twin.store_counts()[1] > 5


def test_a_stream_follows_only_one_of_its_own_ring():
    with pytest.raises(ValueError, match="of another ring"):
        StoreStream(StoreRing(100)).follow(StoreStream(StoreRing(100)))


def test_under_any_salt_the_same_places():
    text = noisy_repetition(5, 600, 40)
    answers = []
    for salt in (0, 1, 2**63, common.salt()):
        with salted(salt):
            ring = StoreRing(500)
        stream = StoreStream(ring)
        stream.append(text)
        stream.finish()
        reader = StoreStream(ring)
        answers.append([reader.find(text[at - 20 : at]) for at in range(20, 600)])
    assert all(each == answers[0] for each in answers)


@pytest.mark.parametrize("text", ["one token", "two tokens", "random", "real"])
def test_the_lock_is_held_for_a_bounded_number_of_operations(text):
    rng = np.random.default_rng(0)
    tokens = {
        "one token": np.full(20_000, 7, np.int32),
        "two tokens": (np.arange(20_000) % 2).astype(np.int32),
        "random": rng.integers(0, 50, 20_000).astype(np.int32),
        "real": noisy_repetition(0, 20_000, 500),
    }[text]
    ring = StoreRing(10_000)
    writer, reader = StoreStream(ring), StoreStream(ring)
    writer.append(tokens)
    writer.finish()
    for at in range(100, 20_000, 97):
        for place, _ in reader.find(tokens[at - 100 : at]):
            reader.tokens_at(place, 64)
    ring.codes(0)
    ring.clear()
    # three levels, 192 places compared on each, 64 tokens at each and two more
    assert 0 < ring.most_operations <= 3 * 192 * 66


def test_contexts_that_are_everywhere_do_not_hide_the_longest_match():
    ring = StoreRing(100_000)
    writer, reader = StoreStream(ring), StoreStream(ring)
    rare = int32([50, 51, 52, 53, 1, 2, 99])
    writer.append(rare)
    writer.append(np.tile(int32([1, 2, 3]), 5000))
    writer.finish()
    at, length = reader.find(int32([50, 51, 52, 53, 1, 2]))[0]
    assert (at, length) == (7, 6)
    assert reader.tokens_at(at, 1).tolist() == [99]


def test_text_of_requests_whose_prompts_begin_alike_comes_first():
    ring = StoreRing(100_000)
    prompts = [int32([*range(n), *[90 + i] * 80]) for i, n in enumerate((64, 16, 8, 0))]
    for i, prompt in enumerate(prompts):
        for _ in range(40):  # of all together more than are compared of one kin
            writer = StoreStream(ring)
            writer.begin(prompt)
            writer.append(int32([1, 2, 70 + i]))
            writer.finish()

    def next_tokens(prompt):
        reader = StoreStream(ring)
        reader.begin(prompt)
        return [int(reader.tokens_at(at, 1)[0]) - 70 for at, _ in reader.find(int32([1, 2]))]

    for i, prompt in enumerate(prompts):
        assert next_tokens(prompt) == [i] * 32
    assert next_tokens(int32([])) == [3] * 32
    assert next_tokens(int32([*range(12)])) == [2] * 32


def test_two_namespaces_count_what_came_from_each():
    first, second = StoreRing(1000), StoreRing(1000)
    for ring, tokens in ((first, range(100, 150)), (second, range(300, 350))):
        stream = StoreStream(ring)
        stream.append(int32(tokens))
        stream.finish()
    source = StorePair(StoreStream(first), StoreStream(second))
    engine = ValueEngine(Calibration(), *OPTIONS, source)
    for begin, counted in ((100, (4, 0)), (300, (4, 4))):
        engine.extend(int32([1, *range(begin, begin + 6)]))
        assert len(engine.draft(4)[0]) == 4
        engine.credit_store(4)
        assert (first.counts()[4], second.counts()[4]) == counted


@pytest.mark.parametrize("capacity", [0, 15, 2**31 + 1, -1])
def test_a_capacity_out_of_its_bounds(capacity):
    with pytest.raises(ValueError, match=rf"capacity must be in 16\.\.2147483648, got {capacity}"):
        StoreRing(capacity)


def test_a_ring_that_was_closed_takes_and_gives_nothing():
    ring = StoreRing(100)
    stream = StoreStream(ring)
    stream.append(int32(range(70)))
    place = StoreStream(ring).find(int32([1, 2]))[0][0]
    ring.close()
    ring.close()
    assert StoreStream(ring).find(int32([1, 2])) == []
    assert stream.tokens_at(place, 4).tolist() == []
    stream.append(int32(range(70)))
    stream.finish()
    ring.clear()
    assert ring.counts()[0] == 0
    assert len(ring.codes(0)[1]) == 0
    assert ring.sizeof() < 2000
    ring.check_integrity()
