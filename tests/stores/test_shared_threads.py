"""Threads share a store: what is read is always text that some request said, in its order."""

from __future__ import annotations

import threading
from collections import Counter

import numpy as np
import pytest
from native_strategies import int32

from ngramspec import SharedStore, build_drafter

RUN = 1000  # each document counts up inside one thousand


class Worker(threading.Thread):
    """Adds documents that count up, looks for their contexts, reads on; what is torn is kept."""

    def __init__(self, store, seed, operations, start):
        super().__init__()
        self.store, self.operations, self.begin = store, operations, start
        self.rng = np.random.default_rng(seed)
        self.errors: list[str] = []
        self.done = Counter()

    def run(self):
        try:
            self.begin.wait()
            while self.done.total() < self.operations:
                self.request(str(self.rng.integers(0, 2)))
        except Exception as error:
            self.errors.append(repr(error))

    def request(self, name):
        request = self.store[name].request()
        first = RUN * int(self.rng.integers(0, 50))
        for at in range(first, first + int(self.rng.integers(1, 300)), 8):
            request.append(np.arange(at, at + 8, dtype=np.int32))
            self.done["append"] += 1
            n = int(self.rng.integers(1, 12))
            begin = RUN * int(self.rng.integers(0, 50)) + int(self.rng.integers(0, 200))
            places = request.index.find(np.arange(begin, begin + n, dtype=np.int32), 4)
            self.done["find"] += 1
            for place, length in places:
                read = request.index.tokens_at(place, 20)
                self.done["read"] += 1
                expected = np.arange(begin + n, begin + n + len(read))
                if not 1 <= length <= n or read.tolist() != expected.tolist():
                    self.errors.append(f"{begin}, {n}: {place}, {length}, {read}")
        if self.rng.random() < 0.9:
            request.finish()
        else:
            request.abort()


def stress(operations, threads=4):
    """So many operations by threads that generate, while one clears, drops and saves."""
    store = SharedStore(1 << 17, namespace_bytes=1 << 15)
    start = threading.Event()
    workers = [Worker(store, seed, operations // threads, start) for seed in range(threads)]
    for worker in workers:
        worker.start()
    start.set()
    turn = 0
    while any(worker.is_alive() for worker in workers):
        turn += 1
        store["0"].clear() if turn % 3 else store.clear()
        if turn % 5 == 0 and "1" in store:
            store.drop("1")
        for ring in store.rings().values():
            ring.codes(0)
        workers[turn % threads].join(0.001)
    for worker in workers:
        worker.join()
    store.check_integrity()
    return store, workers


def test_threads_generate_and_one_clears():
    store, workers = stress(20_000)
    assert [worker.errors for worker in workers] == [[]] * 4
    done = sum((worker.done for worker in workers), Counter())
    assert done["read"] > 200
    assert store.sizeof() <= store.max_bytes + 4096


@pytest.mark.slow
def test_a_million_operations():
    _, workers = stress(1_000_000)
    assert [worker.errors for worker in workers] == [[]] * 4


def test_sessions_of_many_threads_draft_only_what_follows():
    store = SharedStore(1 << 18)
    store["a"].add(np.arange(500, dtype=np.int32))
    drafter = build_drafter("auto", stores=[store["a"]])
    wrong: list = []
    drafted: list = []

    def serve(seed):
        rng = np.random.default_rng(seed)
        for _ in range(40):
            at = int(rng.integers(0, 300))
            session = drafter.start(np.arange(at, at + 8, dtype=np.int32))
            for begin in range(at + 8, at + 60, 4):
                draft = session.propose(8)
                said = draft.source == drafter.source_names.index("store")
                known = len(draft) if said.all() else int(said.argmin())
                drafted.append(known)
                tokens = draft.tokens[:known].tolist()
                if tokens != list(range(begin, begin + known)):
                    wrong.append((begin, tokens))
                session.extend(np.arange(begin, begin + 4, dtype=np.int32))
            session.close()

    threads = [threading.Thread(target=serve, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    assert sum(drafted) > 1000
    store.check_integrity()
    assert store["a"].statistics().added == 500 + 4 * 40 * 52


def test_namespaces_are_made_once_by_many_threads():
    store = SharedStore(1 << 20)
    rings = []
    start = threading.Barrier(8)

    def use():
        start.wait()
        rings.append(store.ring("a"))
        store["a"].add(int32([1, 2, 3]))

    threads = [threading.Thread(target=use) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(map(id, rings))) == 1
    assert store["a"].statistics().tokens == 24
