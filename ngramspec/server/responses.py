"""Responses of any size: JSON, written without blocking other threads, and event streams."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

from fastapi import Response
from fastapi.sse import EventSourceResponse, format_sse_event
from starlette.types import Message, Receive, Scope, Send

from ngramspec.server.errors import ApiError, shutting_down

_ENCODER = json.JSONEncoder(
    ensure_ascii=False, allow_nan=False, separators=(",", ":"), default=dict
)
PART_PIECES = 4096  # pieces of few characters that are joined at once; not tuned
DONE = format_sse_event(data_str="[DONE]")


def json_parts(value: Any) -> Iterator[str]:
    """Parts of a value's JSON text, each written without holding the GIL for long.

    Args:
        value: a JSON value; it may contain pydantic models.
    """
    pieces = []
    for piece in _ENCODER.iterencode(value):
        pieces.append(piece)
        if len(pieces) == PART_PIECES:
            yield "".join(pieces)
            pieces.clear()
    yield "".join(pieces)


def json_response(value: Any) -> Response:
    """The response with a value's JSON text. For a large value this can take seconds."""
    parts = b"".join([part.encode() for part in json_parts(value)])
    return Response(parts, media_type="application/json")


class Stream(EventSourceResponse):
    """A stream that always calls ``at_end``, even if it never began.

    If its task is cancelled, as at the server's shutdown, the stream ends with an error event.
    """

    def __init__(
        self, content: AsyncIterator[bytes], at_end: Callable[[], None], done: bool
    ) -> None:
        super().__init__(content, headers={"Cache-Control": "no-cache"})
        self._at_end, self._done = at_end, done

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
            last = error_event(shutting_down()) + (DONE if self._done else b"")
            await send({"type": "http.response.body", "body": last, "more_body": False})
        finally:
            self._at_end()


def error_event(error: ApiError) -> bytes:
    """An error as an event."""
    return format_sse_event(data_str=json.dumps(error.body()))


def stream_of(
    events: AsyncIterator[Any], at_end: Callable[[], None], *, done: bool = True
) -> Stream:
    """The response that streams pydantic models or JSON values as events.

    An error after the first event is sent as an event with the error's JSON. ``at_end`` is called
    when the stream has ended or the client has disconnected. ``done``: end with ``[DONE]``, as
    OpenAI's API.
    """

    async def encoded() -> AsyncIterator[bytes]:
        try:
            async for event in events:
                yield format_sse_event(data_str=as_json(event))
        except ApiError as error:
            yield error_event(error)
        if done:
            yield DONE

    return Stream(encoded(), at_end, done)


def as_json(event: Any) -> str:
    """An event's JSON, without unset fields."""
    if hasattr(event, "model_dump_json"):
        text: str = event.model_dump_json(exclude_unset=True)
        return text
    return json.dumps(event)
