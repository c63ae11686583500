"""``/v1/completions``."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any
from uuid import uuid4

from anyio.to_thread import run_sync
from fastapi import Request, Response
from openai.types import Completion
from openai.types.completion_choice import CompletionChoice, Logprobs

from ngramspec.draft import Int32
from ngramspec.server.auth import Client
from ngramspec.server.errors import bad, refuse_unless
from ngramspec.server.job import STOP, CompletionRequest, Delta, answers_of
from ngramspec.server.json_text import json_response
from ngramspec.server.openai_types import CompletionBody
from ngramspec.server.sampling import TokenLogprobs
from ngramspec.server.service import Answers, Service
from ngramspec.server.sse import stream_of
from ngramspec.server.usage import timings_of, usage_of

STREAMED_ROWS = 32  # tokens with log-probabilities in one event; not tuned


@dataclass(slots=True)
class CheckedRequest:
    """A request that passed all checks: its prompts, int32 (n,), and their texts for ``echo``."""

    body: CompletionBody
    prompts: list[Int32]
    texts: list[str]

    @property
    def n(self) -> int:
        """Number of answers to each prompt."""
        return self.body.n or 1

    def echo(self, index: int) -> str:
        """The text to repeat before an answer."""
        return self.texts[index // self.n] if self.texts else ""


async def complete(service: Service, body: CompletionBody, client: Client, request: Request) -> Any:
    """Answer a request, whole or as a stream. An ApiError names the invalid field."""
    checked, completions = await service.reading.run(request, read, service, body, client)
    answers = Answers(service.engine, completions, client)
    head = service.head(f"cmpl-{uuid4().hex}")
    if body.stream:
        return stream_of(chunks(service, checked, answers, head), answers.cancel)
    found = await answers.whole(request)
    return await run_sync(whole, service, checked, answers, found, head)


def read(
    service: Service, body: CompletionBody, client: Client
) -> tuple[CheckedRequest, list[CompletionRequest]]:
    """The checked request and the completion request of each answer. This can take seconds."""
    service.check_model(body.model)
    n = body.n or 1
    refuse_unless(body.best_of in (None, n), "best_of", f"only n={n} is supported")
    refuse_unless(not (body.echo and body.suffix), "echo", "not supported with suffix")
    many, ids = _encoded(service, body)
    refuse_unless(bool(ids), "prompt", "it must have at least one prompt, got none")
    prompts = [service.check_prompt(each) for each in ids]
    if body.max_tokens == 0 and not body.echo:
        raise bad("max_tokens", "0 is of use with echo only")
    shown = many if body.echo else []
    texts = [each if isinstance(each, str) else service.decode(each) for each in shown]
    checked = CheckedRequest(body, prompts, texts)
    return checked, requests_of(service, checked, client)


def _encoded(service: Service, body: CompletionBody) -> tuple[list[Any], list[list[int]]]:
    """The prompts as they were given, and their ids."""
    given: Any = body.prompt
    several = isinstance(given, list) and given and not isinstance(given[0], int)
    many: list[Any] = given if several else [given]
    service.check_count(body.n or 1, "n", len(many))
    if body.suffix:
        fim = service.filler("suffix")
        refuse_unless(
            all(isinstance(each, str) for each in many), "suffix", "it needs a prompt that is text"
        )
        for each in many:
            service.check_text(each + body.suffix)
        return many, [fim.prompt(each, body.suffix) for each in many]
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
            text=checked.echo(index) + "".join(delta.text for delta in deltas),
            finish_reason=_reason(deltas[-1]),
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
    offsets = [0] * len(answers.jobs)
    echoed = [checked.echo(index) for index in range(len(answers.jobs))]
    with_usage = checked.body.streams_usage
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
            ended = _reason(delta) if delta.ended and not rows else None
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
    usage = usage_of(answers.jobs, list(map(len, checked.prompts)), checked.body)
    return {**head, "usage": usage, "timings": timings_of(answers.jobs)}


def _reason(delta: Delta) -> Any:
    return delta.ended or STOP


def _logprobs(
    service: Service, checked: CheckedRequest, found: Sequence[TokenLogprobs], offset: int
) -> Logprobs | None:
    """Log-probabilities in this route's format, of tokens whose text begins at ``offset``."""
    if checked.body.logprobs is None:
        return None
    texts = [service.decode([each.token]) for each in found]
    offsets = list(accumulate(map(len, texts), initial=offset))[:-1]
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
