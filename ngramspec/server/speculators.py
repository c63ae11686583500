"""A Speculator for each user, so that no user's text influences another's drafts."""

from __future__ import annotations

from ngramspec.speculator import Speculator


class Speculators:
    """Creates a Speculator, with a separate drafter, at each user's first request and keeps it."""

    def __init__(self, drafter: str) -> None:
        self._drafter = drafter
        self._made: dict[str, Speculator] = {}

    def __call__(self, user: str) -> Speculator:
        """The Speculator of a user."""
        if user not in self._made:
            self._made[user] = Speculator(self._drafter)
        return self._made[user]
