"""Reading requests in worker threads, so that no request blocks the event loop.

Validating and encoding a body of some megabytes can take seconds. Even in a thread, an operation
that holds the GIL blocks the event loop, so the size of each such operation is bounded beforehand.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from difflib import get_close_matches
from typing import Any, ParamSpec, TypeVar
from urllib.parse import quote

import numpy as np
from anyio import CapacityLimiter
from anyio.to_thread import run_sync
from fastapi import Request
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, ValidationError
from pydantic_core import from_json

from ngramspec.server.errors import ApiError, bad, queue_full
from ngramspec.server.llama_fields import NEUTRAL
from ngramspec.server.settings import Limits

LARGE_BODY_BYTES = 64 << 10  # reading a larger body can take many milliseconds; not tuned
SMALL_THREADS, LARGE_THREADS = 2, 1
MAX_DIGITS = 400  # consecutive digits of a number: parsing n of them takes O(n * n)
MAX_MEMBERS = 4096  # of an object
MAX_NAMED_FIELDS = 8  # in a warning's header; not tuned
MIN_SIMILARITY = 0.75  # of an unknown field to the one that an error suggests; not tuned
# Fields that constrain an answer, in llama.cpp's, vLLM's and SGLang's APIs. Where they are unknown
# they are always refused: an answer without the constraint would be wrong.
CONSTRAINING_FIELDS = (
    *("grammar", "json_schema", "guided_json", "guided_regex", "guided_choice", "guided_grammar"),
    *("structured_outputs", "regex", "ebnf"),
)
# Names of one thing in OpenAI's and llama.cpp's APIs, to suggest the other one.
SAME_FIELDS = {
    **dict.fromkeys(("max_tokens", "max_completion_tokens", "max_new_tokens"), ("n_predict",)),
    "n_predict": ("max_completion_tokens", "max_tokens"),
    **dict.fromkeys(CONSTRAINING_FIELDS, ("response_format", "grammar", "json_schema")),
}
# Fields of OpenAI's and llama.cpp's APIs that do not change the answer's text, so they can be
# ignored: they concern the user, billing, storage, and the slot or cache to use.
IGNORABLE_FIELDS = {
    *("metadata", "prompt_cache_retention"),
    *("safety_identifier", "service_tier", "store"),
    *("cache_prompt", "id_slot", "n_cache_reuse", "samplers", "sse_ping_interval"),
    *("t_max_prompt_ms", "timings_per_token"),
}

P = ParamSpec("P")
T = TypeVar("T")
Body = TypeVar("Body", bound=BaseModel)


class Lane:
    """Worker threads, for which at most ``waiting`` requests wait. Used in one event loop."""

    def __init__(self, threads: int, waiting: int) -> None:
        self._limiter = CapacityLimiter(threads)
        self._most, self._held = threads + waiting, 0

    async def run(self, function: Callable[[], T]) -> T:
        """Call a function in a thread; an ApiError if too many requests are waiting."""
        if self._held >= self._most:
            raise queue_full()
        self._held += 1
        try:
            return await run_sync(function, limiter=self._limiter)
        finally:
            self._held -= 1


class Reading:
    """Reads requests. Large ones use a separate thread, so that small ones do not wait for them."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._small = Lane(SMALL_THREADS, limits.waiting)
        self._large = Lane(LARGE_THREADS, limits.waiting)

    async def body(self, request: Request, kind: type[Body]) -> Body:
        """The body of a request, of type ``kind``.

        A RequestValidationError says that it is not JSON or not of this type; an ApiError that it
        is not sent as JSON or has too many values, or that too many requests are waiting.
        """
        check_type(request.headers)
        raw = await request.body()
        request.state.large = len(raw) > LARGE_BODY_BYTES
        return await self.run(request, validated, raw, kind, self._limits)

    async def run(
        self, request: Request, function: Callable[P, T], *args: P.args, **named: P.kwargs
    ) -> T:
        """Call a function in a thread for a request whose body has been read, as ``Lane.run``."""
        lane = self._large if request.state.large else self._small
        return await lane.run(lambda: function(*args, **named))


def check_type(headers: Mapping[str, str]) -> None:
    """Refuse a body that is compressed, or that is not declared as JSON.

    Browsers do not let a page of another site declare JSON without the server's permission.
    """
    coding, given = headers.get("content-encoding", ""), headers.get("content-type", "")
    if coding.strip().lower() not in ("", "identity"):
        message = f"the body must not be compressed, got Content-Encoding {coding[:100]!r}"
        raise ApiError(415, message, code="unsupported_encoding")
    kind = given.partition(";")[0].strip().lower()
    if kind != "application/json" and not (
        kind.startswith("application/") and kind.endswith("+json")
    ):
        raise ApiError(
            400, f"the body must be a JSON object, sent as application/json, got {given[:100]!r}"
        )


def validated(raw: bytes, kind: type[Body], limits: Limits) -> Body:
    """The body of a JSON text; see ``Reading.body``."""
    found: list[Any]
    try:
        return kind.model_validate(json_value(raw, limits, "the body"))
    except ValidationError as error:
        found = error.errors(include_url=False)
    except ValueError as error:
        found = [{"type": "json_invalid", "loc": (), "msg": str(error)}]
    raise RequestValidationError([{**each, "loc": ("body", *each["loc"])} for each in found])


