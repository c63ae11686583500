"""What all routes need: the model, the engine, and the orders made of requests."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any

import numpy as np
from fastapi import Request

from ngramspec.draft import Int32
from ngramspec.hf_model.traits import embedding_count
from ngramspec.server.auth import Client
from ngramspec.server.engine import Engine
from ngramspec.server.errors import ApiError, bad, refuse_unless
from ngramspec.server.fim import FillInTheMiddle, family_of
from ngramspec.server.job import CANCELLED, Job, Order, Piece
from ngramspec.server.openai_types import Common, Extras
from ngramspec.server.sampling import Sampling
from ngramspec.server.scheduler import QueueFullError
from ngramspec.server.settings import ServerSettings
from ngramspec.server.shelf import Shelf
from ngramspec.server.special_tokens import TextEncoder
from ngramspec.server.token_bytes import TokenBytes
from ngramspec.server.tool_format import find_format

GRAMMARS = 64 << 20  # bytes of compiled grammars that are kept


class Service:
    """A model that is served.

    Args:
        model: a transformers model.
        tokenizer: the model's.
        engine: what runs it.
        settings: of the server.
    """

    def __init__(
        self, model: Any, tokenizer: Any, engine: Engine, settings: ServerSettings
    ) -> None:
        self.model, self.tokenizer = model, tokenizer
        self.engine, self.settings = engine, settings
        self.corpora = Shelf(settings.corpora)
        self.text = TextEncoder(tokenizer)
        self.bytes_of = TokenBytes(tokenizer)
        family = family_of(tokenizer)
        self.fim = None if family is None else FillInTheMiddle(family, tokenizer, self.text.encode)
        self.tool_format, self.why_no_tools = find_format(model, tokenizer)
        self.vocabulary = embedding_count(model) or len(tokenizer)
        known = getattr(model.config, "max_position_embeddings", None)
        own = settings.limits.context
        self.context: int = min(each for each in (known, own, 1 << 20) if each is not None)
        self.eos = _eos_ids(model, tokenizer)
        self._grammars: Any = None
        self._lock = threading.Lock()  # of the compiler's making

    def check_model(self, name: str | None) -> None:
        """Refuse a request for another model."""
        if name not in (None, "", self.settings.name):
            raise ApiError(
                404,
                f"model: there is no model {name!r} here; the model is {self.settings.name!r}",
                param="model",
                code="model_not_found",
            )

    def grammars(self) -> Any:
        """xgrammar's compiler for the model's vocabulary; it keeps what it has compiled."""
        with self._lock:
            if self._grammars is None:
                import xgrammar

                info = xgrammar.TokenizerInfo.from_huggingface(
                    self.tokenizer,
                    vocab_size=self.model.config.get_text_config().vocab_size,
                    stop_token_ids=list(self.eos),
                )
                self._grammars = xgrammar.GrammarCompiler(info, cache_limit_bytes=GRAMMARS)
            return self._grammars

    def encode(self, text: str) -> list[int]:
        """A prompt's ids, with what the tokenizer puts before every text."""
        return list(self.tokenizer(text)["input_ids"])

    def decode(self, ids: Sequence[int]) -> str:
        """The text of some tokens, special ones included."""
        text: str = self.tokenizer.decode(list(ids), skip_special_tokens=False)
        return text

    def check_prompt(self, ids: Sequence[int], param: str = "prompt") -> Int32:
        """A prompt as int32 (n,), if it can be continued."""
        refuse_unless(bool(ids), param, "it must have at least one token, got none")
        refuse_unless(
            max(ids) < self.vocabulary,
            param,
            f"token ids must be below {self.vocabulary}, got {max(ids)}",
        )
        if len(ids) >= self.context:
            raise bad(
                param,
                f"it must have fewer than {self.context} tokens, got {len(ids)}",
                "context_length_exceeded",
            )
        return np.array(ids, np.int32)

    def ends_of(self, prompt: Int32) -> tuple[int, ...]:
        """The ids that end an answer: more of them where the middle is filled in."""
        if self.fim is None or not self.fim.asked(prompt):
            return self.eos
        return tuple(dict.fromkeys((*self.eos, *self.fim.ends)))

    def max_tokens(self, asked: int | None, prompt: Int32, param: str = "max_tokens") -> int:
        """How long an answer may be."""
        room = self.context - len(prompt)
        if asked is None:
            return min(self.settings.max_tokens, room)
        if asked > room:
            raise bad(
                param,
                f"prompt and answer must have at most {self.context} tokens together, got"
                f" {len(prompt)} and {asked}",
                "context_length_exceeded",
            )
        return asked

    def stores(self, extras: Extras, client: Client) -> tuple[Any, ...]:
        """What a request drafts from: its namespace of shared text, and the corpora."""
        return (*self._shared(extras, client), *self._corpora(extras))

    def _shared(self, extras: Extras, client: Client) -> tuple[Any, ...]:
        shared = self.settings.shared
        if shared is not None:
            return (shared[client.namespace(extras.namespace)],)
        refuse_unless(extras.namespace is None, "ngramspec.namespace", "this server shares no text")
        return ()

    def _corpora(self, extras: Extras) -> tuple[Any, ...]:
        """The corpora that a request names, or all."""
        corpora = self.corpora
        if extras.stores is None:
            return tuple(corpora.values())
        for name in extras.stores:
            known = ", ".join(map(repr, corpora)) or "none"
            refuse_unless(
                name in corpora, "ngramspec.stores", f"there is no {name!r}; known: {known}"
            )
        return tuple(corpora[name] for name in extras.stores)

    def reference(self, extras: Extras) -> Int32 | None:
        """The reference text of a request."""
        given = extras.reference
        if given is None:
            return None
        ids = self.text.encode(given) if isinstance(given, str) else given
        refuse_unless(
            len(ids) <= 1 << 20, "ngramspec.reference", f"at most {1 << 20} tokens, got {len(ids)}"
        )
        return np.array(ids, np.int32) if ids else None

    def sampling(self, body: Common, grammar: Any = None) -> Sampling:
        """How the tokens of an OpenAI request are chosen."""
        default = Sampling()
        top_k = body.top_k if body.top_k is not None and body.top_k > 0 else default.top_k
        seed = None if body.seed is None else body.seed % 2**63
        return Sampling(
            temperature=default.temperature if body.temperature is None else body.temperature,
            top_p=body.top_p or default.top_p,
            top_k=top_k,
            min_p=body.min_p or default.min_p,
            presence_penalty=body.presence_penalty or 0.0,
            frequency_penalty=body.frequency_penalty or 0.0,
            repetition_penalty=body.repetition_penalty or 1.0,
            logit_bias=self._logit_bias(body.logit_bias or {}),
            seed=seed,
            grammar=grammar,
        )

    def _logit_bias(self, given: Mapping[str, float]) -> dict[int, float]:
        found: dict[int, float] = {}
        for name, bias in given.items():
            known = name.isdecimal() and int(name) < self.vocabulary
            refuse_unless(known, "logit_bias", f"{name!r} is no token id below {self.vocabulary}")
            if bias:
                found[int(name)] = bias
        return found

    def submit(self, orders: Sequence[Order], client: Client) -> Answers:
        """Begin the answers of one request."""
        most = self.settings.limits.answers
        refuse_unless(
            len(orders) <= most, "n", f"at most {most} answers a request, got {len(orders)}"
        )
        return Answers(self.engine, orders, client)


