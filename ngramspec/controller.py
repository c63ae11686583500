"""How many tokens to draft in the next step."""

from __future__ import annotations

from typing import Protocol

from ngramspec.errors import check_int


class GammaController(Protocol):
    """One generation's choice of gamma. One thread at a time."""

    def gamma(self) -> int:
        """Tokens to ask the drafter for, >= 1."""

    def observe(self, drafted: int, accepted: int) -> None:
        """Learn from a step that drafted ``drafted`` >= 1 tokens."""


class FixedGamma:
    """The same gamma at every step (Leviathan et al. 2023, Algorithm 1)."""

    def __init__(self, gamma: int) -> None:
        self._gamma = gamma

    def gamma(self) -> int:
        return self._gamma

    def observe(self, drafted: int, accepted: int) -> None:
        return None


class HeuristicGamma:
    """Doubles when a whole draft was accepted, else goes half way to what was accepted.

    A draft shorter than asked for that was accepted whole says nothing about longer ones, and
    changes nothing. Bounded by ``LOWEST`` (or gamma_max, if that is less) and gamma_max: below
    LOWEST a forward hardly gets cheaper.
    """

    FIRST = 8
    LOWEST = 6

    def __init__(self, gamma_max: int) -> None:
        self._max = gamma_max
        self._gamma = min(self.FIRST, gamma_max)

    def gamma(self) -> int:
        return self._gamma

    def observe(self, drafted: int, accepted: int) -> None:
        if accepted < drafted:
            wanted = (self._gamma + accepted + 1) // 2
        elif drafted >= self._gamma:
            wanted = 2 * self._gamma
        else:
            return
        self._gamma = min(max(wanted, self.LOWEST), self._max)


def check_gamma(gamma: int | str, gamma_max: int) -> int | str:
    """Return a valid ``gamma`` argument: an integer in 1..gamma_max, "heuristic" or "auto"."""
    if isinstance(gamma, str):
        if gamma not in ("auto", "heuristic"):
            raise ValueError(f"gamma must be an integer, 'auto' or 'heuristic', got {gamma!r}")
        return gamma
    return check_int("gamma", gamma, 1, gamma_max)


def make_controller(gamma: int | str, gamma_max: int) -> GammaController:
    """A controller for one generation. "auto" is the heuristic until cost is measured."""
    return FixedGamma(gamma) if isinstance(gamma, int) else HeuristicGamma(gamma_max)
