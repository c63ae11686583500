"""A proposer whose drafter raises or returns garbage, for a server of a test."""

from __future__ import annotations

import numpy as np

from ngramspec import Draft, Drafter, DraftSession
from ngramspec.integrations.rows import Rows
from ngramspec.integrations.vllm import NgramspecProposer


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


class FaultyProposer(NgramspecProposer):
    def __init__(self, vllm_config):
        super().__init__(vllm_config)
        known = self.rows
        self.rows = Rows(FaultyDrafter(), known.k, known._sessions.vocab, known.max_len)
