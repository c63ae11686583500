"""``/v1/chat/completions``: checking a request and encoding its prompt."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import partial
from inspect import signature
from typing import Any, TypeVar
from uuid import uuid4

from anyio.to_thread import run_sync
from fastapi import Request, Response

from ngramspec.draft import Int32
from ngramspec.drafters.tool_calls import ToolCalls
from ngramspec.server import chat_answer
from ngramspec.server.auth import Client
from ngramspec.server.chat_answer import Reader
from ngramspec.server.chat_prompt import chat_ids, prompt_text
from ngramspec.server.encoding import NotTextError, TooManyTokensError
from ngramspec.server.engine import Answers, while_connected
from ngramspec.server.errors import ApiError, bad, refuse_unless
from ngramspec.server.grammars import grammar_of, source_of_chat
from ngramspec.server.job import CompletionRequest, answers_of
from ngramspec.server.openai_types import ChatBody, Message
from ngramspec.server.reading import json_value
from ngramspec.server.responses import Stream, json_response
from ngramspec.server.service import Service
from ngramspec.server.settings import Limits
from ngramspec.server.tool_parsers import PlainParser

T = TypeVar("T")


async def chat(service: Service, body: ChatBody, client: Client, request: Request) -> Any:
    """Answer a request, whole or as a stream. An ApiError names the invalid field."""
    prompt = await service.reading.run(request, prompt_of, service, body)
    source = partial(source_of_chat, service, body)
    grammar = await while_connected(request, grammar_of(service, source, client))
    completions, readers = await service.reading.run(
        request, requests_and_readers, service, body, prompt, client, grammar
    )
    answers = Answers(service.engine, completions, client)
    head = service.head(f"chatcmpl-{uuid4().hex}")
    if body.stream:
        events = chat_answer.chunks(service, body, answers, readers, head)
        return Stream(events, answers.cancel)
    found = await answers.whole(request)
    return await run_sync(chat_answer.whole, service, body, answers, found, readers, head)


async def apply_template(
    service: Service, body: ChatBody, client: Client, request: Request
) -> Response:
    """The text of a chat's prompt, as llama.cpp's ``/apply-template``.

    A control token's name in a message is not told apart from the template's own.
    """
    return await service.reading.run(request, _rendered, service, body)


def _rendered(service: Service, body: ChatBody) -> Response:
    check(service, body)

    def text_of(messages: list[Any], tools: list[Any]) -> str:
        return prompt_text(service.tokenizer, messages, tools, body.variables)

    return json_response({"prompt": templated(service, body, text_of)})


def prompt_of(service: Service, body: ChatBody) -> Int32:
    """Check a request's fields and encode its prompt. This can take seconds."""
    check(service, body)
    return service.check_prompt(encoded(service, body), "messages")


def check(service: Service, body: ChatBody) -> None:
    """Refuse a chat's fields that are not supported; an ApiError names the field."""
    service.check_model(body.model)
    service.check_count(body.n or 1, "n")
    refuse_unless(not body.functions, "functions", "not supported here; use tools")
    refuse_unless(body.modalities in (None, ["text"]), "modalities", "only ['text'] is supported")
    refuse_unless(
        body.top_logprobs is None or bool(body.logprobs), "top_logprobs", "it needs logprobs=true"
    )
    refuse_unless(
        getattr(service.tokenizer, "chat_template", None) is not None,
        "messages",
        f"the model {service.settings.name!r} has no chat template; use /v1/completions",
    )
    if body.offered:
        refuse_unless(service.tool_format is not None, "tools", service.why_no_tools)
    names = [tool["function"]["name"] for tool in body.offered]
    refuse_unless(all(names), "tools", "a function must have a name")
    refuse_unless(bool(names) or not body.must_call, "tool_choice", "there are no tools to call")
    refuse_unless(body.chosen in (None, *names), "tool_choice", f"there is no tool {body.chosen!r}")
    own = {*signature(service.tokenizer.apply_chat_template).parameters, "messages"}
    for name in body.chat_template_kwargs or ():
        message = f"{name!r} cannot be set, only the template's own variables"
        refuse_unless(name not in own, "chat_template_kwargs", message)


def encoded(service: Service, body: ChatBody) -> list[int]:
    """The ids that the model's own template makes of the messages and tools."""
    encode = partial(service.encode, param="messages", framed=False)

    def ids_of(messages: list[Any], tools: list[Any]) -> list[int]:
        return chat_ids(
            service.tokenizer,
            service.text,
            messages,
            tools,
            body.variables,
            encode=encode,
            most=service.context - 1,
        )

    return templated(service, body, ids_of)


