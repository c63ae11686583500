"""A replacement of ``grammars.work`` that starts immediately.

It compiles "endless" until it is killed.
"""

from __future__ import annotations

import time


def work(pipe, seconds, vocabulary):
    while True:
        _, text = pipe.recv()
        while "endless" in text:
            time.sleep(60)
        pipe.send(None)
