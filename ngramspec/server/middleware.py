"""Middleware for every request: host, API key, body size, and counting of responses."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from uuid import uuid4

from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ngramspec.server.auth import ANYONE, authenticate
from ngramspec.server.errors import ApiError, answer_of, shutting_down
from ngramspec.server.hosts import AllowedHosts
from ngramspec.server.settings import ServerSettings

PUBLIC_PATHS = ("/health", "/v1/health")  # no key is required
REQUEST_ID_HEADER = "X-Request-Id"  # as in OpenAI's API
IGNORED_FIELDS_HEADER = "X-Ignored-Fields"  # names unknown fields of the body


class Front:
    """Admits requests before their bodies are read, and answers those that end early.

    A request is refused because of its Host, its key, or the declared or actual size of its body.
    The user is stored in ``scope["state"]``. A task that is cancelled by the server's shutdown
    still answers, with an error in this server's format.

    ``count`` is called with the route and the status of every response. ``running`` holds the task
    of every request while it is answered.
    """

    def __init__(
        self,
        app: ASGIApp,
        settings: ServerSettings,
        count: Callable[[str, str], None],
        running: set[asyncio.Task[None]],
    ) -> None:
        self._app, self._count, self._running = app, count, running
        self._keys, self._most = settings.keys, settings.limits.body
        self._too_large = f"the body must have at most {self._most} bytes"
        self._hosts = AllowedHosts(settings.allowed_hosts)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        began = False
        state = scope.setdefault("state", {})

        async def counted(message: Message) -> None:
            nonlocal began
            if message["type"] == "http.response.start":
                began = True
                route = str(getattr(scope.get("route"), "path", "other"))
                self._count(route, str(message["status"]))
                headers = MutableHeaders(scope=message)
                headers[REQUEST_ID_HEADER] = f"req_{uuid4().hex}"
                if ignored := state.get("ignored"):
                    headers[IGNORED_FIELDS_HEADER] = ignored
            await send(message)

        task = asyncio.current_task()
        assert task is not None
        self._running.add(task)
        try:
            state["user"] = self._admit(scope)
            await self._app(scope, self._limited(receive), counted)
        except ApiError as error:
            await answer_of(error)(scope, receive, counted)
        except asyncio.CancelledError:
            if began:
                raise
            await answer_of(shutting_down())(scope, receive, counted)
        finally:
            self._running.discard(task)

    def _admit(self, scope: Scope) -> str:
        """The user of a request; raises an ApiError if it is not admitted."""
        headers = Headers(scope=scope)
        for host in headers.getlist("host") or [""]:
            if not self._hosts.allow(host):
                message = "the request must have a Host header"
                if "host" in headers:
                    refused = f"this server does not answer to the host {host[:200]!r}"
                    message = f"{refused}; see --allowed-hosts"
                raise ApiError(421, message, code="host_not_allowed")
        user = ANYONE
        if scope["path"] not in PUBLIC_PATHS:
            user = authenticate(self._keys, headers.get("authorization"), headers.get("x-api-key"))
        length = headers.get("content-length", "")
        if length.isdecimal() and int(length) > self._most:
            raise ApiError(413, self._too_large, code="body_too_large")
        return user

    def _limited(self, receive: Receive) -> Receive:
        size = 0

        async def limited() -> Message:
            nonlocal size
            message = await receive()
            size += len(message.get("body", b""))
            if size > self._most:
                raise HTTPException(413, self._too_large)
            return message

        return limited
