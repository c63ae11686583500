"""Responses of any size: JSON, written without blocking other threads, and event streams."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Iterator
from itertools import islice
from typing import Any

from fastapi import Response
from fastapi.sse import EventSourceResponse, format_sse_event
from pydantic import BaseModel
from starlette.types import Message, Receive, Scope, Send

from ngramspec.server.errors import ApiError, shutting_down


def _set_fields(value: BaseModel) -> dict[str, Any]:
    """A model's fields that were given, as in events."""
    extra = value.model_extra or {}
    return {name: each for name, each in value if name in value.model_fields_set or name in extra}


_ENCODER = json.JSONEncoder(
    ensure_ascii=False, allow_nan=False, separators=(",", ":"), default=_set_fields
)
PART_PIECES = 4096  # pieces of few characters that are joined at once; not tuned
DONE = format_sse_event(data_str="[DONE]")


def json_parts(value: Any) -> Iterator[str]:
    """Parts of the JSON text of a value, which may contain pydantic models, without unset fields.

    Each part is written without holding the GIL for long.
    """
    pieces = _ENCODER.iterencode(value)
    while part := "".join(islice(pieces, PART_PIECES)):
        yield part


def json_response(value: Any) -> Response:
    """The response with a value's JSON text. For a large value this can take seconds."""
    parts = b"".join([part.encode() for part in json_parts(value)])
    return Response(parts, media_type="application/json")


class Stream(EventSourceResponse):
    """Streams pydantic models, without unset fields, or JSON values as events.

    An error after the first event, or the server's shutdown, which cancels the task, is sent as an
    event with the error's JSON. ``at_end`` is always called: when the stream has ended, when the
    client has disconnected, and when the stream never began. ``done``: end with ``[DONE]``, as
    OpenAI's API.
    """

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
            self._at_end()


def event_of(value: Any) -> bytes:
    """A server-sent event with the JSON of a value."""
    if isinstance(value, BaseModel):
        return format_sse_event(data_str=value.model_dump_json(exclude_unset=True))
    return format_sse_event(data_str=json.dumps(value))
