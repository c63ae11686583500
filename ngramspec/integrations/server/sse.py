"""Streams of server-sent events, encoded by FastAPI."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

from fastapi.sse import EventSourceResponse, format_sse_event

from ngramspec.integrations.server.errors import ApiError


def stream_of(events: AsyncIterator[Any], *, done: bool = True) -> EventSourceResponse:
    """The answer that sends JSON values as they come.

    An error after the first event is sent as an event, in the shape of an error's body.

    Args:
        events: pydantic models, or plain JSON values.
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

    return EventSourceResponse(encoded(), headers={"Cache-Control": "no-cache"})


def as_json(event: Any) -> str:
    """An event's JSON, without fields that were not set."""
    if hasattr(event, "model_dump_json"):
        text: str = event.model_dump_json(exclude_unset=True)
        return text
    return json.dumps(event)
