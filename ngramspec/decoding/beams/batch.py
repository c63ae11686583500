"""A batch whose rows are beams."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ngramspec.decoding.batch import Batch
from ngramspec.decoding.beams.group import BeamGroup
from ngramspec.decoding.group import Group
from ngramspec.draft import Draft, Verdict
from ngramspec.verification.sampler import SampledTokens


class BeamBatch(Batch):
    """All beams of a batch: one group, whose tokens are chosen by beam steps."""

    def __init__(self, beams: BeamGroup) -> None:
        super().__init__([beams], beams.sampler)
        self._beams = beams

    def verify(
        self, drafts: Sequence[Draft], logits: torch.Tensor, sampled: SampledTokens | None
    ) -> list[Verdict]:
        verdicts = super().verify(drafts, logits, sampled)
        self._beams.keep_known(logits)
        return verdicts

    def next_tokens(
        self, groups: Sequence[Group], logits: torch.Tensor, sampled: SampledTokens | None
    ) -> list[list[int]]:
        return [self._beams.step(logits)]

    def ranking(self, *, scores: bool) -> dict[str, torch.Tensor | None] | None:
        return self._beams.search.ranking(scores=scores)
