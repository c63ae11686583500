"""Drafters by name: ``build_drafter("copy+ngram(order=4,window=4096)+unigram")``."""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Literal, get_args

from ngramspec.drafters.base import Drafter
from ngramspec.drafters.value import RECYCLE_TOP_K, SOURCES, ValueDrafter
from ngramspec.errors import check_choice
from ngramspec.stores import Store, open_stores

AUTO = "copy+ngram+unigram+recycle(always=false)"
Policy = Literal["value", "priority"]
Calibrated = Literal["shared", "request"]
POLICIES, CALIBRATIONS = get_args(Policy), get_args(Calibrated)
NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_-]*")
QUOTED = r'"(?:[^"\\]|\\.)*"'  # a JSON string
SOURCE_PATTERN = re.compile(
    rf'\s*(?P<name>[^+()]*?)\s*(?:\((?P<arguments>(?:{QUOTED}|[^()"])*)\)\s*)?(?:\+|$)'
)
ARGUMENT = re.compile(rf'(?:{QUOTED}|[^,"])*')

# Class names in ngramspec.drafters, or callables added by ``register_drafter``.
_factories: dict[str, str | Callable[..., Drafter]] = {
    "copy": "CopyDrafter",
    "ngram": "NGramDrafter",
    "unigram": "UnigramDrafter",
    "store": "StoreDrafter",
    "recycle": "RecycleDrafter",
    "model": "ModelDrafter",
    "mtp": "MtpDrafter",
    "random": "RandomDrafter",
    "none": "NullDrafter",
}
HEADS = ("model", "mtp")  # drafters that run a model
# The arguments with which a drafter can be a source of the value drafter; ``...``: any value.
JOINABLE: dict[str, dict[str, object]] = {
    "copy": {"min_match": ...},
    "ngram": {"order": 4, "window": None, "mode": "value"},
    "unigram": {},
    "recycle": {"top_k": RECYCLE_TOP_K, "always": ...},
}


def _factory(name: str) -> Callable[..., Drafter]:
    """The callable that builds the named drafter. Its module is imported on first use."""
    factory = _factories[name]
    return _class(factory) if isinstance(factory, str) else factory


def _class(name: str) -> Callable[..., Drafter]:
    found: Callable[..., Drafter] = getattr(import_module("ngramspec.drafters"), name)
    return found


def register_drafter(name: str, factory: Callable[..., Drafter]) -> None:
    """Register a drafter, so that ``build_drafter`` finds it by name.

    Args:
        name: letters, digits, ``_`` and ``-``; not registered yet, and not "auto".
        factory: called with the arguments in brackets as keywords; returns a Drafter.

    Raises:
        ValueError: the name is registered already or is not valid in a spec.
    """
    if not NAME.fullmatch(name):
        raise ValueError(f"name must be letters, digits, '_' and '-', got {name!r}")
    if name == "auto" or name in _factories:
        raise ValueError(f"a drafter named {name!r} exists already")
    _factories[name] = factory


def build_drafter(
    spec: str | Drafter,
    *,
    policy: Policy = "value",
    stores: Sequence[Store] = (),
    calibration: Calibrated = "shared",
) -> Drafter:
    """Build a drafter from its description; a Drafter is returned with the settings applied.

    Args:
        spec: draft sources separated by ``+``, each ``name`` or ``name(key=value,...)``. "auto" is
            the best default for one request: "copy+ngram+unigram", and Token Recycling ("recycle")
            in trees where a forward of many positions costs little more than one. One head may
            follow: "auto+model(FOLDER)" or "auto+mtp".
        policy: "value": at every position the most probable token is drafted, whichever source it
            comes from. Every token has a confidence, and a draft ends where expected tokens per
            cost are highest. Sources that cannot be compared token by token (an n-gram table with
            a window, a custom drafter) draft in order of priority, with the measured acceptance as
            confidence. "priority": the sources in order, highest priority first. Each continues the
            draft of those before it. There is no confidence.
        stores: what to draft from in addition to each sequence's own text: corpora, paths of
            corpora, and namespaces of shared stores.
        calibration: "shared": all sequences share the learned estimates of how often drafts are
            right, which contain no text. "request": each sequence learns separately, so no
            request's drafts depend on another's.

    Raises:
        ValueError: an invalid part of the spec, which is marked, with the valid choices; or an
            unknown policy or calibration.

    Examples:
        >>> build_drafter("copy+ngram(order=4)+unigram", policy="priority").source_names
        ('copy', 'ngram', 'unigram')
    """
    check_choice("policy", policy, POLICIES)
    check_choice("calibration", calibration, CALIBRATIONS)
    opened = open_stores(stores)
    drafter = spec if isinstance(spec, Drafter) else _drafter(spec, policy)
    drafter = drafter.with_calibration(by_request=calibration == "request")
    return drafter.with_stores(opened) if opened else drafter


