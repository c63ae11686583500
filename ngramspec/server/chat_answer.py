"""The answers of ``/v1/chat/completions``, whole and as a stream."""

from __future__ import annotations

from collections.abc import AsyncIterator, Container, Sequence
from typing import Any
from uuid import uuid4

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
from openai.types.chat.chat_completion_token_logprob import (
    ChatCompletionTokenLogprob,
    TopLogprob,
)

from ngramspec.server.job import STOP, Delta
from ngramspec.server.openai_types import ChatBody
from ngramspec.server.service import Answers, Service
from ngramspec.server.tool_parsers import Parser, Part
from ngramspec.server.usage import usage_of


class Reader:
    """One answer: what its pieces show.

    Args:
        parser: of its text.
        several: whether it may have more than one call; else it ends with the first.
        closing: a stop string that ends a call, and is a part of it; or None.
    """

    def __init__(self, parser: Parser, several: bool = True, closing: str | None = None) -> None:
        self._parser, self._several, self._closing = parser, several, closing
        self.calls = 0  # seen so far

    def read(self, piece: Delta) -> list[Part]:
        """What a piece shows; nothing is held back when the answer has ended."""
        text = piece.text
        if piece.stop is not None and piece.stop == self._closing:
            text += piece.stop
        shown = []
        for part in self._parser.add(text, last=piece.ended is not None):
            if self._several or not self.calls:
                shown.append(part)
                self.calls += part.call is not None
        return shown

    def reason(self, ended: str) -> Any:
        """Why it ended: calls are a reason of their own, unless the answer was cut off."""
        return "tool_calls" if self.calls and ended == STOP else ended


def whole(
    service: Service,
    body: ChatBody,
    answers: Answers,
    found: Sequence[Sequence[Delta]],
    readers: Sequence[Reader],
    head: dict[str, Any],
) -> ChatCompletion:
    """The answer of a request that is not streamed.

    Args:
        service: that answered.
        body: of the request.
        answers: their jobs.
        found: the pieces of each.
        readers: of each.
        head: id, time and model.
    """
    hidden = answers.jobs[0].order.hidden
    choices = [
        Choice(
            index=index,
            message=message_of([part for piece in pieces for part in reader.read(piece)]),
            finish_reason=reader.reason(pieces[-1].ended or STOP),
            logprobs=logprobs(service, body, pieces, hidden),
        )
        for index, (pieces, reader) in enumerate(zip(found, readers, strict=True))
    ]
    prompt = len(answers.jobs[0].order.prompt)
    usage = usage_of(answers.jobs, [prompt], speculation=body.ngramspec.usage)
    return ChatCompletion(object="chat.completion", choices=choices, usage=usage, **head)


def message_of(parts: Sequence[Part]) -> ChatCompletionMessage:
    """The message of an answer: no content where there are calls only."""
    calls: list[Any] = [
        ChatCompletionMessageFunctionToolCall(
            id=new_id(),
            type="function",
            function=Function(name=part.call.name, arguments=part.call.arguments),
        )
        for part in parts
        if part.call is not None
    ]
    content = "".join(part.content for part in parts)
    reasoning = "".join(part.reasoning for part in parts)
    more: dict[str, Any] = {"reasoning_content": reasoning} if reasoning else {}
    return ChatCompletionMessage(
        role="assistant",
        content=None if calls and not content else content,
        tool_calls=calls or None,
        **more,
    )


async def chunks(
    service: Service,
    body: ChatBody,
    answers: Answers,
    readers: Sequence[Reader],
    head: dict[str, Any],
) -> AsyncIterator[ChatCompletionChunk]:
    """The stream of a request: the role first, then text and calls, then why it ended."""
    head = {"object": "chat.completion.chunk", **head}
    with_usage = body.stream_options is not None and body.stream_options.include_usage
    if with_usage:
        head["usage"] = None
    for index in range(len(answers.jobs)):
        delta = ChoiceDelta(role="assistant", content="")
        yield ChatCompletionChunk.construct(choices=[_chunk(index, delta, None)], **head)
    async for index, piece in answers.pieces():
        reader = readers[index]
        deltas = _deltas(reader.read(piece), reader)
        if not deltas and (piece.logprobs or piece.ended):
            deltas = [ChoiceDelta()]
        choices = [_chunk(index, delta, None) for delta in deltas]
        if piece.ended:
            choices[-1].finish_reason = reader.reason(piece.ended)
        if body.logprobs and choices:
            hidden = answers.jobs[index].order.hidden
            choices[0].logprobs = logprobs(service, body, [piece], hidden)
        for choice in choices:
            yield ChatCompletionChunk.construct(choices=[choice], **head)
    if with_usage:
        prompt = len(answers.jobs[0].order.prompt)
        head["usage"] = usage_of(answers.jobs, [prompt], speculation=body.ngramspec.usage)
        yield ChatCompletionChunk.construct(choices=[], **head)


def _deltas(parts: Sequence[Part], reader: Reader) -> list[ChoiceDelta]:
    """What parts add to a message that is streamed: each call at once."""
    found = []
    number = reader.calls - sum(part.call is not None for part in parts)
    for part in parts:
        if part.call is not None:
            function = ChoiceDeltaToolCallFunction(
                name=part.call.name, arguments=part.call.arguments
            )
            call = ChoiceDeltaToolCall(
                index=number, id=new_id(), type="function", function=function
            )
            number += 1
            found.append(ChoiceDelta(tool_calls=[call]))
        elif part.reasoning:
            more: dict[str, Any] = {"reasoning_content": part.reasoning}
            found.append(ChoiceDelta(**more))
        else:
            found.append(ChoiceDelta(content=part.content))
    return found


def new_id() -> str:
    """A new id of a call."""
    return f"call_{uuid4().hex[:24]}"


def _chunk(index: int, delta: ChoiceDelta, ended: str | None) -> ChunkChoice:
    reason: Any = ended
    return ChunkChoice.construct(index=index, delta=delta, finish_reason=reason)


def logprobs(
    service: Service, body: ChatBody, pieces: Sequence[Delta], hidden: Container[int] | None
) -> ChoiceLogprobs | None:
    """The log-probabilities of some pieces, in the form of this route.

    Args:
        service: that answered.
        body: of the request.
        pieces: of one answer.
        hidden: see ``CompletionRequest``.
    """
    if not body.logprobs:
        return None
    found = []
    for each in (each for piece in pieces for each in piece.logprobs):
        top = [
            TopLogprob(**_token(service, token, hidden), logprob=value) for token, value in each.top
        ]
        own = _token(service, each.token, hidden)
        value = each.logprob or 0.0
        found.append(ChatCompletionTokenLogprob(**own, logprob=value, top_logprobs=top))
    return ChoiceLogprobs(content=found)


def _token(service: Service, token: int, hidden: Container[int] | None) -> dict[str, Any]:
    """A token's text and bytes. Joined, the bytes of all tokens are the answer's text."""
    found = service.bytes_of(token, hidden)
    return {"token": service.decode([token]), "bytes": None if found is None else list(found)}
