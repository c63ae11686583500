"""A batch whose rows are beams."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ngramspec.decoding.batch import Batch
from ngramspec.decoding.beams.group import BeamGroup
from ngramspec.draft import Draft, Verdict
from ngramspec.verification.sampler import SampledTokens


class BeamBatch(Batch):
    """All beams of a batch: one group, which replays beam steps on a forward's logits."""

    def __init__(self, beams: BeamGroup) -> None:
        super().__init__([beams], beams.sampler)
        self._beams = beams

    def verify(
        self, drafts: Sequence[Draft], logits: torch.Tensor, sampled: SampledTokens | None
    ) -> list[Verdict]:
        return self._beams.verify(drafts, logits)

    def ranking(self, *, scores: bool) -> dict[str, torch.Tensor | None] | None:
        return self._beams.search.ranking(scores=scores)
