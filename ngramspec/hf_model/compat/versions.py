"""Versions that changed transformers' behaviour."""

from __future__ import annotations

from dataclasses import dataclass

from packaging.version import Version


@dataclass(frozen=True, slots=True)
class Change:
    """A change of behaviour in transformers, and the first version with it."""

    version: str
    what: str


MARKS_CACHES = Change("5.19", "generate marks every cache that a caller passed")
PLACES_TOKENS = Change("5.19", "GIT places a single token where it places one of several")
KEEPS_SELECTION = Change("5.17", "a mask of bools keeps the selection of an index under sdpa")


def before(version: str) -> bool:
    """Whether the installed transformers is older than a version; pre-releases of it are older."""
    from transformers import __version__

    return Version(__version__) < Version(version)


def has(change: Change) -> bool:
    """Whether the installed transformers has a change of behaviour."""
    return not before(change.version)
