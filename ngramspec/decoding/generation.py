"""The arguments of one run of the decode loop."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from ngramspec.costs.joint import AnyStepCosts
from ngramspec.decoding.beams.search import BeamSearch
from ngramspec.decoding.distributed import ALONE, Ranks
from ngramspec.decoding.draft_runner import DraftRunner
from ngramspec.decoding.observer import NO_OBSERVER, Observer
from ngramspec.draft_length.schedule import PrefillDraftLength
from ngramspec.hf_model.model import Target
from ngramspec.stats import DecodeStats, StepEvent
from ngramspec.verification.sampler import TokenSampler


@dataclass(slots=True)
class Generation:
    """The arguments of one run of the loop, and what it adds to while it runs.

    Attributes:
        target: the model, not yet prefilled.
        make_runner: makes a row's DraftRunner once the vocabulary is known; called with the row's
            index and the vocabulary's size.
        sampler: how tokens are sampled.
        row_samplers: each row's own sampler, if each row advances by its own number of tokens;
            None: all rows advance together.
        beams: the beam search, if rows are beams; else None.
        beam_nodes: how many nodes a beam's draft may have with its branches; 0: it has none.
        step_costs: measures what forwards cost and says how wide they run; None: forwards are as
            wide as drafts are, and the prefill verifies no draft.
        prefill_length: how many drafted tokens the prefill verifies.
        stats: counts and times of this run, added to while it runs.
        on_step: called with every StepEvent, or None.
        observer: is told of the sections of the prefill and of each step.
        ranks: the processes that decode together with this one.
    """

    target: Target
    make_runner: Callable[[int, int], DraftRunner]
    sampler: TokenSampler
    row_samplers: Sequence[TokenSampler] | None = None
    beams: BeamSearch | None = None
    beam_nodes: int = 0
    step_costs: AnyStepCosts | None = None
    prefill_length: PrefillDraftLength = field(default_factory=lambda: PrefillDraftLength(0))
    stats: DecodeStats = field(default_factory=DecodeStats)
    on_step: Callable[[StepEvent], None] | None = None
    observer: Observer = NO_OBSERVER
    ranks: Ranks = ALONE
