"""Checks of the installed version of transformers."""

from __future__ import annotations

from packaging.version import Version

from ngramspec.hf_model.compat.names import Change


def before(version: str) -> bool:
    """Whether the installed transformers is older than a version; pre-releases of it are older."""
    from transformers import __version__

    return Version(__version__) < Version(version)


def has(change: Change) -> bool:
    """Whether the installed transformers has a change of behaviour."""
    return not before(change.version)
