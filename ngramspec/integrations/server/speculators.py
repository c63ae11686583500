"""A Speculator for each user: nothing that one's text taught it shows in another's drafts."""

from __future__ import annotations

from typing import Any

from ngramspec.drafters import build_drafter
from ngramspec.speculator import Speculator


class Speculators:
    """Makes a Speculator for each user at their first request, and keeps it.

    Args:
        drafter: see ``Speculator``; a drafter of its own is built for each user from a string.
        most: users; there are no more than keys.
    """

    def __init__(self, drafter: str, most: int) -> None:
        build_drafter(drafter)
        self._drafter, self._most = drafter, most
        self._made: dict[str, Speculator] = {}

    def __call__(self, user: str) -> Any:
        """The Speculator of a user."""
        if user not in self._made:
            assert len(self._made) < self._most
            self._made[user] = Speculator(self._drafter)
        return self._made[user]
