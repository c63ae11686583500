"""Processes that share a store: ``python redis_processes.py TASK ADDRESS``. They need no torch."""

from __future__ import annotations

import os
import sys
import time

import numpy as np

from ngramspec import SharedStore

WORDS = 500


class Vocabulary:
    """A tokenizer that has only a vocabulary."""

    def get_vocab(self):
        return {f"w{i}": i for i in range(WORDS)}


def shared(address, **settings):
    return SharedStore(1 << 20, tokenizer=Vocabulary(), sync=address, **settings)


def write_for_ever(address):
    """Add documents 0 1 2 ... until the process is killed."""
    store = shared(address)
    print("begins", flush=True)
    while True:
        store["a"].add(np.arange(100, dtype=np.int32))
        time.sleep(0.001)


def write_and_end(address):
    """Add a document in a process and one in its fork, and end at once."""
    store = shared(address)
    store["a"].add(np.arange(100, 140, dtype=np.int32))
    store.sync.flush(60)
    child = os.fork()
    store.sync._begin = None  # the fork has begun, before it has threads that could do so twice
    store["a"].add(np.arange(200, 240, dtype=np.int32) if child else np.arange(40, dtype=np.int32))
    if not child:
        os._exit(0 if store.sync.flush(60) else 1)
    assert os.waitpid(child, 0)[1] == 0


if __name__ == "__main__":
    {"write": write_for_ever, "end": write_and_end}[sys.argv[1]](sys.argv[2])
