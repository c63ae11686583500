"""A Speculator for each user: nothing that one's text taught it shows in another's drafts."""

from __future__ import annotations

from ngramspec.speculator import Speculator


class Speculators:
    """Makes a Speculator for each user at their first request, and keeps it.

    There are as many as keys.

    Args:
        drafter: see ``Speculator``; each user has a drafter of its own, built from this string.
    """

    def __init__(self, drafter: str) -> None:
        self._drafter = drafter
        self._made: dict[str, Speculator] = {}

    def __call__(self, user: str) -> Speculator:
        """The Speculator of a user."""
        if user not in self._made:
            self._made[user] = Speculator(self._drafter)
        return self._made[user]
