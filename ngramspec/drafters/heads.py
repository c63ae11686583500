"""The head of the target itself, and combining a head with a drafter."""

from __future__ import annotations

import threading

from ngramspec.drafters.base import Drafter
from ngramspec.drafters.calibrated import CalibratedDrafter
from ngramspec.drafters.headed import HeadedDrafter
from ngramspec.drafters.known import NullDrafter
from ngramspec.drafters.model import ModelDrafter
from ngramspec.drafters.priority import PriorityDrafter
from ngramspec.drafters.value import StoreDrafter, ValueDrafter


class MtpDrafter(ModelDrafter):
    """Drafts with the target's layers for multi-token prediction, one token with each layer.

    Args:
        gamma, threshold, most: see ModelDrafter.
    """

    source_names = ("mtp",)
    reads_states = True

    def __init__(self, gamma: int = 8, threshold: float = 0.4, most: int | None = 64) -> None:
        super().__init__("", gamma, threshold, most, False)
        self.spec = f"mtp(gamma={gamma},threshold={self.threshold},most={most})"


def with_head(drafter: Drafter, head: ModelDrafter) -> Drafter:
    """A drafter that uses a head as well.

    Tables by value and the head share one estimate. Other drafters continue the head's draft. With
    a drafter that drafts nothing, the head drafts alone.
    """
    if isinstance(drafter, NullDrafter):
        return HeadedDrafter(StoreDrafter(), head)
    if isinstance(drafter, HeadedDrafter):
        return HeadedDrafter(drafter.tables, head)
    if isinstance(drafter, ValueDrafter):
        return HeadedDrafter(drafter, head)
    return CalibratedDrafter(PriorityDrafter((head, drafter)))


class HeadOfCalls:
    """The head that the calls of a Speculator bring, with its drafter. Threads may share it.

    It keeps what was learned about one head, the last one, but does not keep its model alive. The
    call does.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._last: tuple[Drafter, ModelDrafter, Drafter] | None = None

    def drafter(self, own: Drafter, head: ModelDrafter) -> Drafter:
        """The Speculator's drafter ``own`` with a call's head."""
        with self._lock:
            last = self._last
            if last is None or last[0] is not own or not last[1].same_as(head):
                head = head.held_weakly()
                made = with_head(own, head).with_calibration(
                    by_request=getattr(own, "by_request", False)
                )
                last = self._last = own, head, made
            return last[2]
