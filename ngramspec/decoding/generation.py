"""The parts of one run of the decode loop."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ngramspec.costs.joint import AnyCosts
from ngramspec.decoding.batch import Batch
from ngramspec.decoding.batch_drafting import BatchDrafting
from ngramspec.decoding.observer import Section
from ngramspec.draft_length.schedule import PrefillDraftLength
from ngramspec.hf_model.model import Target
from ngramspec.stats import DecodeStats, StepEvent
from ngramspec.verification.sampler import TokenSampler

if TYPE_CHECKING:  # most calls have one process
    from ngramspec.decoding.distributed import Ranks

MEMORY = 0.9  # weight of earlier forwards in an average duration; not tuned


class Pace:
    """The average duration of the target's forwards, in which heads state their costs.

    ``target`` is in seconds per row, for a forward of one position; None: not measured.
    """

    def __init__(self) -> None:
        self.target: float | None = None

    def record(self, seconds: float, relative: float, rows: int) -> None:
        """Record a forward of ``rows`` rows, of ``relative`` cost to one of one position."""
        self.target = averaged(self.target, seconds / max(relative, 1.0) / rows)


def averaged(average: float | None, value: float) -> float:
    """A decaying average with one more value."""
    return value if average is None else MEMORY * average + (1 - MEMORY) * value


@dataclass(slots=True, kw_only=True)
class Generation:
    """One run of the decode loop.

    Attributes:
        step_costs: measures the forwards' costs and chooses their width. None: forwards are as wide
            as the drafts require, and the prefill verifies no draft.
        prefill_length: how many draft tokens the prefill verifies.
        on_step: called with every StepEvent, or None.
        section: returns the context of a section, see Observer.
        ranks: the processes that decode together; None: only this one.
        pace: the duration of the target's forwards, if a drafting model is compared with it.
    """

    target: Target
    batch: Batch
    drafting: BatchDrafting
    sampler: TokenSampler
    step_costs: AnyCosts | None
    prefill_length: PrefillDraftLength
    stats: DecodeStats
    on_step: Callable[[StepEvent], None] | None
    section: Section
    ranks: Ranks | None
    pace: Pace | None
