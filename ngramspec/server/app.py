"""The FastAPI application: routes, keys, limits; and what starts and ends the engine."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated, Any

from fastapi import Depends, FastAPI, Header, Request, Response
from openai.types import Model
from prometheus_client import CONTENT_TYPE_LATEST

from ngramspec import __version__
from ngramspec.errors import UnsupportedError
from ngramspec.server import chat, completions, infill
from ngramspec.server.auth import Client, authenticate
from ngramspec.server.engine import Engine
from ngramspec.server.errors import add_handlers
from ngramspec.server.job import Maker, Order, as_tokens
from ngramspec.server.kv_pool import CachePool, cache_maker, why_not_cut
from ngramspec.server.metrics import Metrics
from ngramspec.server.middleware import Front
from ngramspec.server.openai_types import (
    ChatRequest,
    CompletionRequest,
    InfillRequest,
    LlamaRequest,
)
from ngramspec.server.sampling import Sampling
from ngramspec.server.service import Service
from ngramspec.server.settings import ServerSettings
from ngramspec.server.speculators import Speculators

DRAIN = 30.0  # seconds that running answers have when the server ends


def make_engine(model: Any, tokenizer: Any, settings: ServerSettings, metrics: Metrics) -> Engine:
    """What runs a model for a server; it is not started.

    Raises:
        UnsupportedError: the model cannot be speculated with.
    """
    limits = settings.limits
    pool = CachePool(cache_maker(model), limits.pool, limits.pool_of_key, why_not_cut(model))
    speculators = Speculators(settings.drafter)
    maker = Maker(model, tokenizer, pool, limits.chunk, speculators)
    try_out(maker)
    return Engine(maker, limits.active, limits.waiting, metrics.count)


def try_out(maker: Maker) -> None:
    """Generate a token: what is loaded at first use is loaded, and what cannot be served says so.

    Raises:
        UnsupportedError: the model cannot be speculated with.
    """
    if maker.model.config.is_encoder_decoder:
        raise UnsupportedError("encoder-decoder models cannot be served: they continue no text")
    order = Order(prompt=as_tokens([0, 0]), user="", sampling=Sampling(temperature=0), max_tokens=1)
    with maker.open(order, maker.pool.make()) as generation:
        generation.step()


def make_app(model: Any, tokenizer: Any, settings: ServerSettings) -> FastAPI:
    """The application that serves a model.

    Args:
        model: a transformers model.
        tokenizer: the model's.
        settings: of the server.

    Raises:
        UnsupportedError: the model cannot be speculated with.
    """
    metrics = Metrics()
    engine = make_engine(model, tokenizer, settings, metrics)
    service = Service(model, tokenizer, engine, settings)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        engine.start()
        yield
        engine.close(DRAIN)

    app = FastAPI(
        title="ngramspec",
        version=__version__,
        lifespan=lifespan,
        openapi_url=None,
    )
    app.state.service = service
    add_handlers(app)
    app.add_middleware(Front, most=settings.limits.body, count=metrics.count_request)
    _add_answers(app, service)
    _add_views(app, service, metrics)
    return app


def _client(
    request: Request,
    authorization: Annotated[str | None, Header()] = None,
    x_session: Annotated[str | None, Header(max_length=200)] = None,
) -> Client:
    """Who sent a request; an ApiError without a right key."""
    keys = request.app.state.service.settings.keys
    return Client(authenticate(keys, authorization), x_session or None)


Asker = Annotated[Client, Depends(_client)]


def _add_answers(app: FastAPI, service: Service) -> None:
    """The routes that generate."""

    @app.post("/v1/completions", response_model=None)
    async def complete(client: Asker, body: CompletionRequest, request: Request) -> Any:
        return await completions.complete(service, body, client, request)

    @app.post("/v1/chat/completions", response_model=None)
    async def chat_complete(client: Asker, body: ChatRequest, request: Request) -> Any:
        return await chat.chat(service, body, client, request)

    @app.post("/infill", response_model=None)
    async def fill_in(client: Asker, body: InfillRequest, request: Request) -> Any:
        return await infill.infill(service, body, client, request)

    @app.post("/completion", response_model=None)
    @app.post("/completions", response_model=None)
    async def llama_complete(client: Asker, body: LlamaRequest, request: Request) -> Any:
        return await infill.completion(service, body, client, request)


def _add_views(app: FastAPI, service: Service, metrics: Metrics) -> None:
    """The routes that only tell."""
    started = int(time.time())
    settings = service.settings

    @app.get("/health")
    async def health() -> dict[str, str]:
        return {"status": "ok"}

    @app.get("/v1/models")
    async def models(client: Asker) -> dict[str, Any]:
        own = Model(id=settings.name, created=started, object="model", owned_by="ngramspec")
        return {"object": "list", "data": [_described(own, service)]}

    @app.get("/v1/models/{name:path}")
    async def model(client: Asker, name: str) -> dict[str, Any]:
        service.check_model(name)
        own = Model(id=settings.name, created=started, object="model", owned_by="ngramspec")
        return _described(own, service)

    @app.get("/metrics")
    async def page(client: Asker) -> Response:
        return Response(metrics.text(service.engine), media_type=CONTENT_TYPE_LATEST)


def _described(model: Model, service: Service) -> dict[str, Any]:
    """A model with what clients like to know of it."""
    family = None if service.fim is None else service.fim.family.name
    more = {"max_model_len": service.context, "fill_in_the_middle": family}
    fields: dict[str, Any] = model.model_dump(mode="json")
    return fields | more