def _drafter(spec: str, policy: str) -> Drafter:
    """Build a drafter from its description."""
    if not isinstance(spec, str):
        raise TypeError(f"drafter must be a string or a Drafter, got {type(spec).__name__}")
    text = re.sub(r"^\s*auto\s*(?=\+|$)", AUTO, spec)
    sources: list[tuple[re.Match[str], dict[str, object]]] = []
    at = 0
    while at <= len(text):
        match = SOURCE_PATTERN.match(text, at)
        if match is None:
            what = "cannot be read as name or name(key=value,...); quote values with brackets: "
            raise _error(text, at, len(text), f'{what}model("a (b)")')
        sources.append((match, _arguments(text, match)))
        at = match.end() + (match.end() == len(text) and not text.endswith("+"))
    heads = [each for each in sources if each[0]["name"] in HEADS]
    tables = [each for each in sources if each not in heads]
    if policy == "value" and len(heads) <= 1 and tables and _joinable(tables):
        given = {
            k: v for _, each in tables for k, v in each.items() if k in ("min_match", "always")
        }
        names = [match["name"] for match, _ in tables]
        drafter = _made(text, tables[0][0], ValueDrafter, {"sources": names, **given})
        for match, arguments in heads:
            head = _made(text, match, _factory(match["name"]), arguments)
            drafter = _class("HeadedDrafter")(drafter, head)
        return drafter
    # Only the value drafter can use recycled tokens just where they are cheap.
    cheap = {"always": False}
    used = [each for each in sources if (each[0]["name"], each[1]) != ("recycle", cheap)] or sources
    built = [_made(text, match, _factory(match["name"]), given) for match, given in used]
    drafter = built[0] if len(built) == 1 else _class("PriorityDrafter")(built)
    own = len(built) > 1 or sources[0][0]["name"] in SOURCES
    return _class("CalibratedDrafter")(drafter) if policy == "value" and own else drafter


def _joinable(sources: list[tuple[re.Match[str], dict[str, object]]]) -> bool:
    names = [match["name"] for match, _ in sources]
    return len(set(names)) == len(names) and all(
        name in JOINABLE
        and all(JOINABLE[name].get(key, JOINABLE) in (value, ...) for key, value in given.items())
        for name, given in zip(names, (given for _, given in sources), strict=True)
    )


def _takes(name: str, key: str) -> bool:
    """Whether a drafter has an argument of this name; of the usual ones no module is loaded."""
    return key in JOINABLE.get(name, ()) or key in inspect.signature(_factory(name)).parameters


def _arguments(text: str, match: re.Match[str]) -> dict[str, object]:
    """A drafter's arguments by name, or an error that marks the invalid part."""
    name, arguments = match["name"], match["arguments"]
    begin, end = match.span("name")
    if name not in _factories:
        known = ", ".join(["auto", *_factories])
        raise _error(text, begin, end, f"is no drafter's name; known: {known}")
    keywords: dict[str, object] = {}
    if arguments is not None and arguments.strip():
        begin, last = match.span("arguments")
        while begin <= last:
            found = ARGUMENT.match(text, begin, last)
            assert found is not None  # it matches the empty string, too
            part, end = found.group(), found.end()
            named = "=" in part and not part.lstrip().startswith('"')
            if name == "model" and not keywords and not named:
                part = f"path={part}"
            key, equals, value = (piece.strip() for piece in part.partition("="))
            if not equals or not value or key in keywords or not _takes(name, key):
                allowed = inspect.signature(_factory(name)).parameters
                known = ", ".join(f"{each}=..." for each in allowed) or "no arguments"
                raise _error(text, begin, end, f"is no argument of {name}; it takes {known}, once")
            try:
                keywords[key] = _value(value)
            except ValueError as error:
                raise _error(text, begin, end, f"is no JSON string: {error}") from error
            begin = end + 1
    return keywords


def _made(
    text: str, match: re.Match[str], factory: Callable[..., Drafter], keywords: dict[str, object]
) -> Drafter:
    try:
        return factory(**keywords)
    except (TypeError, ValueError) as error:
        raise _error(text, match.start("name"), match.end(), f"cannot be built: {error}") from error


def _value(text: str) -> object:
    """The string that ``text`` quotes, else an int, a float, True, False or None if possible."""
    if text.startswith('"'):
        return json.loads(text)
    words = {"true": True, "false": False, "none": None}
    if text.lower() in words:
        return words[text.lower()]
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def quoted(text: str) -> str:
    """A string as an argument in a spec: as a JSON string unless it can be read without quotes."""
    plain = re.fullmatch(r"[^()=,\"+\s]+", text) and _value(text) == text
    return text if plain else json.dumps(text, ensure_ascii=False)


def _error(text: str, begin: int, end: int, what: str) -> ValueError:
    end = max(end, begin + 1)
    part = text[begin:end].rstrip("+").strip()
    mark = " " * begin + "^" * (end - begin)
    return ValueError(f"drafter: {part!r} {what}\n  {text}\n  {mark}")