def templated(service: Service, body: ChatBody, apply: Callable[[list[Any], list[Any]], T]) -> T:
    """What ``apply`` makes of messages and tools with the model's own template.

    If the template fails with the tools but accepts the messages alone, the error names the tools.
    """
    given = [message_of(service, each) for each in body.messages]
    try:
        return apply(given, body.offered)
    except ApiError:
        raise
    except TooManyTokensError as error:
        raise service.too_long("messages", error.count) from None
    except NotTextError as error:
        raise bad("messages", str(error)) from error
    except Exception as error:  # whatever a template raises about its input
        blamed = "messages"
        if body.offered:
            with suppress(Exception):
                apply(given, [])
                blamed = "tools"
        raise bad(blamed, f"the model's template refuses them: {words_of(error)}") from error


def words_of(error: Exception) -> str:
    """A template's own message about its input, in one line; for Python errors only the type."""
    found = str(getattr(error, "message", None) or "")  # of jinja2's errors
    own = type(error).__module__.startswith("jinja2.") and found
    return found.partition("\n")[0] if own else type(error).__name__


def message_of(service: Service, message: Message) -> dict[str, Any]:
    """A message in the form for templates: the arguments of its calls are objects."""
    given: dict[str, Any] = message.model_dump(exclude_unset=True) | {"content": text_of(message)}
    if given.get("tool_calls"):
        refuse_unless(service.tool_format is not None, "messages", service.why_no_tools)
        calls, limits = given["tool_calls"], service.settings.limits
        refuse_unless(isinstance(calls, list), "messages", "tool_calls must be a list")
        given["tool_calls"] = [call_of(each, limits) for each in calls]
    return given


def call_of(call: Any, limits: Limits) -> dict[str, Any]:
    """A call of an earlier answer, with its arguments parsed."""
    try:
        function = call["function"]
        arguments = function["arguments"]
        read = arguments
        if isinstance(arguments, str):
            text = arguments.strip() or "{}"  # clients leave it empty for tools without parameters
            read = json_value(text.encode(), limits, "messages: arguments in tool_calls")
        if not isinstance(read, dict) or not isinstance(function["name"], str):
            raise TypeError
        return {**call, "function": {**function, "arguments": read}}
    except (LookupError, TypeError, ValueError) as error:
        reason = "a call in tool_calls must have a function with a name and a JSON object"
        raise bad("messages", f"{reason} as its arguments") from error


def text_of(message: Message) -> str:
    """A message's text; its text parts are joined."""
    if message.content is None or isinstance(message.content, str):
        return message.content or ""
    for part in message.content:
        refuse_unless(
            part.get("type") == "text" and isinstance(part.get("text"), str),
            "messages",
            f"only parts of text are supported, got {part.get('type')!r}",
        )
    return "".join(part["text"] for part in message.content)


def requests_and_readers(
    service: Service,
    body: ChatBody,
    prompt: Int32,
    client: Client,
    grammar: Callable[[], Any] | None,
) -> tuple[list[CompletionRequest], list[Reader]]:
    """The completion request and the reader of each answer."""
    name = "max_tokens" if body.max_completion_tokens is None else "max_completion_tokens"
    asked: int | None = getattr(body, name)
    refuse_unless(asked != 0, name, "it must be >= 1, got 0")
    tools = service.tool_format if body.offered else None
    closing = None  # the stop string that ends an answer after its only call
    if tools is not None and not body.several and tools.closing not in body.stops:
        closing = tools.closing
    predicted = None  # the tools whose calls are predicted in drafts; a grammar knows them better
    if body.offered and grammar is None and service.call_format is not None:
        predicted = ToolCalls(body.offered, service.call_format)
    common: dict[str, Any] = {
        "prompt": prompt,
        "user": client.user,
        "max_tokens": service.max_tokens(asked, prompt, name),
        "stops": body.stops if closing is None else (*body.stops, closing),
        "eos": service.eos,
        "hidden": None if tools is None else tools.hidden.union(service.eos),
        "top_logprobs": (body.top_logprobs or 0) if body.logprobs else None,
        "reference": service.reference(body.ngramspec, body.prediction)(prompt),
        "stores": service.stores(body.ngramspec, client),
        "speculate": body.ngramspec.speculate,
        "session": body.prompt_cache_key or None,
        "tools": predicted,
        "first": False,
    }
    completions = answers_of(service.sampling(body, grammar), body.n or 1, **common)
    service.check_logprobs(completions, "top_logprobs")
    if tools is None:
        return completions, [Reader(PlainParser()) for _ in completions]
    text = service.decode(prompt.tolist())
    parsers = (
        tools.parser(service.tokenizer, text, body.offered, body.must_call) for _ in completions
    )
    return completions, [Reader(parser, body.several, closing) for parser in parsers]
