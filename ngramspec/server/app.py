"""The FastAPI application: its routes, and starting and stopping the engine."""

from __future__ import annotations

import asyncio
import gc
import hmac
import re
import time
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from functools import cache
from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import Annotated, Any, NamedTuple
from uuid import uuid4

import numpy as np
from fastapi import FastAPI, Header, Request, Response
from fastapi.openapi.utils import get_openapi
from fastapi.responses import JSONResponse, PlainTextResponse
from prometheus_client import CONTENT_TYPE_LATEST
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema
from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ngramspec import __version__
from ngramspec.errors import UnsupportedError
from ngramspec.hf_model.compat.models import is_encoder_decoder
from ngramspec.hf_model.pool import CachePool, cache_maker, why_not_kept
from ngramspec.server import llama
from ngramspec.server.bodies import (
    ChatBody,
    CompletionBody,
    DetokenizeBody,
    InfillBody,
    LlamaBody,
    TokenizeBody,
    check_fields,
)
from ngramspec.server.engine import AnswerRunner, CompletionRequest, Engine, Sampling
from ngramspec.server.llama import LlamaReply
from ngramspec.server.metrics import Metrics, private_logs
from ngramspec.server.openai_api import ChatReply, CompletionReply, apply_template
from ngramspec.server.responses import (
    ApiError,
    Error,
    add_handlers,
    answer_of,
    api_error_of,
    shutting_down,
)
from ngramspec.server.service import Reply, Service
from ngramspec.server.settings import ANYONE, Client, ServerSettings
from ngramspec.speculator import Speculator

ANY_HOST = "*"
HOST_HEADER = re.compile(r"(\[[^\]]*\]|[^:\[\]]*)(?::\d*)?")  # a name or an address, and a port


class AllowedHosts:
    """Decides by a request's ``Host`` whether it is answered.

    Localhost and loopback addresses are always allowed, and additionally ``names``, which are names
    and addresses without ports; any other entry raises a ValueError. An unspecified address
    (``0.0.0.0``) allows every address; ``*`` allows every name.
    """

    def __init__(self, names: Iterable[str]) -> None:
        self._hosts: set[str | IPv4Address | IPv6Address] = set()
        for name in names:
            host = name if name == ANY_HOST else _host_of(name)
            if host is None:
                wrong = f"a host must be a name or an address without a port, got {name!r}"
                raise ValueError(wrong)
            self._hosts.add(host)
        self._any_address = any(getattr(each, "is_unspecified", False) for each in self._hosts)

    def allow(self, header: str) -> bool:
        """Whether a request with this ``Host`` is answered; a missing one is like an empty one."""
        found = HOST_HEADER.fullmatch(header)
        host = _host_of(found[1]) if found else None
        if isinstance(host, str):
            local = host == "localhost" or host.endswith(".localhost")
        else:
            local = host is not None and (host.is_loopback or self._any_address)
        return local or host in self._hosts or ANY_HOST in self._hosts


def _host_of(text: str) -> str | IPv4Address | IPv6Address | None:
    """A lower-case name or an address; None if the text is neither."""
    bare = text[1:-1] if text.startswith("[") and text.endswith("]") else text
    try:
        address = ip_address(bare)
    except ValueError:
        name = bare.lower().removesuffix(".")
        return name if re.fullmatch(r"[\w-]+(\.[\w-]+)*", name) and bare == text else None
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return mapped or address


def authenticate(keys: Mapping[str, str], authorization: str | None, x_api_key: str | None) -> str:
    """The user whose key a request has; an ApiError if the key is missing or wrong."""
    if not keys:
        return ANYONE
    scheme, given = "bearer", x_api_key or ""
    if authorization is not None:
        scheme, _, given = authorization.partition(" ")
    found = None
    for user, key in keys.items():  # all of them, each in constant time: the duration tells nothing
        if hmac.compare_digest(key.encode(), given.strip().encode()):
            found = user
    if found is None or scheme.lower() != "bearer":
        raise ApiError(401, "the API key is missing or wrong", code="invalid_api_key")
    return found


PUBLIC_PATHS = ("/health", "/v1/health")  # no key is required
REQUEST_ID_HEADER = "X-Request-Id"  # as in OpenAI's API
IGNORED_FIELDS_HEADER = "X-Ignored-Fields"  # names unknown fields of the body


