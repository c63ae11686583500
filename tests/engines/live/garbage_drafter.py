"""A drafter that raises or returns garbage, for an engine of a test."""

from __future__ import annotations

import numpy as np

from ngramspec import Draft, Drafter, DraftSession


class FaultySession(DraftSession):
    calls = 0

    def propose(self, gamma, cost=None, *, tree=False):
        FaultySession.calls += 1
        what = FaultySession.calls % 6
        if what == 0:
            raise RuntimeError("told to")
        if what == 1:
            return None
        tokens = np.arange(gamma + 40 * (what == 2), dtype=np.int32)
        if what == 3:
            tokens[:] = -7
        if what == 4:
            tokens[-1:] = 10**6
        return Draft(tokens, None, np.ones(len(tokens), np.float32))

    def extend(self, tokens):
        if FaultySession.calls % 7 == 0:
            raise RuntimeError("told to")


class FaultyDrafter(Drafter):
    estimates = True

    def start(self, tokens):
        return FaultySession()
