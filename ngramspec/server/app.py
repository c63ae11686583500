"""The FastAPI application: its routes, and starting and stopping the engine."""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Annotated, Any

from fastapi import Depends, FastAPI, Header, Request, Response
from openai.types import Model
from prometheus_client import CONTENT_TYPE_LATEST

from ngramspec import __version__
from ngramspec.errors import UnsupportedError
from ngramspec.server import chat, completions, infill, llama_views
from ngramspec.server.auth import Client
from ngramspec.server.engine import Engine
from ngramspec.server.errors import add_handlers
from ngramspec.server.fields import check_fields
from ngramspec.server.job import CompletionRequest, ModelRunner, as_tokens
from ngramspec.server.kv_pool import CachePool, cache_maker, why_not_kept
from ngramspec.server.llama_views import TokenizeBody
from ngramspec.server.metrics import Metrics
from ngramspec.server.middleware import Front
from ngramspec.server.openai_types import ChatBody, CompletionBody, InfillBody, LlamaBody
from ngramspec.server.reading import Body
from ngramspec.server.sampling import Sampling
from ngramspec.server.service import Service
from ngramspec.server.settings import ServerSettings
from ngramspec.server.speculators import Speculators

SHUTDOWN_GRACE_SECONDS = 1.0  # for clients of cancelled requests to receive their errors


def make_engine(model: Any, tokenizer: Any, settings: ServerSettings, metrics: Metrics) -> Engine:
    """The engine that runs a model for a server; it is not started.

    An UnsupportedError is raised if the model cannot be speculated with.
    """
    limits = settings.limits
    pool = CachePool(cache_maker(model), limits.pool, limits.pool_of_key, why_not_kept(model))
    speculators = Speculators(settings.drafter)
    runner = ModelRunner(model, tokenizer, pool, limits.chunk, speculators)
    try_out(runner)
    return Engine(runner, limits.active, limits.waiting, metrics.count)


def try_out(runner: ModelRunner) -> None:
    """Generate one token, to load what is loaded at first use and to refuse unusable models."""
    if runner.model.config.is_encoder_decoder:
        raise UnsupportedError("encoder-decoder models cannot be served: they continue no text")
    request = CompletionRequest(
        prompt=as_tokens([0, 0]), user="", sampling=Sampling(temperature=0), max_tokens=1
    )
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
        with without_collections():
            yield
        await asyncio.to_thread(engine.close)
        if running:
            await asyncio.wait(running, timeout=SHUTDOWN_GRACE_SECONDS)
        await service.grammars.close()

    app = FastAPI(title="ngramspec", version=__version__, lifespan=lifespan, openapi_url=None)
    app.state.service = service
    add_handlers(app)
    app.add_middleware(Front, settings=settings, count=metrics.count_request, running=running)
    _add_answers(app, service)
    _add_views(app, service, metrics)
    return app


@contextmanager
def without_collections() -> Iterator[None]:
    """Exclude existing objects from garbage collection.

    Large requests trigger full collections. A full collection visits every object of torch and
    transformers and stops all threads for up to a second.
    """
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


def _client(
    request: Request, x_session: Annotated[str | None, Header(max_length=200)] = None
) -> Client:
    """Who sent a request."""
    return Client(request.state.user, x_session or None)


Asker = Annotated[Client, Depends(_client)]


def _body(kind: type[Body]) -> Callable[[Request, Client], Awaitable[Body]]:
    """The dependency that reads the body of an authenticated request."""

    async def read(request: Request, client: Asker) -> Body:
        service: Service = request.app.state.service
        return await service.reading.body(request, kind)

    return read


ReadCompletion = Annotated[CompletionBody, Depends(_body(CompletionBody))]
ReadChat = Annotated[ChatBody, Depends(_body(ChatBody))]
ReadInfill = Annotated[InfillBody, Depends(_body(InfillBody))]
ReadLlama = Annotated[LlamaBody, Depends(_body(LlamaBody))]
ReadTokenize = Annotated[TokenizeBody, Depends(_body(TokenizeBody))]


def _add_answers(app: FastAPI, service: Service) -> None:
    """Add the routes that take a body."""
    mode = service.settings.unknown_fields

    @app.post("/v1/completions", response_model=None)
    async def complete(client: Asker, body: ReadCompletion, request: Request) -> Any:
        check_fields(body, request, mode)
        return await completions.complete(service, body, client, request)

    @app.post("/v1/chat/completions", response_model=None)
    async def chat_complete(client: Asker, body: ReadChat, request: Request) -> Any:
        check_fields(body, request, mode)
        return await chat.chat(service, body, client, request)

    @app.post("/infill", response_model=None)
    async def fill_in(client: Asker, body: ReadInfill, request: Request) -> Any:
        check_fields(body, request, mode)
        return await infill.infill(service, body, client, request)

    @app.post("/completion", response_model=None)
    @app.post("/completions", response_model=None)
    async def llama_complete(client: Asker, body: ReadLlama, request: Request) -> Any:
        check_fields(body, request, mode)
        return await infill.completion(service, body, client, request)

    @app.post("/tokenize")
    async def tokenize(client: Asker, body: ReadTokenize, request: Request) -> Any:
        check_fields(body, request, mode)
        return await llama_views.tokenize(service, body, request)


def _add_views(app: FastAPI, service: Service, metrics: Metrics) -> None:
    """Add the read-only routes."""
    started = int(time.time())
    settings = service.settings

    def view(path: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
        return app.api_route(path, methods=["GET", "HEAD"])

    @view("/health")
    @view("/v1/health")
    async def health() -> dict[str, str]:
        return {"status": "ok"}

    @view("/v1/models")
    async def models(client: Asker) -> dict[str, Any]:
        own = Model(id=settings.name, created=started, object="model", owned_by="ngramspec")
        return {"object": "list", "data": [_described(own, service)]}

    @view("/v1/models/{name:path}")
    async def model(client: Asker, name: str) -> dict[str, Any]:
        service.check_model(name)
        own = Model(id=settings.name, created=started, object="model", owned_by="ngramspec")
        return _described(own, service)

    @view("/props")
    async def props(client: Asker) -> dict[str, Any]:
        return llama_views.props(service)

    @view("/metrics")
    async def page(client: Asker) -> Response:
        return Response(metrics.text(service.engine), media_type=CONTENT_TYPE_LATEST)


def _described(model: Model, service: Service) -> dict[str, Any]:
    """A model's JSON with additional fields for clients."""
    family = None if service.fim is None else service.fim.family.name
    more = {"max_model_len": service.context, "fill_in_the_middle": family}
    fields: dict[str, Any] = model.model_dump(mode="json")
    return fields | more
