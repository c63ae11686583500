"""A drafter and a proposer of vLLM that raise or return garbage, for engines of tests."""

from __future__ import annotations

import numpy as np

from ngramspec import Draft, Drafter, DraftSession
from ngramspec.engines.rows import Rows
from ngramspec.engines.vllm import NgramspecProposer


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
        self.rows = Rows(FaultyDrafter(), known.k, known.vocab, known.max_len)
