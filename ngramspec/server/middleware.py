"""Around every request: the limit of its body, and a count of its answer."""

from __future__ import annotations

from collections.abc import Callable

from fastapi.responses import JSONResponse
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ngramspec.server.errors import ApiError


class Front:
    """Refuses large bodies, by their length if the client says it, else while they come.

    Args:
        app: what answers.
        most: bytes of a body.
        count: called with the route and the status of every answer.
    """

    def __init__(self, app: ASGIApp, most: int, count: Callable[[str, str], None]) -> None:
        self._app, self._most, self._count = app, most, count

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def counted(message: Message) -> None:
            if message["type"] == "http.response.start":
                route = str(getattr(scope.get("route"), "path", "other"))
                self._count(route, str(message["status"]))
            await send(message)

        length = Headers(scope=scope).get("content-length", "")
        if length.isdecimal() and int(length) > self._most:
            error = ApiError(413, self._message, code="body_too_large")
            await JSONResponse(error.body(), error.status)(scope, receive, counted)
            return
        await self._app(scope, self._limited(receive), counted)

    def _limited(self, receive: Receive) -> Receive:
        size = 0

        async def limited() -> Message:
            nonlocal size
            message = await receive()
            size += len(message.get("body", b""))
            if size > self._most:
                raise HTTPException(413, self._message)
            return message

        return limited

    @property
    def _message(self) -> str:
        return f"the body must have at most {self._most} bytes"
