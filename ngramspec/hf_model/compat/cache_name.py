"""The name under which transformers passes caches: an argument of forwards, a field of outputs.

transformers 5.24 renamed it. If a forward gets both names, the old one is dropped. The name is read
from a signature, so that it need not be known which version renamed it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping
from inspect import signature
from typing import Any

# Every name that a caller or a supported version may use. The last one is that of Mamba's models.
CACHE_NAMES = ("cache", "past_key_values", "cache_params")


@functools.cache
def cache_names() -> tuple[str, ...]:
    """Return the names that the installed transformers uses, that of most models first."""
    from transformers.generation.utils import GenerationMixin

    name = parameter_of(GenerationMixin.prepare_inputs_for_generation) or CACHE_NAMES[0]
    return (name,) if name == CACHE_NAMES[0] else CACHE_NAMES[1:]


def parameter_of(function: Callable[..., Any]) -> str | None:
    """Return the name of a function's parameter for a cache, or None."""
    known = signature(function).parameters
    return next((name for name in CACHE_NAMES if name in known), None)


def cache_argument(cache: Any) -> dict[str, Any]:
    """Return the keyword argument that passes a cache, or the field of an output that holds it."""
    return {cache_names()[0]: cache}


def cache_of(arguments: Mapping[str, Any]) -> Any:
    """Return the cache in the arguments or the outputs of a model's forward, or None."""
    return _first(arguments, cache_names())


def given_cache(arguments: Mapping[str, Any]) -> Any:
    """Return the cache in a caller's arguments of ``generate``, under any name, or None."""
    return _first(arguments, CACHE_NAMES)


def _first(arguments: Mapping[str, Any], names: Iterable[str]) -> Any:
    for name in names:
        if (found := arguments.get(name)) is not None:
            return found
    return None
