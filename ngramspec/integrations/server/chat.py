"""``/v1/chat/completions``."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable, Sequence
from importlib.util import find_spec
from typing import Any
from uuid import uuid4

from fastapi import Request
from openai.types.chat import ChatCompletion, ChatCompletionChunk, ChatCompletionMessage
from openai.types.chat.chat_completion import Choice, ChoiceLogprobs
from openai.types.chat.chat_completion_chunk import Choice as ChunkChoice
from openai.types.chat.chat_completion_chunk import ChoiceDelta
from openai.types.chat.chat_completion_token_logprob import (
    ChatCompletionTokenLogprob,
    TopLogprob,
)

from ngramspec.draft import Int32
from ngramspec.integrations.server.auth import Client
from ngramspec.integrations.server.errors import bad, refuse_unless
from ngramspec.integrations.server.job import Order, Piece
from ngramspec.integrations.server.openai_types import ChatRequest, Message
from ngramspec.integrations.server.service import Answers, Service
from ngramspec.integrations.server.sse import stream_of
from ngramspec.integrations.server.usage import usage_of

INSTALL = "pip install --no-deps xgrammar==0.2.8 && pip install apache-tvm-ffi"
MOST_SCHEMA = 65536  # characters of a JSON schema: what larger ones compile to is not bounded


async def chat(service: Service, body: ChatRequest, client: Client, request: Request) -> Any:
    """Answer a request, as one answer or as a stream.

    Raises:
        ApiError: it cannot be answered; the error names the field.
    """
    check(service, body)
    prompt = service.check_prompt(encoded(service, body.messages), "messages")
    grammar = await asyncio.to_thread(grammar_of, service, body)
    answers = service.submit(orders_of(service, body, prompt, client, grammar), client)
    head: dict[str, Any] = {
        "id": f"chatcmpl-{uuid4().hex}",
        "created": int(time.time()),
        "model": service.settings.name,
    }
    if body.stream:
        return stream_of(chunks(service, body, answers, len(prompt), head), answers.cancel)
    found = await answers.whole(request)
    choices = [
        Choice(
            index=index,
            message=ChatCompletionMessage(
                role="assistant", content="".join(piece.text for piece in pieces)
            ),
            finish_reason=_reason(pieces[-1].ended),
            logprobs=logprobs(service, body, pieces),
        )
        for index, pieces in enumerate(found)
    ]
    usage = usage_of(answers.jobs, [len(prompt)], speculation=body.ngramspec.usage)
    whole = ChatCompletion(object="chat.completion", choices=choices, usage=usage, **head)
    return whole.model_dump(mode="json")


def check(service: Service, body: ChatRequest) -> None:
    """Refuse what is not supported, by the field's name."""
    service.check_model(body.model)
    for name in ("tools", "functions"):
        refuse_unless(
            not getattr(body, name) or body.tool_choice == "none", name, "not supported here"
        )
    refuse_unless(body.modalities in (None, ["text"]), "modalities", "only ['text'] is supported")
    refuse_unless(
        body.top_logprobs is None or bool(body.logprobs), "top_logprobs", "it needs logprobs=true"
    )
    refuse_unless(
        getattr(service.tokenizer, "chat_template", None) is not None,
        "messages",
        f"the model {service.settings.name!r} has no chat template; use /v1/completions",
    )


def encoded(service: Service, messages: Sequence[Message]) -> list[int]:
    """The ids that the model's own template makes of the messages."""
    given = [each.model_dump(exclude_unset=True) | {"content": text_of(each)} for each in messages]
    try:
        found = service.tokenizer.apply_chat_template(
            given, add_generation_prompt=True, tokenize=True, return_dict=True
        )
    except Exception as error:  # whatever a template raises about its input
        raise bad("messages", f"the model's template refuses them: {error}") from error
    return list(found["input_ids"])


def text_of(message: Message) -> str:
    """A message's text; parts of text are joined."""
    if message.content is None or isinstance(message.content, str):
        return message.content or ""
    for part in message.content:
        refuse_unless(
            part.get("type") == "text" and isinstance(part.get("text"), str),
            "messages",
            f"only parts of text are supported, got {part.get('type')!r}",
        )
    return "".join(part["text"] for part in message.content)


