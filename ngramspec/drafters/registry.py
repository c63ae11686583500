"""Drafters by name: ``build_drafter("copy+ngram(order=4,window=4096)+unigram")``."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable

from ngramspec.draft import Drafter
from ngramspec.drafters.copy import CopyDrafter
from ngramspec.drafters.ngram import NGramDrafter
from ngramspec.drafters.null import NullDrafter
from ngramspec.drafters.tiers import TieredDrafter
from ngramspec.drafters.unigram import UnigramDrafter
from ngramspec.drafters.value import ValueDrafter

AUTO = "value"
NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_-]*")
TIER = re.compile(r"\s*(?P<name>[^+()]*?)\s*(?:\((?P<arguments>[^()]*)\)\s*)?(?:\+|$)")

_factories: dict[str, Callable[..., Drafter]] = {
    "copy": CopyDrafter,
    "ngram": NGramDrafter,
    "unigram": UnigramDrafter,
    "none": NullDrafter,
    "value": ValueDrafter,
}


def register_drafter(name: str, factory: Callable[..., Drafter]) -> None:
    """Let ``build_drafter`` know a drafter by name.

    Args:
        name: letters, digits, ``_`` and ``-``; not yet taken, and not "auto".
        factory: called with the arguments in brackets as keywords; returns a Drafter.

    Raises:
        ValueError: the name is taken or cannot stand in a spec.
    """
    if not NAME.fullmatch(name):
        raise ValueError(f"name must be letters, digits, '_' and '-', got {name!r}")
    if name == "auto" or name in _factories:
        raise ValueError(f"a drafter named {name!r} exists already")
    _factories[name] = factory


def build_drafter(spec: str | Drafter) -> Drafter:
    """A drafter from its description; a Drafter is passed through.

    Args:
        spec: tiers separated by ``+``, highest priority first, each ``name`` or
            ``name(key=value,...)``; or "auto", the best default for one request.

    Raises:
        ValueError: the part of the string that is wrong, marked, and what could stand there.

    Example:
        >>> build_drafter("copy+ngram(order=4)+unigram").tiers
        ('copy', 'ngram', 'unigram')
    """
    if isinstance(spec, Drafter):
        return spec
    if not isinstance(spec, str):
        raise TypeError(f"drafter must be a string or a Drafter, got {type(spec).__name__}")
    text = AUTO if spec.strip() == "auto" else spec
    tiers: list[Drafter] = []
    at = 0
    while at <= len(text):
        match = TIER.match(text, at)
        if match is None:
            raise _error(text, at, len(text), "cannot be read as name or name(key=value,...)")
        tiers.append(_build_tier(text, match))
        at = match.end() + (match.end() == len(text) and not text.endswith("+"))
    return tiers[0] if len(tiers) == 1 else TieredDrafter(tiers)


def _build_tier(text: str, match: re.Match[str]) -> Drafter:
    name, arguments = match["name"], match["arguments"]
    begin, end = match.span("name")
    if name not in _factories:
        known = ", ".join(["auto", *_factories])
        raise _error(text, begin, end, f"is no drafter's name; known: {known}")
    keywords: dict[str, object] = {}
    if arguments is not None and arguments.strip():
        begin = match.start("arguments")
        for part in arguments.split(","):
            end = begin + len(part)
            key, equals, value = (piece.strip() for piece in part.partition("="))
            allowed = list(inspect.signature(_factories[name]).parameters)
            if not equals or not value or key not in allowed or key in keywords:
                known = ", ".join(f"{each}=..." for each in allowed) or "no arguments"
                raise _error(text, begin, end, f"is no argument of {name}; it takes {known}, once")
            keywords[key] = _value(value)
            begin = end + 1
    try:
        return _factories[name](**keywords)
    except (TypeError, ValueError) as error:
        raise _error(text, match.start("name"), match.end(), f"cannot be built: {error}") from error


def _value(text: str) -> object:
    """An int, a float, True, False or None where ``text`` reads so, else the text itself."""
    words = {"true": True, "false": False, "none": None}
    if text.lower() in words:
        return words[text.lower()]
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def _error(text: str, begin: int, end: int, what: str) -> ValueError:
    end = max(end, begin + 1)
    part = text[begin:end].rstrip("+").strip()
    mark = " " * begin + "^" * (end - begin)
    return ValueError(f"drafter: {part!r} {what}\n  {text}\n  {mark}")
