"""OpenAI's routes: ``/v1/completions`` and ``/v1/chat/completions``, whole or streamed."""

from __future__ import annotations

import asyncio
import json
import time
from abc import abstractmethod
from codecs import getincrementaldecoder
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict
from functools import partial
from inspect import signature
from typing import Any, TypeVar
from uuid import uuid4

from fastapi import Response

from ngramspec.drafters.tool_calls import CLOSE, OPEN, ToolCalls
from ngramspec.server.bodies import ChatBody, Common, CompletionBody, Message, joined, json_value
from ngramspec.server.engine import STOP, AnswerJob, Answers, Delta
from ngramspec.server.grammars import GrammarSource, bounded_json
from ngramspec.server.metrics import choice_stats_of, ending, timings_of
from ngramspec.server.prompts import NotTextError, TooManyTokensError, chat_ids, prompt_text
from ngramspec.server.responses import ApiError, bad, json_response, refuse_unless
from ngramspec.server.service import BUILD, Reply, Service
from ngramspec.server.settings import Client, Limits
from ngramspec.server.tools import Part, TagParser, TemplateParser

T = TypeVar("T")


class OpenAIReply(Reply):
    """The answers to a request, in OpenAI's form."""

    body: Common
    kinds: tuple[str, str]  # of objects: a whole response and an event
    prefix: str  # of a response's id

    def __init__(self, service: Service, body: Common, client: Client) -> None:
        super().__init__(service, body, client)
        self._head = {
            "id": f"{self.prefix}-{uuid4().hex}",
            "created": int(time.time()),
            "model": service.settings.name,
            "system_fingerprint": BUILD,
        }

    @abstractmethod
    def choice(self, index: int, delta: Delta) -> dict[str, Any]:
        """A whole answer."""

    @abstractmethod
    def chunks(self, index: int, delta: Delta) -> Iterator[dict[str, Any]]:
        """The parts of an answer that its next delta completes."""

    def first_chunks(self) -> list[dict[str, Any]]:
        """What a stream begins with."""
        return []

    def whole(self, jobs: Sequence[AnswerJob], found: Sequence[Delta]) -> Any:
        choices = [
            self.choice(index, delta) | self._stats(job)
            for index, (job, delta) in enumerate(zip(jobs, found, strict=True))
        ]
        end = ending(jobs, self.body)
        return {"object": self.kinds[0], "choices": choices, **end, **self._head}

    async def events(self, answers: Answers) -> AsyncIterator[Any]:
        options = self.body.stream_options
        with_usage = options is not None and options.include_usage
        head = {"object": self.kinds[1], **self._head} | ({"usage": None} if with_usage else {})
        for chunk in self.first_chunks():
            yield {"choices": [chunk], **head}
        async for index, delta in answers.deltas():
            for chunk in self.chunks(index, delta):
                if chunk["finish_reason"]:
                    chunk |= self._stats(answers.jobs[index])
                    if answers.ended and not with_usage:
                        head["timings"] = timings_of(answers.jobs)
                yield {"choices": [chunk], **head}
                await asyncio.sleep(0)
        if with_usage:
            yield {"choices": [], **head, **ending(answers.jobs, self.body)}

    def _stats(self, job: AnswerJob) -> dict[str, Any]:
        """An answer's statistics, if they are asked for."""
        asked = self.body.ngramspec.usage
        return {"speculative_decoding_stats": choice_stats_of(job)} if asked else {}


