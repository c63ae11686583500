"""Speculative ``generate`` for the model of this folder, by the installed package ngramspec.

``ngramspec wrap`` wrote this file. ngramspec.json in this folder holds the Speculator's arguments.
"""

from typing import Any

from ngramspec.wrap import wrapped


def generate(*args: Any, model: Any, **kwargs: Any) -> Any:
    """The model's own ``generate``: the same arguments and result, in fewer target calls."""
    return wrapped.generate(model, *args, **kwargs)
