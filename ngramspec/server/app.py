"""The FastAPI application: its routes, and starting and stopping the engine."""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import cache
from typing import Annotated, Any, NamedTuple

import numpy as np
from fastapi import Depends, FastAPI, Header, Request, Response
from fastapi.responses import PlainTextResponse
from openai.types import Model
from prometheus_client import CONTENT_TYPE_LATEST
from pydantic import BaseModel

from ngramspec import __version__
from ngramspec.errors import UnsupportedError
from ngramspec.hf_model.compat.names import is_encoder_decoder
from ngramspec.server import chat, completions, llama
from ngramspec.server.auth import Client
from ngramspec.server.engine import Engine
from ngramspec.server.errors import add_handlers
from ngramspec.server.job import CompletionRequest, ModelRunner
from ngramspec.server.kv_pool import CachePool, cache_maker, why_not_kept
from ngramspec.server.logs import private_logs
from ngramspec.server.metrics import Metrics
from ngramspec.server.middleware import PUBLIC_PATHS, Front
from ngramspec.server.openai_types import (
    ChatBody,
    CompletionBody,
    DetokenizeBody,
    InfillBody,
    LlamaBody,
    TokenizeBody,
)
from ngramspec.server.openapi import RESPONSES, described, document
from ngramspec.server.reading import check_fields
from ngramspec.server.sampling import Sampling
from ngramspec.server.service import Service
from ngramspec.server.settings import ServerSettings
from ngramspec.speculator import Speculator

SHUTDOWN_GRACE_SECONDS = 1.0  # for clients of cancelled requests to receive their errors


def make_engine(model: Any, tokenizer: Any, settings: ServerSettings, metrics: Metrics) -> Engine:
    """The engine, not started; an UnsupportedError if the model cannot be speculated with."""

    @cache
    def speculator_of(user: str) -> Speculator:
        """A separate one for each user, so that no user's text influences another's drafts."""
        return Speculator(settings.drafter)

    limits = settings.limits
    pool = CachePool(cache_maker(model), limits.pool, limits.pool_of_key, why_not_kept(model))
    runner = ModelRunner(model, tokenizer, pool, limits.chunk, speculator_of)
    try_out(runner)
    return Engine(runner, limits.active, limits.waiting, metrics.count)


def try_out(runner: ModelRunner) -> None:
    """Generate one token, to load what is loaded at first use and to refuse unusable models."""
    if is_encoder_decoder(runner.model):
        raise UnsupportedError("encoder-decoder models cannot be served: they continue no text")
    prompt, greedy = np.zeros(2, np.int32), Sampling(temperature=0)
    request = CompletionRequest(prompt=prompt, user="", sampling=greedy, max_tokens=1)
    with runner.open(request, runner.pool.make()) as generation:
        generation.step()


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


def _client(
    request: Request, x_session: Annotated[str | None, Header(max_length=200)] = None
) -> Client:
    """Who sent a request."""
    return Client(request.state.user, x_session or None)


Asker = Annotated[Client, Depends(_client)]


class BodyRoute(NamedTuple):
    """A route whose requests have a body: its type, and what answers it."""

    kind: type[BaseModel]
    answer: Callable[..., Awaitable[Any]]
    summary: str
    streams: bool = True


_CHAT = BodyRoute(ChatBody, chat.chat, "OpenAI's chat completion")
_COMPLETION = BodyRoute(LlamaBody, llama.respond, "llama.cpp's completion")
BODY_ROUTES = {
    "/v1/completions": BodyRoute(CompletionBody, completions.complete, "OpenAI's completion"),
    "/v1/chat/completions": _CHAT,
    "/chat/completions": _CHAT,
    "/infill": BodyRoute(InfillBody, llama.respond, "Text between a prefix and a suffix"),
    "/completion": _COMPLETION,
    "/completions": _COMPLETION,
    "/apply-template": BodyRoute(
        ChatBody, chat.apply_template, "The text of a chat's prompt", streams=False
    ),
    "/tokenize": BodyRoute(TokenizeBody, llama.tokenize, "The tokens of a text", streams=False),
    "/detokenize": BodyRoute(DetokenizeBody, llama.detokenize, "The text of tokens", streams=False),
}


def _add_answer(app: FastAPI, service: Service, path: str) -> None:
    """Add one of BODY_ROUTES."""
    kind, answer, summary, streams = BODY_ROUTES[path]
    mode = service.settings.unknown_fields

    @app.post(
        path,
        response_model=None,
        summary=summary,
        operation_id=path.strip("/").replace("/", "_"),
        openapi_extra=described(kind, streams, mode),
    )
    async def answered(client: Asker, request: Request) -> Any:
        body = await service.reading.body(request, kind)
        check_fields(body, request, mode, service.idle_fields)
        return await answer(service, body, client, request)


def _add_views(app: FastAPI, service: Service, metrics: Metrics) -> None:
    """Add the read-only routes."""
    card = Model(
        id=service.settings.name, created=int(time.time()), object="model", owned_by="ngramspec"
    )
    entry: dict[str, Any] = card.model_dump(mode="json") | {
        "max_model_len": service.context,
        "fill_in_the_middle": None if service.fim is None else service.fim.family.name,
    }

    def view(path: str, **options: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
        def add(function: Callable[..., Any]) -> Callable[..., Any]:
            app.head(path, include_in_schema=False)(function)
            return app.get(path, **options)(function)

        return add

    @view("/health")
    @view("/v1/health")
    async def health() -> dict[str, str]:
        return {"status": "ok"}

    @view("/v1/models")
    @view("/models")
    async def models() -> dict[str, Any]:
        return {"object": "list", "data": [entry]}

    @view("/v1/models/{name:path}")
    async def model(name: str) -> dict[str, Any]:
        service.check_name(name)
        return entry

    @view("/props")
    async def props() -> dict[str, Any]:
        return llama.props(service)

    @view("/metrics", response_class=PlainTextResponse)
    async def metrics_page() -> Response:
        return Response(metrics.text(service.engine), media_type=CONTENT_TYPE_LATEST)

    @cache
    def written() -> dict[str, Any]:
        kinds = {route.kind for route in BODY_ROUTES.values()}
        return document(app, kinds, service.settings, PUBLIC_PATHS)

    @view("/openapi.json", include_in_schema=False)
    def openapi() -> dict[str, Any]:  # in a thread: writing it takes long
        return written()
