"""Watching the decode loop from outside: the sections of a step."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

PREFILL = "prefill"
STEP = "step"
DRAFTING = "drafting"
INPUT_PREPARATION = "input preparation"
VERIFICATION = "verification"
ROLLBACK = "rollback"
STREAMING = "streaming"

NO_SECTION: AbstractContextManager[None] = nullcontext()


class Observer:
    """What the loop reports to; this one ignores everything. Subclass it to measure.

    ``speculator.observer = observer`` watches every call that begins from then on. PREFILL and STEP
    are the outermost sections; the others run inside them, STREAMING inside VERIFICATION. The
    target's own forward runs inside INPUT_PREPARATION: torch's forward hooks of the model tell the
    two apart.

    Attributes:
        one_transfer: read a step's tokens in one transfer on a CPU too, as on a GPU.
    """

    one_transfer = False

    def section(self, name: str) -> AbstractContextManager[None]:
        """The context in which the loop runs the section of that name."""
        return NO_SECTION


NO_OBSERVER = Observer()
