"""A proposer whose drafter raises or returns garbage, for a server of a test."""

from __future__ import annotations

from garbage_drafter import FaultyDrafter

from ngramspec.engines.rows import Rows
from ngramspec.engines.vllm import NgramspecProposer


class FaultyProposer(NgramspecProposer):
    def __init__(self, vllm_config):
        super().__init__(vllm_config)
        known = self.rows
        self.rows = Rows(FaultyDrafter(), known.k, known.vocab, known.max_len)
