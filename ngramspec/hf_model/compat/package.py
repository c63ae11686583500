"""The installed version of transformers, and the names of its classes and modules.

Classes are compared by name, so that their modules do not have to be imported.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from packaging.version import Version

PACKAGE = "transformers"
PROCESSOR_MODULE = "generation.logits_process"
CRITERION_MODULE = "generation.stopping_criteria"
CAPTURE_MODULE = "utils.output_capturing"


class Change(NamedTuple):
    """A change of behaviour in transformers, and the first version with it."""

    version: str
    what: str


OLDEST_SUPPORTED = "5.16.1"
NEWEST_TESTED = "5.24.0"
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


def untested() -> str | None:
    """Return the installed transformers' version if no test covers it, older or newer; or None."""
    from transformers import __version__

    covered = Version(OLDEST_SUPPORTED) <= Version(__version__) <= Version(NEWEST_TESTED)
    return None if covered else __version__


END_OF_SEQUENCE = "EosTokenCriteria"  # decided from the token's id
MAX_LENGTH = "MaxLengthCriteria"  # decided from the length
MAX_TIME = "MaxTimeCriteria"  # called without the tokens
STOP_STRING = "StopStringCriteria"  # called with the tokens on the host


def stock_name(each: Any, module: str) -> str:
    """Return the name of an object's class if a module of transformers defines it, or ""."""
    kind = type(each)
    return kind.__name__ if kind.__module__ == f"{PACKAGE}.{module}" else ""


def captures_states(hook: Any) -> bool:
    """Whether a hook is transformers' own, which captures states in calls that ask for them."""
    module = getattr(hook, "__module__", None)
    return bool(module == f"{PACKAGE}.{CAPTURE_MODULE}")