class Front:
    """Admits requests before their bodies are read, and answers those that end early."""

    def __init__(
        self,
        app: ASGIApp,
        settings: ServerSettings,
        count: Callable[[str, str], None],
        running: set[asyncio.Task[None]],
    ) -> None:
        self._app, self._count, self._running = app, count, running
        self._keys, self._max_bytes = settings.keys, settings.limits.body
        self._hosts = AllowedHosts(settings.allowed_hosts)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        began, state = False, scope.setdefault("state", {})

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
        except Exception as error:
            if not began:
                await answer_of(api_error_of(error))(scope, receive, counted)
            raise  # for the log
        finally:
            self._running.discard(task)

    def _admit(self, scope: Scope) -> str:
        """The user of a request; raises an ApiError if it is not admitted."""
        headers = Headers(scope=scope)
        for host in headers.getlist("host") or [""]:
            if not self._hosts.allow(host):
                refused = f"this server does not answer to the host {host[:200]!r}"
                raise ApiError(421, f"{refused}; see --allowed-hosts", code="host_not_allowed")
        keys = {} if scope["path"] in PUBLIC_PATHS else self._keys
        return authenticate(keys, headers.get("authorization"), headers.get("x-api-key"))

    def _limited(self, receive: Receive) -> Receive:
        size = 0

        async def limited() -> Message:
            nonlocal size
            message = await receive()
            size += len(message.get("body", b""))
            if size > self._max_bytes:
                refused = f"the body must have at most {self._max_bytes} bytes"
                raise ApiError(413, refused, code="body_too_large")
            return message

        return limited


REFERENCE = "#/components/schemas/{model}"
BODY = "A null member counts as absent, as does a field of llama.cpp whose value has no effect."
UNKNOWN = {
    "refuse": "Unknown fields that might change the answer are refused with 400.",
    "warn": "Unknown fields are ignored and named in the header X-Ignored-Fields.",
}
ABOUT = (
    "Completions with speculative decoding, by OpenAI's and llama.cpp's interfaces. Every response"
    " has the header X-Request-Id. If the server has keys, every route but /health needs one, as a"
    " bearer token or in the header X-Api-Key."
)
RESPONSES: dict[int | str, dict[str, Any]] = {  # of every route
    "4XX": {"description": "The request is refused; `param` names the field", "model": Error},
    "5XX": {"description": "The server failed or is shutting down", "model": Error},
}
SHUTDOWN_GRACE_SECONDS = 1.0  # for clients of cancelled requests to receive their errors


def described(route: BodyRoute, unknown_fields: str) -> dict[str, Any]:
    """An operation's body, and its response."""
    schema = {"$ref": REFERENCE.format(model=route.kind.__name__)}
    body = {
        "description": f"{BODY} {UNKNOWN[unknown_fields]}",
        "required": True,
        "content": {"application/json": {"schema": schema}},
    }
    streams = isinstance(route.answer, type)  # a ``Reply``
    also = "; with `stream`, server-sent events with parts of it" if streams else ""
    return {"requestBody": body, "responses": {"200": {"description": f"The answer{also}"}}}


def document(app: FastAPI) -> dict[str, Any]:
    """The OpenAPI document of an application."""
    found = get_openapi(title=app.title, version=app.version, description=ABOUT, routes=app.routes)
    kinds = sorted({each.kind for each in BODY_ROUTES.values()}, key=lambda each: each.__name__)
    inputs: Any = [(kind, "validation") for kind in kinds]
    _, schemas = models_json_schema(inputs, ref_template=REFERENCE)
    found["components"]["schemas"] |= schemas["$defs"]
    return found


def make_engine(model: Any, tokenizer: Any, settings: ServerSettings, metrics: Metrics) -> Engine:
    """The engine, not started; an UnsupportedError if the model cannot be speculated with."""

    @cache
    def speculator_of(user: str) -> Speculator:
        """A separate one for each user, so that no user's text influences another's drafts."""
        return Speculator(settings.drafter)

    limits = settings.limits
    pool = CachePool(
        cache_maker(model),
        limits.pool,
        limits.pool_of_key,
        why_not_kept(model),
        len(settings.keys) or 1,
    )
    runner = AnswerRunner(model, tokenizer, pool, limits.chunk, speculator_of)
    if is_encoder_decoder(model):
        raise UnsupportedError("encoder-decoder models cannot be served: they continue no text")
    # Generate one token, to load what is loaded at first use and to refuse unusable models.
    prompt, greedy = np.zeros(2, np.int32), Sampling(temperature=0)
    request = CompletionRequest(prompt=prompt, user="", sampling=greedy, max_tokens=1)
    with runner.open(request, pool.make()) as generation:
        generation.step()
    return Engine(runner, limits.active, limits.waiting, metrics.count)