class CompletionReply(OpenAIReply):
    """The answers to each prompt, prompt by prompt."""

    body: CompletionBody
    kinds, prefix = ("text_completion", "text_completion"), "cmpl"

    def __init__(self, service: Service, body: CompletionBody, client: Client) -> None:
        super().__init__(service, body, client)
        n = body.n or 1
        refuse_unless(body.best_of in (None, n), "best_of", f"only n={n} is supported")
        refuse_unless(not (body.echo and body.suffix), "echo", "not supported with suffix")
        given_too = body.echo and body.logprobs is not None
        refuse_unless(not given_too, "echo", "not supported with logprobs")
        given: Any = body.prompt
        several = isinstance(given, list) and given and not isinstance(given[0], int)
        many: list[Any] = given if several else [given]
        ids = completion_ids(service, body, many)
        refuse_unless(bool(ids), "prompt", "it must have at least one prompt, got none")
        if body.max_tokens == 0 and not body.echo:
            raise bad("max_tokens", "0 is of use with echo only")
        self.requests = self.ask(
            [service.check_prompt(each) for each in ids],
            n,
            service.sampling(body),
            max_tokens=body.max_tokens,
            logprobs=(body.logprobs, "logprobs"),
            texts=many,
        )
        # The text to repeat before each answer.
        self._echoes = [""] * len(self.requests)
        if body.echo:
            texts = [each if isinstance(each, str) else service.decode(each) for each in many]
            self._echoes = [text for text in texts for _ in range(n)]
        self._offsets = [0] * len(self.requests)  # characters of the tokens with log-probabilities
        decoder = getincrementaldecoder("utf-8")
        self._decoders = [decoder("replace") for _ in self.requests]

    def chunks(self, index: int, delta: Delta) -> Iterator[dict[str, Any]]:
        if self._echoes[index] or delta.text or delta.ended or delta.logprobs:
            yield self.choice(index, delta)

    def choice(self, index: int, delta: Delta) -> dict[str, Any]:
        text, self._echoes[index] = self._echoes[index] + delta.text, ""
        logprobs = None if self.body.logprobs is None else self._logprobs(index, delta)
        found = {"index": index, "text": text, "logprobs": logprobs}
        return {**found, "finish_reason": delta.ended}

    def _logprobs(self, index: int, delta: Delta) -> dict[str, Any]:
        bytes_of, hidden = self.service.bytes_of, self.requests[index].hidden
        names, offsets, top = [], [], []
        for row in delta.logprobs:
            offsets.append(self._offsets[index])
            data = b"" if row.token in hidden else bytes_of(row.token)
            self._offsets[index] += len(self._decoders[index].decode(data))
            names.append(bytes_of.name(row.token))
            by_name: dict[str, float] = {}
            for token, value in (*row.top, (row.token, row.logprob)):
                by_name.setdefault(bytes_of.name(token), value)  # the more probable one
            top.append(by_name)
        values = [row.logprob for row in delta.logprobs]
        lists = {"tokens": names, "token_logprobs": values, "top_logprobs": top}
        return {**lists, "text_offset": offsets}


def completion_ids(service: Service, body: CompletionBody, many: list[Any]) -> list[list[int]]:
    """The ids of the prompts, which are texts or ids."""
    service.check_count(body.n or 1, "n", len(many))
    if not body.suffix:
        return [service.encode(each) if isinstance(each, str) else each for each in many]
    fim = service.filler("suffix")
    texts = all(isinstance(each, str) for each in many)
    refuse_unless(texts, "suffix", "it needs a prompt that is text")
    for each in many:
        service.check_text(each + body.suffix)
    return [fim.prompt(each, body.suffix) for each in many]


def apply_template(service: Service, body: ChatBody, client: Client) -> Response:
    """The text of a chat's prompt, as llama.cpp's ``/apply-template``.

    An assistant's last message is continued, unless ``continue_final_message`` is false.
    """
    service.check_model(body.model)
    if body.continue_final_message is None and body.continuable:
        body = body.model_copy(
            update={"continue_final_message": True, "add_generation_prompt": None}
        )
    check(service, body)
    render = partial(prompt_text, service.tokenizer, variables=body.variables)
    return json_response({"prompt": templated(service, body, render)})


def check(service: Service, body: ChatBody) -> None:
    """Refuse a chat's fields that are not supported; an ApiError names the field."""
    service.check_count(body.n or 1, "n")
    refuse_unless(not body.functions, "functions", "not supported here; use tools")
    refuse_unless(body.modalities in (None, ["text"]), "modalities", "only ['text'] is supported")
    asked = body.top_logprobs is None or bool(body.logprobs)
    refuse_unless(asked, "top_logprobs", "it needs logprobs=true")
    missing = f"the model {service.settings.name!r} has no chat template; use /v1/completions"
    known = getattr(service.tokenizer, "chat_template", None) is not None
    refuse_unless(known, "messages", missing)
    if body.offered:
        refuse_unless(service.tool_format is not None, "tools", service.why_no_tools)
    names = [tool["function"]["name"] for tool in body.offered]
    refuse_unless(all(names), "tools", "a function must have a name")
    refuse_unless(bool(names) or not body.must_call, "tool_choice", "there are no tools to call")
    refuse_unless(body.chosen in (None, *names), "tool_choice", f"there is no tool {body.chosen!r}")
    if body.continue_final_message:
        param = "continue_final_message"
        both = body.add_generation_prompt is True
        refuse_unless(not both, param, "not supported with add_generation_prompt=true")
        refuse_unless(body.continuable, param, "the last message must be text of the assistant")
    own = {*signature(service.tokenizer.apply_chat_template).parameters, "messages"}
    for name in body.chat_template_kwargs or ():
        message = f"{name!r} cannot be set, only the template's own variables"
        refuse_unless(name not in own, "chat_template_kwargs", message)


