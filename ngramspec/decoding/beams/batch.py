"""A batch whose rows are beams, and its drafting."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from ngramspec.decoding.batch import Batch
from ngramspec.decoding.batch_drafting import BatchDrafting
from ngramspec.decoding.beams.drafting import BeamDrafting
from ngramspec.decoding.beams.group import BeamGroup
from ngramspec.decoding.beams.search import BeamConfig, BeamSearch
from ngramspec.decoding.group import Group
from ngramspec.decoding.observer import Section
from ngramspec.decoding.request import GenerateCall
from ngramspec.draft import Draft, Verdict
from ngramspec.hf_model.compat.names import eos_tokens, pad_token
from ngramspec.verification.sampler import SampledTokens, TokenSampler


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


def make_beams(
    call: GenerateCall,
    sampler: TokenSampler,
    section: Section,
    nodes: int,
    drafting: dict[str, Any],
) -> tuple[Batch, BatchDrafting]:
    """Make the beams of a call, whose prompts are repeated for each beam, and their drafting.

    ``nodes`` is the maximum size of a beam's draft with its branches; 0: no branches. ``drafting``
    holds the keyword arguments of BatchDrafting.
    """
    config, prompt = call.generation_config, drafting["target"].prompt
    search = BeamConfig(
        beams=config.num_beams,
        returned=config.num_return_sequences or 1,
        eos=eos_tokens(config),
        pad=pad_token(config),
        length_penalty=config.length_penalty,
        early_stopping=config.early_stopping,
        max_length=config.max_length,
    )
    beam_search = BeamSearch(prompt, search, call.stopping_criteria or ())
    beams = BeamGroup(prompt, sampler, beam_search, section, branches=nodes > 0)
    return BeamBatch(beams), BeamDrafting(beams, beam_nodes=nodes, **drafting)
