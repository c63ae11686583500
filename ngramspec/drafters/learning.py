"""Drafters that learn from their sequences. Copies start without what was learned."""

from __future__ import annotations

import copy
from abc import abstractmethod
from typing import Any

from ngramspec.drafters.base import Drafter


class LearningDrafter(Drafter):
    """A drafter whose copies, including pickled ones, keep its arguments and nothing learned.

    Attributes:
        learned: names of the attributes that ``forget`` sets.
        by_request: whether each sequence learns separately.
    """

    learned: tuple[str, ...] = ()
    by_request = False

    @abstractmethod
    def forget(self) -> None:
        """Reset what was learned. Not while sequences run."""

    def learning(self, *, by_request: bool) -> LearningDrafter:
        if by_request == self.by_request:
            return self
        other = copy.copy(self)
        other.by_request = by_request
        return other

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name not in self.learned}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self.forget()
