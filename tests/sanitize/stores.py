"""What is done to stores: corpora as they were built and broken ones, and shared text."""

from __future__ import annotations

import random
import threading
from typing import Any

import numpy as np

from ngramspec._native.store_corpus import CorpusIndex
from ngramspec._native.store_ring import BORDER, StoreRing, StoreStream
from ngramspec._native.store_source import StorePair
from ngramspec._native.value import Calibration, ValueEngine

SMALL = (16, 17, 100, 1000)
CODES = 600  # of a corpus
KEYS = 38 + 3  # every 16th place, and every 16th of those


class Shared:
    """A ring, three streams, and an engine that drafts from one of them."""

    def __init__(self, capacity: int, limit: int) -> None:
        self.ring = StoreRing(capacity)
        self.limit = limit
        self.streams = [StoreStream(self.ring, limit) for _ in range(3)]
        self.engine = ValueEngine(Calibration(), True, True, True, 2, self.streams[0])
        self.steps = 0

    def __len__(self) -> int:
        self.steps += 1
        return 4 * self.steps  # after some hundred operations a new one begins

    def check_integrity(self) -> None:
        self.ring.check_integrity()
        self.engine.check_integrity()
        for stream in self.streams:
            stream.check_integrity()


def add_text(shared: Shared, source: Any) -> None:
    tokens = source.tokens(source.rng.choice((3, 40, 300)))
    tokens = tokens[tokens < 2**31 - 1]
    source.rng.choice(shared.streams).append(tokens)
    source.text = [*source.text, *tokens.tolist()][-500:]


def add_documents(shared: Shared, source: Any) -> None:
    codes = source.tokens(source.rng.choice((3, 40, 300)))
    codes[codes % source.rng.choice((2, 5, 100)) == 0] = BORDER
    source.rng.choice(shared.streams).append_documents(codes)


def add_hostile(shared: Shared, source: Any) -> None:
    add = source.rng.choice((shared.streams[1].append, shared.streams[1].append_documents))
    add(source.hostile())


def find_and_read(shared: Shared, source: Any) -> None:
    stream = source.rng.choice(shared.streams)
    for at, length in stream.find(source.tokens(80), source.rng.choice((1, 5, 32))):
        assert 1 <= length <= 64
        read = stream.tokens_at(at, source.rng.choice((0, 1, 9, 64)))
        assert (read >= 0).all()
        assert not shared.limit or (read < shared.limit).all()


def read_anywhere(shared: Shared, source: Any) -> None:
    at = source.rng.choice((0, 5, 10**6, 2**62, -1, -(2**62)))
    shared.streams[2].tokens_at(at, source.rng.choice((0, 7, 2**20)))


def end_stream(shared: Shared, source: Any) -> None:
    stream = source.rng.choice(shared.streams)
    source.rng.choice((stream.finish, stream.end))()


def follow_a_stream(shared: Shared, source: Any) -> None:
    which = source.rng.randrange(1, 3)
    earlier, shared.streams[which] = shared.streams[which], StoreStream(shared.ring, shared.limit)
    earlier.close()
    shared.streams[which].follow(earlier)


def copy_codes(shared: Shared, source: Any) -> None:
    shared.ring.codes(source.rng.choice((0, 3, 2**40)), source.rng.choice((1, 100, 4096)))


def draft_from_it(shared: Shared, source: Any) -> None:
    shared.engine.draft_tree(source.gamma())
    shared.engine.extend(source.tokens(6))
    shared.engine.credit_store(1)


def clear_or_close(shared: Shared, source: Any) -> None:
    shared.ring.clear() if source.rng.random() < 0.8 else shared.ring.close()


def threads_at_once(shared: Shared, source: Any) -> None:
    tokens = source.tokens(300)
    tokens = tokens[tokens < 2**31 - 1]
    adding, reading = StoreStream(shared.ring), StoreStream(shared.ring)

    def look() -> None:
        for at in range(0, len(tokens), 7):
            for place, _ in reading.find(tokens[:at]):
                reading.tokens_at(place, 9)

    def add() -> None:
        for _ in range(5):
            adding.append(tokens)

    threads = [threading.Thread(target=each) for each in (add, look, shared.ring.clear)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


class Corpora:
    """Look-ups over sections that hold anything, and a pair of them under an engine."""

    def __init__(self, width: int, seed: int) -> None:
        rng = np.random.default_rng(seed)
        sizes = (width * CODES, 4 * CODES, 16 * KEYS)
        self.indexes = []
        for _ in range(2):
            parts = [rng.integers(0, 256, size, dtype=np.uint8) for size in sizes]
            if rng.random() < 0.8:  # codes and places that may be right
                codes = rng.integers(0, 9, CODES)
                codes[rng.random(CODES) < 0.05] = (1 << 8 * width) - 1
                parts[0] = packed(codes, width)
                parts[1] = rng.integers(0, CODES + 2, CODES).astype("<u4").view(np.uint8)
            self.indexes.append(CorpusIndex(parts, width, 2000))
        self.engine = ValueEngine(Calibration(), True, True, True, 2, StorePair(*self.indexes))
        self.steps = 0

    def __len__(self) -> int:
        self.steps += 1
        return 10 * self.steps

    def check_integrity(self) -> None:
        self.engine.check_integrity()


def packed(codes: np.ndarray, width: int) -> np.ndarray:
    whole = codes.astype("<u4").view(np.uint8).reshape(-1, 4)
    return np.ascontiguousarray(whole[:, :width]).ravel()


def look_up(corpora: Corpora, source: Any) -> None:
    index = source.rng.choice(corpora.indexes)
    context = source.tokens(70) % source.rng.choice((9, 2500))
    length, first, end = index.longest(context)
    assert 0 <= length <= 64
    assert 0 <= first <= len(index)
    assert 0 <= end <= len(index)
    for at, length in index.find(context, source.rng.choice((1, 8, 32))):
        assert 0 < length <= 64
        index.tokens_at(at, source.rng.choice((0, 9, 5000)))


def look_up_hostile(corpora: Corpora, source: Any) -> None:
    index = corpora.indexes[0]
    index.find(source.hostile(), source.rng.choice((8, 0, 33)))
    index.longest(source.hostile())


def place_anywhere(corpora: Corpora, source: Any) -> None:
    corpora.indexes[1].tokens_at(source.rng.choice((0, 599, 600, 2**62, -1)), 9)


def draft_from_both(corpora: Corpora, source: Any) -> None:
    corpora.engine.draft_tree(source.gamma())
    corpora.engine.extend(source.tokens(6) % 9)


def shared_arguments(rng: random.Random) -> tuple[Any, ...]:
    return rng.choice(SMALL), rng.choice((0, 0, 50, 2**30))


def corpora_arguments(rng: random.Random) -> tuple[Any, ...]:
    return rng.choice((2, 3)), rng.randrange(2**31)


SHARED_USUAL = (
    *[add_text] * 3,
    add_documents,
    *[find_and_read] * 3,
    *[draft_from_it] * 2,
    add_hostile,
    read_anywhere,
    end_stream,
    follow_a_stream,
    copy_codes,
)
SHARED_RARE = (clear_or_close, threads_at_once)
CORPORA_USUAL = (look_up, look_up, draft_from_both, look_up_hostile, place_anywhere)
REFUSED_HERE = (add_hostile, read_anywhere, look_up_hostile, place_anywhere)
