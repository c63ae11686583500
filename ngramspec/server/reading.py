"""Reading requests in worker threads, so that no request stops the event loop.

A body of some megabytes takes up to seconds to validate and to encode. A step that holds the GIL
stops the event loop even from a thread, so the size of each such step is bounded before it begins.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

from anyio import CapacityLimiter
from anyio.to_thread import run_sync
from fastapi import Request
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, ValidationError
from pydantic_core import from_json

from ngramspec._native.json_shape import json_shape
from ngramspec.server.errors import ApiError
from ngramspec.server.settings import Limits

LARGE = 64 << 10  # bytes of a body whose reading may take more than some milliseconds
SMALL_THREADS, LARGE_THREADS = 2, 1
DIGITS = 400  # of a number, in a row: reading n of them takes a time that grows with n * n

P = ParamSpec("P")
T = TypeVar("T")
Body = TypeVar("Body", bound=BaseModel)


class Lane:
    """Worker threads, and the requests that wait for one of them. Used in one event loop.

    Args:
        threads: that work at the same time.
        waiting: requests that may wait for a thread.
    """

    def __init__(self, threads: int, waiting: int) -> None:
        self._limiter = CapacityLimiter(threads)
        self._most, self._held = threads + waiting, 0

    async def run(self, function: Callable[[], T]) -> T:
        """What a function returns that is called in a thread.

        Raises:
            ApiError: too many requests wait.
        """
        if self._held >= self._most:
            raise ApiError(429, "too many requests wait already; try again", code="queue_full")
        self._held += 1
        try:
            return await run_sync(function, limiter=self._limiter)
        finally:
            self._held -= 1


class Reading:
    """Reads requests. Large ones have a thread to themselves, so small ones do not wait for them.

    Args:
        limits: of requests.
    """

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._small = Lane(SMALL_THREADS, limits.waiting)
        self._large = Lane(LARGE_THREADS, limits.waiting)

    async def body(self, request: Request, kind: type[Body]) -> Body:
        """The body of a request.

        Args:
            request: whose body has not been read.
            kind: what the body must be.

        Raises:
            ApiError: it is not sent as JSON, has too many values, or too many requests wait.
            RequestValidationError: it is not JSON, or not of this kind.
        """
        check_type(request.headers.get("content-type", ""))
        raw = await request.body()
        request.state.large = len(raw) > LARGE
        return await self.run(request, validated, raw, kind, self._limits)

    async def run(
        self, request: Request, function: Callable[P, T], *args: P.args, **named: P.kwargs
    ) -> T:
        """Call a function in a thread, on behalf of a request whose body has been read.

        Raises:
            ApiError: too many requests wait.
        """
        lane = self._large if request.state.large else self._small
        return await lane.run(lambda: function(*args, **named))


def check_type(given: str) -> None:
    """Refuse a body that is not declared as JSON.

    A page of another site cannot declare it without the server's permission.
    """
    kind = given.partition(";")[0].strip().lower()
    if kind != "application/json" and not (
        kind.startswith("application/") and kind.endswith("+json")
    ):
        raise ApiError(
            400, f"the body must be a JSON object, sent as application/json, got {given[:100]!r}"
        )


def validated(raw: bytes, kind: type[Body], limits: Limits) -> Body:
    """The body that JSON text describes; see ``Reading.body``."""
    try:
        return kind.model_validate(parsed(raw, limits))
    except ValidationError as error:
        found = error.errors(include_url=False)
        raise RequestValidationError(
            [{**each, "loc": ("body", *each["loc"])} for each in found]
        ) from None


def parsed(raw: bytes, limits: Limits) -> Any:
    """The value of a JSON text that is no larger than a body may be.

    Raises:
        ApiError: it has more values than ``limits`` allow.
        RequestValidationError: it is not JSON.
    """
    try:
        return json_value(raw, limits, "the body")
    except ValueError as error:
        found = {"type": "json_invalid", "loc": ("body",), "msg": str(error)}
        raise RequestValidationError([found]) from None


def json_value(raw: bytes, limits: Limits, place: str) -> Any:
    """The value of a JSON text; one that has too many values is not parsed.

    Args:
        raw: the text, in UTF-8.
        limits: of requests.
        place: what to blame.

    Raises:
        ApiError: it has more values than ``limits`` allow.
        ValueError: it is not JSON, is nested too deeply, or has a lone surrogate.
    """
    values, containers, digits = json_shape(raw)
    for name, most, given in (
        ("JSON arrays and objects", limits.containers, containers),
        ("JSON values", limits.values, values),
        ("digits in a row of a number", DIGITS, digits),
    ):
        if given > most:
            raise ApiError(
                400,
                f"{place} must have at most {most} {name}, got {given}",
                code="too_many_values",
            )
    return from_json(raw)
