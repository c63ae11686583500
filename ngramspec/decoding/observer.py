"""Observers of the decode loop: the sections of a step."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager

from ngramspec._native import NoSection

PREFILL = "prefill"
STEP = "step"
DRAFTING = "drafting"
INPUT_PREPARATION = "input preparation"
VERIFICATION = "verification"
ROLLBACK = "rollback"
STREAMING = "streaming"

Section = Callable[[str], AbstractContextManager[None]]  # from a section's name to its context
no_section = NoSection()


class Observer:
    """Is notified of the loop's sections, and ignores them. Subclass it to measure.

    ``speculator.observer = observer`` observes all calls that begin later. PREFILL and STEP are
    the outermost sections. The others run inside them, and STREAMING runs inside VERIFICATION. The
    target's forward runs inside INPUT_PREPARATION; use torch's forward hooks of the model to
    separate the two.

    Attributes:
        one_transfer: whether a CPU, like a GPU, reads a step's tokens in one transfer.
    """

    one_transfer = False

    def section(self, name: str) -> AbstractContextManager[None]:
        """Return the context in which the loop runs the section ``name``."""
        return no_section
