"""Responses of any size: JSON, written without blocking other threads, and event streams."""

from __future__ import annotations

import asyncio
import json
import reprlib
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from itertools import islice
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from fastapi.sse import EventSourceResponse, format_sse_event
from pydantic import BaseModel
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.types import Message, Receive, Scope, Send

ERROR_TYPES = {
    **dict.fromkeys((400, 404, 405, 413, 415, 421), "invalid_request_error"),
    401: "authentication_error",
    429: "rate_limit_error",
    499: "cancelled_error",
    503: "service_unavailable_error",
}
ERROR_HEADERS = {
    401: {"WWW-Authenticate": "Bearer"},
    415: {"Accept-Encoding": "identity"},
    429: {"Retry-After": "1"},
}


class ErrorFields(BaseModel):
    """What is told about an error."""

    message: str
    type: str
    param: str | None
    code: str | None


class Error(BaseModel):
    """The JSON of an error."""

    error: ErrorFields


class ApiError(Exception):
    """A request is refused, or ended without an answer."""

    def __init__(
        self, status: int, message: str, *, param: str | None = None, code: str | None = None
    ) -> None:
        super().__init__(message)
        self.status, self.message, self.param, self.code = status, message, param, code

    def body(self) -> dict[str, Any]:
        kind = ERROR_TYPES.get(self.status, "server_error")
        error = {"message": self.message, "type": kind, "param": self.param, "code": self.code}
        return {"error": error}


def bad(param: str, message: str, code: str | None = None) -> ApiError:
    """The error for an invalid field; ``message`` gives the reason without the field's name."""
    return ApiError(400, f"{param}: {message}", param=param, code=code)


def refuse_unless(allowed: bool, param: str, message: str) -> None:
    """Raise an ApiError that names the field unless its value is allowed."""
    if not allowed:
        raise bad(param, message)


def shutting_down() -> ApiError:
    """The error for requests during the server's shutdown."""
    return ApiError(503, "the server is shutting down", code="shutting_down")


def queue_full() -> ApiError:
    """The error for requests that exceed the limit of waiting requests."""
    return ApiError(429, "too many requests wait already; try again", code="queue_full")


def answer_of(error: ApiError, headers: Mapping[str, str] | None = None) -> JSONResponse:
    """The HTTP response of an error, by default with the headers that belong to its status."""
    return JSONResponse(error.body(), error.status, headers or ERROR_HEADERS.get(error.status))


def add_handlers(app: FastAPI) -> None:
    """Answer every error of an application in this format."""

    async def answered(request: Request, error: Exception) -> JSONResponse:
        headers = error.headers if isinstance(error, HTTPException) else None
        return answer_of(api_error_of(error), headers)

    for kind in (ApiError, RequestValidationError, HTTPException, ClientDisconnect):
        app.add_exception_handler(kind, answered)


def api_error_of(error: Exception) -> ApiError:
    """The error that a client gets for an exception."""
    match error:
        case ApiError():
            return error
        case RequestValidationError():
            # The deepest one is of a union's best match.
            found = max(error.errors(), key=lambda at: (at["type"] == "too_long", len(at["loc"])))
            return _of_validation(found)
        case HTTPException():
            return ApiError(error.status_code, str(error.detail))
        case ClientDisconnect():  # no client reads it, but the log and the counts have no error 500
            return ApiError(400, "the client disconnected before it had sent the body")
    return ApiError(500, "the server failed on this request; its log says why")


def _of_validation(found: Any) -> ApiError:
    kind, message = str(found["type"]), str(found["msg"])
    if kind == "json_invalid":
        reason = found.get("ctx", {}).get("error", message)
        return ApiError(400, f"the body is not valid JSON: {reason}", code="json_invalid")
    path = [str(each) for each in found["loc"][1:]]  # the first is "body" or "header"
    if not path:
        return ApiError(400, "the body must be a JSON object")
    param = ".".join(path[: 2 if path[0] == "ngramspec" else 1])[:100]
    given = found.get("input")
    if isinstance(given, int | float | str):
        message += f", got {reprlib.repr(given)}"
    return ApiError(400, f"{param}: {message}", param=param, code=kind)


_ENCODER = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":"))
PART_PIECES = 4096  # pieces of few characters that are joined in one operation that holds the GIL
DONE = format_sse_event(data_str="[DONE]")


def json_parts(value: Any) -> Iterator[str]:
    """Parts of a value's JSON text, each written without holding the GIL for long."""
    pieces = _ENCODER.iterencode(value)
    while part := "".join(islice(pieces, PART_PIECES)):
        yield part


def json_response(value: Any) -> Response:
    """The response with a value's JSON text. For a large value this can take seconds."""
    parts = b"".join([part.encode() for part in json_parts(value)])
    return Response(parts, media_type="application/json")


class Stream(EventSourceResponse):
    """Streams JSON values as events; an error or the server's shutdown is the last one."""

    def __init__(
        self, events: AsyncIterator[Any], at_end: Callable[[], None], *, done: bool = True
    ) -> None:
        super().__init__(self._encoded(events), headers={"Cache-Control": "no-cache"})
        self._at_end, self._end = at_end, DONE if done else b""

    async def _encoded(self, events: AsyncIterator[Any]) -> AsyncIterator[bytes]:
        try:
            async for event in events:
                yield event_of(event)
        except ApiError as error:
            yield event_of(error.body())
        if self._end:
            yield self._end

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        began = False

        async def noted(message: Message) -> None:
            nonlocal began
            began = True
            await send(message)

        try:
            await super().__call__(scope, receive, noted)
        except asyncio.CancelledError:
            if not began:
                raise
            last = event_of(shutting_down().body()) + self._end
            await send({"type": "http.response.body", "body": last, "more_body": False})
        finally:
            self._at_end()  # even if the stream never began


def event_of(value: Any) -> bytes:
    """A server-sent event with the JSON of a value."""
    return format_sse_event(data_str=_ENCODER.encode(value))