class Answers:
    """The answers of one request, piece by piece. Used in one event loop.

    Raises:
        ApiError: too many requests wait already.
    """

    def __init__(self, engine: Engine, orders: Sequence[Order], client: Client) -> None:
        loop = asyncio.get_running_loop()
        self._engine = engine
        self._pieces: asyncio.Queue[tuple[int, Piece]] = asyncio.Queue()
        session = None if client.session is None else (client.user, client.session)

        def put(index: int, piece: Piece) -> None:
            loop.call_soon_threadsafe(self._pieces.put_nowait, (index, piece))

        try:
            self.jobs: list[Job] = engine.submit(orders, put, session)
        except QueueFullError as error:
            raise ApiError(
                429, "too many requests wait already; try again", code="queue_full"
            ) from error

    def cancel(self) -> None:
        """End the answers that have not ended."""
        if not all(job.ended for job in self.jobs):
            self._engine.cancel(self.jobs)

    async def pieces(self) -> AsyncIterator[tuple[int, Piece]]:
        """Pieces with their answers' indices, until all have ended; leaving cancels the others.

        Raises:
            ApiError: an answer failed, or a newer request of the session ended it.
        """
        left = len(self.jobs)
        try:
            while left:
                index, piece = await self._pieces.get()
                if piece.error is not None:
                    raise _failure(piece.error)
                if piece.ended == CANCELLED:
                    raise ApiError(499, "a newer request of the session ended this one")
                left -= piece.ended is not None
                yield index, piece
        finally:
            self.cancel()

    async def whole(self, request: Request) -> list[list[Piece]]:
        """All pieces of each answer; nothing is made any more once the client has gone."""
        collecting = asyncio.ensure_future(self._collect())
        watching = asyncio.ensure_future(_gone(request))
        try:
            await asyncio.wait({collecting, watching}, return_when=asyncio.FIRST_COMPLETED)
            if not collecting.done():
                raise ApiError(499, "the client closed the connection")
            return await collecting
        finally:
            for task in (collecting, watching):
                task.cancel()
            self.cancel()

    async def _collect(self) -> list[list[Piece]]:
        found: list[list[Piece]] = [[] for _ in self.jobs]
        async for index, piece in self.pieces():
            found[index].append(piece)
        return found


async def _gone(request: Request) -> None:
    """Wait until the client closes the connection."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


def _failure(error: Exception) -> ApiError:
    """What a client is told of an error of the engine: a refusal's reason, but no internals."""
    from ngramspec.errors import UnsupportedError

    if isinstance(error, UnsupportedError):
        return ApiError(400, str(error))
    return ApiError(500, "the answer failed; the server's log says why")


def _eos_ids(model: Any, tokenizer: Any) -> tuple[int, ...]:
    given = model.generation_config.eos_token_id
    ids = given if isinstance(given, list) else [given]
    every = [*ids, getattr(tokenizer, "eos_token_id", None)]
    return tuple(dict.fromkeys(each for each in every if each is not None))