def chat_prompt(service: Service, body: ChatBody) -> list[int]:
    """The ids that the model's own template makes of the messages and tools."""
    ids_of = partial(
        chat_ids,
        service.text,
        variables=body.variables,
        encode=partial(service.encode, param="messages", framed=False),
        max_ids=service.context - 1,
    )
    return templated(service, body, ids_of)


def templated(service: Service, body: ChatBody, apply: Callable[[list[Any], list[Any]], T]) -> T:
    """What ``apply`` makes of messages and tools with the model's own template."""
    given = [template_message(service, each) for each in body.messages]
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
        # A template's own message, in one line; for Python errors only the type.
        found = str(getattr(error, "message", None) or "").partition("\n")[0]
        own = type(error).__module__.startswith("jinja2.") and found
        words = own or type(error).__name__
        raise bad(blamed, f"the model's template refuses them: {words}") from error


def template_message(service: Service, message: Message) -> dict[str, Any]:
    """A message in the form for templates: the arguments of its calls are objects."""
    given: dict[str, Any] = message.model_dump(exclude_unset=True) | {
        "content": joined(message.content)
    }
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


def source_of(service: Service, body: ChatBody) -> GrammarSource | None:
    """The grammar that a chat asks for, or an ApiError if it is not supported; None: any text."""
    form, param = body.response_format, body.constrained_by
    if form is not None and form.type != "text":
        param = "response_format"
        refuse_unless(not body.offered, param, "not supported together with tools")
        service.check_grammars(param, form.type)
        if form.type == "json_object":
            return param, "json", ""
        schema = (form.json_schema or {}).get("schema")
        refuse_unless(isinstance(schema, dict), param, "json_schema has no schema")
        return param, "json_schema", bounded_json(param, schema)
    if param is None:
        return None
    assert service.tool_format is not None
    tagged = service.tool_format.template is None
    refuse_unless(tagged, param, "not supported for the form of this model's calls")
    service.check_grammars(param, "this value")
    return "tools", "structural_tag", bounded_json("tools", structural_tag(body))


def structural_tag(body: ChatBody) -> dict[str, Any]:
    """xgrammar's structural tag for the calls that a request allows."""
    chosen = body.chosen
    functions = [tool["function"] for tool in body.offered]
    tags = []
    for each in functions:
        if chosen in (None, each["name"]):
            schema = each.get("parameters") or {"type": "object"}
            begin = f'{OPEN}\n{{"name": {json.dumps(each["name"])}, "arguments": '
            content = {"type": "json_schema", "json_schema": schema}
            tag = {"type": "tag", "begin": begin, "content": content, "end": f"}}\n{CLOSE}"}
            tags.append(tag)
    form: dict[str, Any] = {"tags": tags, "stop_after_first": not body.several}
    if body.must_call:
        form |= {"type": "tags_with_separator", "separator": "\n", "at_least_one": True}
    else:
        form |= {"type": "triggered_tags", "triggers": [OPEN]}
    return {"type": "structural_tag", "format": form}


class AnswerReader:
    """Converts the deltas of one answer to content, reasoning and calls."""

    def __init__(
        self, parser: TagParser | TemplateParser | None, several: bool, closing: str | None
    ) -> None:
        self._parser, self._several, self._closing = parser, several, closing
        self._calls = 0  # calls seen so far
        self._sent = 0  # calls streamed so far

    def read(self, delta: Delta) -> list[Part]:
        """The parts that a delta completes; nothing is held back once the answer has ended."""
        text = delta.text
        if delta.stop is not None and delta.stop == self._closing:
            text += delta.stop
        if self._parser is None:
            return [Part(text)] if text else []
        shown = []
        for part in self._parser.add(text, last=delta.ended is not None):
            if self._several or not self._calls:
                shown.append(part)
                self._calls += part.call is not None
        return shown

    def streamed(self, part: Part) -> dict[str, Any]:
        """The streamed delta of a part; a call is sent whole."""
        if part.call is None:
            name = "reasoning_content" if part.reasoning else "content"
            return {name: part.reasoning or part.content}
        self._sent += 1
        return {"tool_calls": [{"index": self._sent - 1, **call_json(part)}]}

    def reason(self, ended: str) -> Any:
        """The finish reason: "tool_calls" if there are calls and the answer was not cut off."""
        return "tool_calls" if self._calls and ended == STOP else ended


