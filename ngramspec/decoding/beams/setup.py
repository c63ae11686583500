"""The batch and the drafting of a call with beam search."""

from __future__ import annotations

from typing import Any

from ngramspec.decoding.batch import Batch
from ngramspec.decoding.batch_drafting import BatchDrafting
from ngramspec.decoding.beams.batch import BeamBatch
from ngramspec.decoding.beams.drafting import BeamDrafting
from ngramspec.decoding.beams.group import BeamGroup
from ngramspec.decoding.beams.search import BeamConfig, BeamSearch
from ngramspec.decoding.observer import Section
from ngramspec.decoding.request import GenerateCall
from ngramspec.hf_model.compat.hf_private import eos_tokens, pad_token
from ngramspec.verification.sampler import TokenSampler


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