def orders_of(
    service: Service,
    body: ChatRequest,
    prompt: Int32,
    client: Client,
    grammar: Callable[[], Any] | None,
) -> list[Order]:
    """What each answer shall be."""
    name = "max_tokens" if body.max_completion_tokens is None else "max_completion_tokens"
    asked = body.max_tokens if body.max_completion_tokens is None else body.max_completion_tokens
    refuse_unless(asked != 0, name, "it must be >= 1, got 0")
    sampling = service.sampling(body, grammar)
    common: dict[str, Any] = {
        "prompt": prompt,
        "user": client.user,
        "max_tokens": service.max_tokens(asked, prompt, name),
        "stops": body.stops,
        "eos": service.eos,
        "top_logprobs": (body.top_logprobs or 0) if body.logprobs else None,
        "reference": service.reference(body.ngramspec),
        "stores": service.stores(body.ngramspec, client),
        "first": False,
    }
    return [Order(sampling=sampling.of_answer(index), **common) for index in range(body.n or 1)]


def grammar_of(service: Service, body: ChatRequest) -> Callable[[], Any] | None:
    """What makes the processor of ``response_format``; None: any text. It may take seconds.

    Raises:
        ApiError: xgrammar is not installed, or cannot read the schema.
    """
    form = body.response_format
    if form is None or form.type == "text":
        return None
    if find_spec("xgrammar") is None:
        raise bad("response_format", f"{form.type} needs xgrammar on the server: {INSTALL}")
    refuse_unless(bool(service.eos), "response_format", "the model has no token that ends a text")
    import xgrammar

    compiler = service.grammars()
    if form.type == "json_object":
        grammar = compiler.compile_builtin_json_grammar()
    else:
        schema = (form.json_schema or {}).get("schema")
        refuse_unless(isinstance(schema, dict), "response_format", "json_schema has no schema")
        text = json.dumps(schema)
        refuse_unless(len(text) <= MOST_SCHEMA, "response_format", f"at most {MOST_SCHEMA} bytes")
        try:
            grammar = compiler.compile_json_schema(text)
        except RuntimeError as error:
            reason = str(error).partition("\n")[0]
            raise bad("response_format", f"the schema cannot be used: {reason}") from error
    return lambda: xgrammar.contrib.hf.LogitsProcessor(grammar)


async def chunks(
    service: Service, body: ChatRequest, answers: Answers, prompt: int, head: dict[str, Any]
) -> AsyncIterator[ChatCompletionChunk]:
    """The stream of a request: the role first, then text, then why it ended."""
    head = {"object": "chat.completion.chunk", **head}
    with_usage = body.stream_options is not None and body.stream_options.include_usage
    if with_usage:
        head["usage"] = None
    for index in range(len(answers.jobs)):
        delta = ChoiceDelta(role="assistant", content="")
        yield ChatCompletionChunk.construct(choices=[_chunk(index, delta, None)], **head)
    async for index, piece in answers.pieces():
        if piece.text or piece.logprobs or piece.ended:
            delta = ChoiceDelta(content=piece.text) if piece.text else ChoiceDelta()
            choice = _chunk(index, delta, piece.ended)
            if body.logprobs:
                choice.logprobs = logprobs(service, body, [piece])
            yield ChatCompletionChunk.construct(choices=[choice], **head)
    if with_usage:
        head["usage"] = usage_of(answers.jobs, [prompt], speculation=body.ngramspec.usage)
        yield ChatCompletionChunk.construct(choices=[], **head)


def _chunk(index: int, delta: ChoiceDelta, ended: str | None) -> ChunkChoice:
    reason: Any = ended
    return ChunkChoice.construct(index=index, delta=delta, finish_reason=reason)


def _reason(ended: str | None) -> Any:
    return ended or "stop"


def logprobs(service: Service, body: ChatRequest, pieces: Sequence[Piece]) -> ChoiceLogprobs | None:
    """The log-probabilities of some pieces, in the form of this route."""
    if not body.logprobs:
        return None
    found = []
    for each in (each for piece in pieces for each in piece.logprobs):
        top = [TopLogprob(**_token(service, token), logprob=value) for token, value in each.top]
        own = _token(service, each.token)
        value = each.logprob or 0.0
        found.append(ChatCompletionTokenLogprob(**own, logprob=value, top_logprobs=top))
    return ChoiceLogprobs(content=found)


def _token(service: Service, token: int) -> dict[str, Any]:
    text = service.decode([token])
    return {"token": text, "bytes": list(text.encode())}
