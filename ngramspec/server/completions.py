"""``/v1/completions``."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

from anyio.to_thread import run_sync
from fastapi import Request, Response
from openai.types import Completion
from openai.types.completion_choice import CompletionChoice, Logprobs

from ngramspec.draft import Int32
from ngramspec.server.auth import Client
from ngramspec.server.errors import bad, refuse_unless
from ngramspec.server.job import CompletionRequest, Delta, answers_of
from ngramspec.server.json_text import json_response
from ngramspec.server.openai_types import CompletionBody
from ngramspec.server.sampling import TokenLogprobs
from ngramspec.server.service import Answers, Service
from ngramspec.server.sse import stream_of
from ngramspec.server.usage import timings_of, usage_of

STREAMED_ROWS = 32  # tokens with log-probabilities in one event; not tuned


@dataclass(slots=True)
class CheckedRequest:
    """A request that passed all checks.

    Attributes:
        body: the request's body.
        prompts: token ids of each prompt, int32 (n,).
        texts: the text of each prompt that ``echo`` shows; empty without ``echo``.
        n: number of answers to each prompt.
    """

    body: CompletionBody
    prompts: list[Int32]
    texts: list[str]
    n: int


async def complete(service: Service, body: CompletionBody, client: Client, request: Request) -> Any:
    """Answer a request, whole or as a stream. An ApiError names the invalid field."""
    checked, completions = await service.reading.run(
        request, checked_and_completions, service, body, client
    )
    answers = service.submit(completions, client)
    name, key = service.settings.name, f"cmpl-{uuid4().hex}"
    head: dict[str, Any] = {"id": key, "created": int(time.time()), "model": name}
    if body.stream:
        return stream_of(chunks(service, checked, answers, head), answers.cancel)
    found = await answers.whole(request)
    return await run_sync(whole, service, checked, answers, found, head)


def checked_and_completions(
    service: Service, body: CompletionBody, client: Client
) -> tuple[CheckedRequest, list[CompletionRequest]]:
    """The checked request and the completion request of each answer. This can take seconds."""
    checked = read(service, body)
    return checked, requests_of(service, checked, client)


def read(service: Service, body: CompletionBody) -> CheckedRequest:
    """Check a request and encode its prompts."""
    service.check_model(body.model)
    n = body.n or 1
    refuse_unless(body.best_of in (None, n), "best_of", f"only n={n} is supported")
    refuse_unless(not (body.echo and body.suffix), "echo", "not supported with suffix")
    many, ids = _encoded(service, body)
    refuse_unless(bool(ids), "prompt", "it must have at least one prompt, got none")
    prompts = [service.check_prompt(each) for each in ids]
    if body.max_tokens == 0 and not body.echo:
        raise bad("max_tokens", "0 is of use with echo only")
    texts = []
    if body.echo:
        texts = [each if isinstance(each, str) else service.decode(each) for each in many]
    return CheckedRequest(body, prompts, texts, n)


def _encoded(service: Service, body: CompletionBody) -> tuple[list[Any], list[list[int]]]:
    """The prompts as they were given, and their ids."""
    given: Any = body.prompt
    many: list[Any] = [given]
    if isinstance(given, list) and given and not isinstance(given[0], int):
        many = given
    service.check_count(body.n or 1, "n", len(many))
    if body.suffix:
        service.check_fills("suffix")
        assert service.fim is not None
        refuse_unless(
            all(isinstance(each, str) for each in many), "suffix", "it needs a prompt that is text"
        )
        for each in many:
            service.check_text(each + body.suffix)
        return many, [service.fim.prompt(each, body.suffix) for each in many]
    return many, [service.encode(each) if isinstance(each, str) else each for each in many]


def requests_of(
    service: Service, checked: CheckedRequest, client: Client
) -> list[CompletionRequest]:
    """The completion request of each answer, prompt by prompt."""
    body, sampling = checked.body, service.sampling(checked.body)
    common: dict[str, Any] = {
        "user": client.user,
        "stops": body.stops,
        "top_logprobs": body.logprobs,
        "prompt_logprobs": bool(body.echo) and body.logprobs is not None,
        "stores": service.stores(body.ngramspec, client),
        "speculate": body.ngramspec.speculate,
        "session": body.prompt_cache_key or None,
    }
    reference = service.reference(body.ngramspec, body.prediction)
    completions = []
    for prompt in checked.prompts:
        own = common | {
            "prompt": prompt,
            "max_tokens": service.max_tokens(body.max_tokens, prompt),
            "eos": service.ends_of(prompt),
            "reference": reference.before(prompt),
        }
        completions += answers_of(sampling, checked.n, **own)
    service.check_logprobs(completions, "logprobs")
    return completions


def whole(
    service: Service,
    checked: CheckedRequest,
    answers: Answers,
    found: Sequence[Sequence[Delta]],
    head: dict[str, Any],
) -> Response:
    """The response without streaming. With log-probabilities this can take seconds."""
    choices = [
        CompletionChoice(
            index=index,
            text=_echo(checked, index) + "".join(delta.text for delta in deltas),
            finish_reason=_reason(deltas[-1].ended),
            logprobs=_logprobs(
                service, checked, [row for delta in deltas for row in delta.logprobs], 0
            ),
        )
        for index, deltas in enumerate(found)
    ]
    return json_response(
        Completion(object="text_completion", choices=choices, **_ending(checked, answers, head))
    )


async def chunks(
    service: Service, checked: CheckedRequest, answers: Answers, head: dict[str, Any]
) -> AsyncIterator[Completion]:
    """The events of a streamed response."""
    body = checked.body
    offsets = [0] * len(answers.jobs)
    echoed = [_echo(checked, index) for index in range(len(answers.jobs))]
    with_usage = body.stream_options is not None and body.stream_options.include_usage
    empty: dict[str, Any] = {"usage": None} if with_usage else {}
    async for index, delta in answers.deltas():
        text, echoed[index] = echoed[index] + delta.text, ""
        if not text and delta.ended is None and not delta.logprobs:
            continue
        rows, offset = delta.logprobs, offsets[index]
        offsets[index] += len(text)
        last = empty if with_usage or not answers.ended else {"timings": timings_of(answers.jobs)}
        while True:
            now, rows = rows[:STREAMED_ROWS], rows[STREAMED_ROWS:]
            ended = _reason(delta.ended) if delta.ended and not rows else None
            logprobs = _logprobs(service, checked, now, offset)
            choice = CompletionChoice.construct(
                index=index, text="" if rows else text, finish_reason=ended, logprobs=logprobs
            )
            also = empty if rows else last
            yield Completion.construct(object="text_completion", choices=[choice], **also, **head)
            if logprobs is None or not rows:
                break
            offset = logprobs.text_offset[-1] + len(logprobs.tokens[-1])
            await asyncio.sleep(0)
    if with_usage:
        end = _ending(checked, answers, head)
        yield Completion.construct(object="text_completion", choices=[], **end)


def _ending(checked: CheckedRequest, answers: Answers, head: dict[str, Any]) -> dict[str, Any]:
    """The fields of a response whose answers have ended."""
    usage = usage_of(answers.jobs, _sizes(checked), checked.body)
    return {**head, "usage": usage, "timings": timings_of(answers.jobs)}


def _echo(checked: CheckedRequest, index: int) -> str:
    return checked.texts[index // checked.n] if checked.body.echo else ""


def _reason(ended: str | None) -> Any:
    return ended or "stop"


def _sizes(checked: CheckedRequest) -> list[int]:
    return [len(each) for each in checked.prompts]


def _logprobs(
    service: Service, checked: CheckedRequest, found: Sequence[TokenLogprobs], offset: int
) -> Logprobs | None:
    """Log-probabilities in this route's format, of tokens whose text begins at ``offset``."""
    if checked.body.logprobs is None:
        return None
    texts = [service.decode([each.token]) for each in found]
    offsets = []
    for text in texts:
        offsets.append(offset)
        offset += len(text)
    top: list[Any] = [
        None
        if each.logprob is None
        else {service.decode([token]): value for token, value in each.top}
        for each in found
    ]
    return Logprobs.construct(
        tokens=texts,
        token_logprobs=[each.logprob for each in found],
        top_logprobs=top,
        text_offset=offsets,
    )