def json_value(raw: bytes, limits: Limits, place: str) -> Any:
    """The value of a JSON text in UTF-8, parsed only if it has few enough values.

    An ApiError names ``place`` if there are too many for ``limits``. A ValueError is raised if the
    text is not JSON, is nested too deeply, or has a lone surrogate.
    """
    values, containers, members, digits = json_shape(raw)
    for name, most, given in (
        ("JSON arrays and objects", most_of(128, limits), containers),
        ("JSON values", most_of(16, limits), values),
        ("members of JSON objects", most_of(64, limits), members),
        ("digits in a row of a number", MAX_DIGITS, digits),
    ):
        check_count(place, most, name, given)
    # NaN is not JSON. The cache of strings would make parsing up to seven times slower.
    value = from_json(raw, allow_inf_nan=False, cache_strings="none")
    check_members(value, place)
    return value


def json_shape(raw: bytes) -> tuple[int, int, int, int]:
    """Bounds of what a parser would create from a JSON text, without holding the GIL for long.

    An upper bound of the number of values, including arrays and objects; the number of arrays and
    objects; the number of members of objects; and the longest run of digits. A parser stops at the
    first error, so the bounds also hold for text that is not valid JSON.
    """
    text = np.frombuffer(raw, np.uint8)
    plain = np.flatnonzero(text != ord("\\"))
    backslashes = np.diff(plain, prepend=-1) - 1  # before each of these bytes
    text = text[plain]
    quotes = (text == ord('"')) & (backslashes % 2 == 0)
    text = text[~np.logical_xor.accumulate(quotes)]  # outside strings
    others = np.flatnonzero((text < ord("0")) | (text > ord("9")))
    digits = int(np.diff(others, prepend=-1, append=len(text)).max()) - 1
    counts = np.bincount(text, minlength=256)
    opened = int(counts[ord("[")] + counts[ord("{")])
    return int(counts[ord(",")]) + opened + 1, opened, int(counts[ord(":")]), digits


def most_of(size: int, limits: Limits) -> int:
    """How many things of a JSON body are allowed: one for every ``size`` bytes of the limit."""
    return max(limits.body // size, 1024)


def check_count(place: str, most: int, things: str, given: int) -> None:
    """Refuse more things than allowed in a part of a request."""
    if given > most:
        message = f"{place} must have at most {most} {things}, got {given}"
        raise ApiError(400, message, code="too_many_values")


def check_members(value: Any, place: str) -> None:
    """Refuse a JSON value with an object of very many members, each of which may be an error."""
    containers = [value] if isinstance(value, dict | list) else []
    while containers:
        each = containers.pop()
        if isinstance(each, dict):
            check_count(place, MAX_MEMBERS, "members in an object", len(each))
        children = each.values() if isinstance(each, dict) else each
        containers += [child for child in children if isinstance(child, dict | list)]


def check_fields(body: BaseModel, request: Request, mode: str, idle: Iterable[str] = ()) -> None:
    """Refuse unknown fields that might change the answer, or name them in the response's headers.

    ``mode`` is "refuse" or "warn". Fields of the body's objects are named as ``object.field``. The
    known fields ``idle``, which the model's template does not use, are treated as unknown ones.
    """
    objects = [(f"{name}.", value) for name, value in body if isinstance(value, BaseModel)]
    unknown = [
        (place, name, type(owner).model_fields)
        for place, owner in (("", body), *objects)
        for name in owner.model_extra or {}
        if name not in IGNORABLE_FIELDS
    ]
    fields = type(body).model_fields
    unknown += [("", name, fields) for name in idle if getattr(body, name, None) is not None]
    refused = unknown
    if mode == "warn":
        names = [(place + name)[:100] for place, name, _ in unknown[:MAX_NAMED_FIELDS]]
        if names:
            request.scope["state"]["ignored"] = ", ".join(quote(name, safe="") for name in names)
        refused = [
            (place, name, fields)
            for place, name, fields in unknown
            if (not place and name in CONSTRAINING_FIELDS) or place == "response_format."
        ]
    if refused:
        place, name, fields = refused[0]
        raise bad((place + name)[:100], _why_unknown(name, fields), "unknown_parameter")


def _why_unknown(name: str, fields: Iterable[str]) -> str:
    """The error's message about an unknown field of an object that has the given fields."""
    if name in fields:
        return "the model's chat template does not use it"
    same = [each for each in SAME_FIELDS.get(name, ()) if each in fields]
    if not same and name in NEUTRAL:
        alone = " together with a penalty" if name == "repeat_last_n" else ""
        return f"this server supports only {json.dumps(NEUTRAL[name])} here{alone}"
    known = same or get_close_matches(name[:100], fields, 1, cutoff=MIN_SIMILARITY)
    hint = f"; did you mean {known[0]!r}?" if known else ""
    return f"this server does not know the field{hint}"
