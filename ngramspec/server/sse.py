"""Streams of server-sent events, encoded by FastAPI."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from typing import Any

from fastapi.sse import EventSourceResponse, format_sse_event
from starlette.types import Receive, Scope, Send

from ngramspec.server.errors import ApiError


class Stream(EventSourceResponse):
    """A stream that does something at its end, whoever ended it, and even if it never began."""

    def __init__(self, content: AsyncIterator[bytes], at_end: Callable[[], None]) -> None:
        super().__init__(content, headers={"Cache-Control": "no-cache"})
        self._at_end = at_end

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._at_end()


def stream_of(
    events: AsyncIterator[Any], at_end: Callable[[], None], *, done: bool = True
) -> Stream:
    """The answer that sends JSON values as they come.

    An error after the first event is sent as an event, in the shape of an error's body.

    Args:
        events: pydantic models, or plain JSON values.
        at_end: called when the stream has ended, or its client has gone.
        done: whether ``[DONE]`` ends the stream, as OpenAI's API has it.
    """

    async def encoded() -> AsyncIterator[bytes]:
        try:
            async for event in events:
                yield format_sse_event(data_str=as_json(event))
        except ApiError as error:
            yield format_sse_event(data_str=json.dumps(error.body()))
        if done:
            yield format_sse_event(data_str="[DONE]")

    return Stream(encoded(), at_end)


def as_json(event: Any) -> str:
    """An event's JSON, without fields that were not set."""
    if hasattr(event, "model_dump_json"):
        text: str = event.model_dump_json(exclude_unset=True)
        return text
    return json.dumps(event)