class ChatReply(OpenAIReply):
    """The answers to a chat."""

    body: ChatBody
    kinds, prefix = ("chat.completion", "chat.completion.chunk"), "chatcmpl"

    def __init__(self, service: Service, body: ChatBody, client: Client) -> None:
        super().__init__(service, body, client)
        check(service, body)
        prompt = service.check_prompt(chat_prompt(service, body), "messages")
        self.source = source_of(service, body)
        name = "max_tokens" if body.max_completion_tokens is None else "max_completion_tokens"
        asked: int | None = getattr(body, name)
        refuse_unless(asked != 0, name, "it must be >= 1, got 0")
        tools = service.tool_format if body.offered else None
        closing = None  # the stop string that ends an answer after its only call
        if tools is not None and not body.several and tools.closing not in body.stops:
            closing = tools.closing
        predicted = None  # tools whose calls are drafted; a grammar knows them better
        if body.offered and self.source is None and service.call_format is not None:
            predicted = ToolCalls(body.offered, service.call_format)
        self.requests = self.ask(
            [prompt],
            body.n or 1,
            service.sampling(body),
            max_tokens=asked,
            logprobs=((body.top_logprobs or 0) if body.logprobs else None, "top_logprobs"),
            stops=body.stops if closing is None else (*body.stops, closing),
            eos=service.eos,
            hidden=service.hidden if tools is None else tools.hidden.union(service.eos),
            tools=predicted,
            first=False,
        )
        text = "" if tools is None else service.decode(prompt.tolist())
        self._readers = []
        for _ in self.requests:
            parser = None
            if tools is not None:
                parser = tools.parser(service.tokenizer, text, body.offered, body.must_call)
            self._readers.append(AnswerReader(parser, body.several, closing))

    def choice(self, index: int, delta: Delta) -> dict[str, Any]:
        reader = self._readers[index]
        return {
            "index": index,
            "message": message_of(reader.read(delta)),
            "finish_reason": reader.reason(delta.ended or STOP),
            "logprobs": self._logprobs(index, delta),
        }

    def first_chunks(self) -> list[dict[str, Any]]:
        role = {"role": "assistant", "content": ""}
        return [_chunk(index, role) for index in range(len(self.requests))]

    def chunks(self, index: int, delta: Delta) -> Iterator[dict[str, Any]]:
        reader = self._readers[index]
        chunks = [_chunk(index, reader.streamed(part)) for part in reader.read(delta)]
        if not chunks and (delta.logprobs or delta.ended):
            chunks = [_chunk(index, {})]
        if delta.ended:
            chunks[-1]["finish_reason"] = reader.reason(delta.ended)
        if chunks:
            chunks[0]["logprobs"] = self._logprobs(index, delta)
        yield from chunks

    def _logprobs(self, index: int, delta: Delta) -> dict[str, Any] | None:
        if not self.body.logprobs:
            return None
        hidden = self.requests[index].hidden
        content = [self.service.bytes_of.row(each, hidden) for each in delta.logprobs]
        return {"content": content, "refusal": None}


def message_of(parts: Sequence[Part]) -> dict[str, Any]:
    """The message of an answer; its content is None if there are only calls."""
    calls = [call_json(part) for part in parts if part.call is not None]
    content = "".join(part.content for part in parts)
    reasoning = "".join(part.reasoning for part in parts)
    message: dict[str, Any] = {"role": "assistant", "content": content, "refusal": None}
    if calls:
        message |= {"content": content or None, "tool_calls": calls}
    if reasoning:
        message["reasoning_content"] = reasoning
    return {**message, "annotations": []}


def call_json(part: Part) -> dict[str, Any]:
    """A part's call, with a new id."""
    assert part.call is not None
    name = f"call_{uuid4().hex[:24]}"
    return {"id": name, "type": "function", "function": asdict(part.call)}


def _chunk(index: int, delta: dict[str, Any]) -> dict[str, Any]:
    return {"index": index, "delta": delta, "logprobs": None, "finish_reason": None}
