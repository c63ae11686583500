"""The responses of ``/v1/chat/completions``, whole and streamed."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import asdict
from typing import Any
from uuid import uuid4

from fastapi import Response
from openai.types.chat import ChatCompletion, ChatCompletionChunk, ChatCompletionMessage
from openai.types.chat.chat_completion import Choice, ChoiceLogprobs
from openai.types.chat.chat_completion_chunk import Choice as ChunkChoice
from openai.types.chat.chat_completion_chunk import (
    ChoiceDelta,
    ChoiceDeltaToolCall,
    ChoiceDeltaToolCallFunction,
)
from openai.types.chat.chat_completion_message_function_tool_call import (
    ChatCompletionMessageFunctionToolCall,
    Function,
)
from openai.types.chat.chat_completion_token_logprob import ChatCompletionTokenLogprob, TopLogprob

from ngramspec.server.engine import Answers
from ngramspec.server.job import STOP, CompletionRequest, Delta, Job
from ngramspec.server.openai_types import ChatBody
from ngramspec.server.responses import json_response
from ngramspec.server.service import Service
from ngramspec.server.token_names import TokenNames
from ngramspec.server.tool_parsers import Parser, Part
from ngramspec.server.usage import ending, timings_of


class Reader:
    """Converts the deltas of one answer to content, reasoning and calls.

    Unless ``several`` calls are allowed, the answer ends after the first. ``closing`` is the stop
    string that ends a call and is part of it, or None.
    """

    def __init__(self, parser: Parser, several: bool = True, closing: str | None = None) -> None:
        self._parser, self._several, self._closing = parser, several, closing
        self.calls = 0  # calls seen so far

    def read(self, delta: Delta) -> list[Part]:
        """The parts that a delta completes; nothing is held back once the answer has ended."""
        text = delta.text
        if delta.stop is not None and delta.stop == self._closing:
            text += delta.stop
        shown = []
        for part in self._parser.add(text, last=delta.ended is not None):
            if self._several or not self.calls:
                shown.append(part)
                self.calls += part.call is not None
        return shown

    def reason(self, ended: str) -> Any:
        """The finish reason: "tool_calls" if there are calls and the answer was not cut off."""
        return "tool_calls" if self.calls and ended == STOP else ended


def whole(
    service: Service,
    body: ChatBody,
    answers: Answers,
    found: Sequence[Sequence[Delta]],
    readers: Sequence[Reader],
    head: dict[str, Any],
) -> Response:
    """The response without streaming, from each answer's deltas and reader; ``head`` begins it."""
    choices = [
        Choice(
            index=index,
            message=message_of([part for delta in deltas for part in reader.read(delta)]),
            finish_reason=reader.reason(deltas[-1].ended or STOP),
            logprobs=logprobs(service, deltas, job.request, names_of(service, body, job)),
        )
        for index, (deltas, reader, job) in enumerate(
            zip(found, readers, answers.jobs, strict=True)
        )
    ]
    end = ending(answers.jobs, body)
    return json_response(ChatCompletion(object="chat.completion", choices=choices, **end, **head))


def message_of(parts: Sequence[Part]) -> ChatCompletionMessage:
    """The message of an answer; its content is None if there are only calls."""
    calls: list[Any] = [
        ChatCompletionMessageFunctionToolCall(
            id=new_id(), type="function", function=Function(**asdict(part.call))
        )
        for part in parts
        if part.call is not None
    ]
    content = "".join(part.content for part in parts)
    reasoning = "".join(part.reasoning for part in parts)
    more: dict[str, Any] = {"reasoning_content": reasoning} if reasoning else {}
    if calls:
        more["tool_calls"] = calls
    return ChatCompletionMessage(
        role="assistant",
        content=None if calls and not content else content,
        refusal=None,
        annotations=[],
        **more,
    )


async def chunks(
    service: Service,
    body: ChatBody,
    answers: Answers,
    readers: Sequence[Reader],
    head: dict[str, Any],
) -> AsyncIterator[ChatCompletionChunk]:
    """The events of a streamed response: role, text and calls, then the finish reason."""
    head = {"object": "chat.completion.chunk", **head}
    if body.streams_usage:
        head["usage"] = None
    for index in range(len(answers.jobs)):
        choice = _chunk(index, ChoiceDelta(role="assistant", content=""))
        yield ChatCompletionChunk.construct(choices=[choice], **head)
    names = [names_of(service, body, job) for job in answers.jobs]
    async for index, delta in answers.deltas():
        reader = readers[index]
        choices = [_chunk(index, each) for each in _deltas(reader.read(delta), reader)]
        if not choices and (delta.logprobs or delta.ended):
            choices = [_chunk(index, ChoiceDelta())]
        if delta.ended:
            choices[-1].finish_reason = reader.reason(delta.ended)
        if body.logprobs and choices:
            request = answers.jobs[index].request
            choices[0].logprobs = logprobs(service, [delta], request, names[index])
        for left, choice in enumerate(choices, 1 - len(choices)):
            if left == 0 and answers.ended and not body.streams_usage:
                head["timings"] = timings_of(answers.jobs)
            yield ChatCompletionChunk.construct(choices=[choice], **head)
    if body.streams_usage:
        yield ChatCompletionChunk.construct(choices=[], **(head | ending(answers.jobs, body)))


def _deltas(parts: Sequence[Part], reader: Reader) -> list[ChoiceDelta]:
    """The streamed deltas of parts; each call is sent whole."""
    found = []
    number = reader.calls - sum(part.call is not None for part in parts)
    for part in parts:
        given: dict[str, Any] = {"content": part.content}
        if part.call is not None:
            function = ChoiceDeltaToolCallFunction(**asdict(part.call))
            call = ChoiceDeltaToolCall(
                index=number, id=new_id(), type="function", function=function
            )
            number += 1
            given = {"tool_calls": [call]}
        elif part.reasoning:
            given = {"reasoning_content": part.reasoning}
        found.append(ChoiceDelta(**given))
    return found


def new_id() -> str:
    """A new id for a call."""
    return f"call_{uuid4().hex[:24]}"


def _chunk(index: int, choice_delta: ChoiceDelta) -> ChunkChoice:
    return ChunkChoice.construct(index=index, delta=choice_delta, logprobs=None, finish_reason=None)


def names_of(service: Service, body: ChatBody, job: Job) -> TokenNames | None:
    """The names of an answer's tokens, if its log-probabilities are asked for."""
    return service.names(job.request) if body.logprobs else None


def logprobs(
    service: Service, deltas: Sequence[Delta], request: CompletionRequest, names: TokenNames | None
) -> ChoiceLogprobs | None:
    """The log-probabilities of one answer's next deltas, in this route's format."""
    if names is None:
        return None
    rows = [each for delta in deltas for each in delta.logprobs]
    ended = bool(deltas) and deltas[-1].ended is not None
    found = []
    for left, each in enumerate(rows, 1 - len(rows)):
        name = names.add(each.token, last=ended and not left)

        def named(token: int, own: int = each.token, name: str = name) -> dict[str, Any]:
            """A token's text and bytes. The joined bytes of all tokens are the answer's text."""
            data = service.bytes_of(token, request.hidden)
            text = name if token == own else names.alone(token)
            return {"token": text, "bytes": None if data is None else list(data)}

        top = [TopLogprob(**named(token), logprob=value) for token, value in each.top]
        own = ChatCompletionTokenLogprob(
            **named(each.token), logprob=each.logprob or 0.0, top_logprobs=top
        )
        found.append(own)
    return ChoiceLogprobs(content=found, refusal=None)