def make_app(model: Any, tokenizer: Any, settings: ServerSettings) -> FastAPI:
    """The application that serves a model; an UnsupportedError if it cannot be speculated with."""
    metrics = Metrics()
    engine = make_engine(model, tokenizer, settings, metrics)
    service = Service(model, tokenizer, engine, settings)
    running: set[asyncio.Task[None]] = set()

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        if service.eos:  # a grammar needs a token that ends the text
            await asyncio.to_thread(service.grammars.prepare)
        engine.start()
        # Exclude existing objects from garbage collection, which large requests trigger: a full
        # collection visits every object of torch and transformers, and stops all threads for up to
        # a second.
        gc.freeze()
        with private_logs():
            yield
            gc.unfreeze()
            await asyncio.to_thread(engine.close)
            if running:
                await asyncio.wait(running, timeout=SHUTDOWN_GRACE_SECONDS)
            await service.grammars.close()

    app = FastAPI(
        title="ngramspec",
        version=__version__,
        lifespan=lifespan,
        openapi_url=None,  # see ``_add_views``
        responses=RESPONSES,
    )
    app.state.service = service
    add_handlers(app)
    app.add_middleware(Front, settings=settings, count=metrics.count_request, running=running)
    for path in BODY_ROUTES:
        _add_answer(app, service, path)
    _add_views(app, service, metrics)
    return app


class BodyRoute(NamedTuple):
    """A route whose requests have a body: its type, and what answers it, in a worker thread."""

    kind: type[BaseModel]
    answer: Callable[..., Reply | Response]
    summary: str


_CHAT = BodyRoute(ChatBody, ChatReply, "OpenAI's chat completion")
_COMPLETION = BodyRoute(LlamaBody, LlamaReply, "llama.cpp's completion")
BODY_ROUTES = {
    "/v1/completions": BodyRoute(CompletionBody, CompletionReply, "OpenAI's completion"),
    "/v1/chat/completions": _CHAT,
    "/chat/completions": _CHAT,
    "/infill": BodyRoute(InfillBody, LlamaReply, "Text between a prefix and a suffix"),
    "/completion": _COMPLETION,
    "/completions": _COMPLETION,
    "/apply-template": BodyRoute(ChatBody, apply_template, "The text of a chat's prompt"),
    "/tokenize": BodyRoute(TokenizeBody, llama.tokenize, "The tokens of a text"),
    "/detokenize": BodyRoute(DetokenizeBody, llama.detokenize, "The text of tokens"),
}


def _add_answer(app: FastAPI, service: Service, path: str) -> None:
    route, mode = BODY_ROUTES[path], service.settings.unknown_fields

    @app.post(
        path,
        response_model=None,
        summary=route.summary,
        operation_id=path.strip("/").replace("/", "_"),
        openapi_extra=described(route, mode),
    )
    async def answered(
        request: Request, x_session: Annotated[str | None, Header(max_length=200)] = None
    ) -> Response:
        client = Client(request.state.user, x_session or None)
        body = await service.reading.body(request, route.kind)
        check_fields(body, request, mode, service.idle_fields)
        found = await service.reading.run(request, route.answer, service, body, client)
        return await found.respond(request) if isinstance(found, Reply) else found


def _add_views(app: FastAPI, service: Service, metrics: Metrics) -> None:
    entry = {
        "id": service.settings.name,
        "created": int(time.time()),
        "object": "model",
        "owned_by": "ngramspec",
        "max_model_len": service.context,
        "fill_in_the_middle": None if service.fim is None else service.fim.family.name,
    }

    def view(
        *paths: str, kind: type[Response] = JSONResponse, shown: bool = True
    ) -> Callable[[Callable[..., Any]], None]:
        def add(function: Callable[..., Any]) -> None:
            for path in paths:
                app.get(path, response_class=kind, include_in_schema=shown)(function)
                app.head(path, include_in_schema=False)(function)

        return add

    @view(*PUBLIC_PATHS)
    async def health() -> dict[str, str]:
        return {"status": "ok"}

    @view("/v1/models", "/models")
    async def models() -> dict[str, Any]:
        return {"object": "list", "data": [entry]}

    @view("/v1/models/{name:path}")
    async def model(name: str) -> dict[str, Any]:
        service.check_model(name, strict=True)
        return entry

    @view("/props")
    async def props() -> dict[str, Any]:
        return llama.props(service)

    @view("/metrics", kind=PlainTextResponse)
    async def metrics_page() -> Response:
        return Response(metrics.text(service.engine), media_type=CONTENT_TYPE_LATEST)

    @view("/openapi.json", shown=False)
    @cache
    def openapi() -> dict[str, Any]:  # in a thread: writing it takes long
        return document(app)
