"""``/v1/completions``."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Any
from uuid import uuid4

from anyio.to_thread import run_sync
from fastapi import Request, Response
from openai.types import Completion
from openai.types.completion_choice import CompletionChoice, Logprobs

from ngramspec.server.auth import Client
from ngramspec.server.engine import Answers
from ngramspec.server.errors import bad, refuse_unless
from ngramspec.server.job import STOP, CompletionRequest, Delta, answers_of
from ngramspec.server.openai_types import CompletionBody
from ngramspec.server.responses import Stream, json_response
from ngramspec.server.sampling import TokenLogprobs
from ngramspec.server.service import Service
from ngramspec.server.token_names import TokenNames
from ngramspec.server.usage import ending, timings_of

STREAMED_ROWS = 32  # tokens with log-probabilities in one event; not tuned


async def complete(service: Service, body: CompletionBody, client: Client, request: Request) -> Any:
    """Answer a request, whole or as a stream. An ApiError names the invalid field."""
    completions, echoes, names = await service.reading.run(request, read, service, body, client)
    answers = Answers(service.engine, completions, client)
    head = service.head(f"cmpl-{uuid4().hex}")
    if body.stream:
        return Stream(chunks(body, answers, echoes, names, head), answers.cancel)
    found = await answers.whole(request)
    return await run_sync(whole, body, answers, found, echoes, names, head)


def read(
    service: Service, body: CompletionBody, client: Client
) -> tuple[list[CompletionRequest], list[str], list[TokenNames]]:
    """Check a request. This can take seconds.

    Returns the completion request of each answer, prompt by prompt; the text to repeat before each
    answer, its prompt if ``echo`` is set, else ""; and with ``logprobs`` the names of its tokens.
    """
    service.check_model(body.model)
    n = body.n or 1
    refuse_unless(body.best_of in (None, n), "best_of", f"only n={n} is supported")
    refuse_unless(not (body.echo and body.suffix), "echo", "not supported with suffix")
    given: Any = body.prompt
    several = isinstance(given, list) and given and not isinstance(given[0], int)
    many: list[Any] = given if several else [given]
    ids = _encoded(service, body, many)
    refuse_unless(bool(ids), "prompt", "it must have at least one prompt, got none")
    prompts = [service.check_prompt(each) for each in ids]
    if body.max_tokens == 0 and not body.echo:
        raise bad("max_tokens", "0 is of use with echo only")
    echoes = [""] * (n * len(many))
    if body.echo:
        texts = [each if isinstance(each, str) else service.decode(each) for each in many]
        echoes = [text for text in texts for _ in range(n)]
    common: dict[str, Any] = {
        "user": client.user,
        "stops": body.stops,
        "top_logprobs": body.logprobs,
        "prompt_logprobs": bool(body.echo) and body.logprobs is not None,
        "stores": service.stores(body.ngramspec, client),
        "speculate": body.ngramspec.speculate,
        "session": body.prompt_cache_key or None,
    }
    sampling = service.sampling(body)
    reference = service.reference(body.ngramspec, body.prediction)
    completions = []
    for prompt in prompts:
        own = common | {
            "prompt": prompt,
            "max_tokens": service.max_tokens(body.max_tokens, prompt, "max_tokens"),
            "eos": service.ends_of(prompt),
            "reference": reference(prompt),
        }
        completions += answers_of(sampling, n, **own)
    service.check_logprobs(completions, "logprobs")
    names = []
    if body.logprobs is not None:
        framings = [service.text.framing(each) for each in many for _ in range(n)]
        names = [
            service.names(each, framing=framing, echoed=each.prompt_logprobs)
            for each, framing in zip(completions, framings, strict=True)
        ]
    return completions, echoes, names


def _encoded(service: Service, body: CompletionBody, many: list[Any]) -> list[list[int]]:
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


def whole(
    body: CompletionBody,
    answers: Answers,
    found: Sequence[Sequence[Delta]],
    echoes: Sequence[str],
    names: Sequence[TokenNames],
    head: dict[str, Any],
) -> Response:
    """The response without streaming. With log-probabilities this can take seconds."""
    choices = [
        CompletionChoice(
            index=index,
            text=echoes[index] + "".join(delta.text for delta in deltas),
            finish_reason=_reason(deltas[-1]),
            logprobs=_logprobs(
                names[index], [row for delta in deltas for row in delta.logprobs], last=True
            )
            if names
            else None,
        )
        for index, deltas in enumerate(found)
    ]
    end = ending(answers.jobs, body)
    return json_response(Completion(object="text_completion", choices=choices, **end, **head))


async def chunks(
    body: CompletionBody,
    answers: Answers,
    echoes: Sequence[str],
    names: Sequence[TokenNames],
    head: dict[str, Any],
) -> AsyncIterator[Completion]:
    """The events of a streamed response."""
    echoed = list(echoes)
    with_usage = body.streams_usage
    head = {"object": "text_completion", **head}
    empty: dict[str, Any] = {"usage": None} if with_usage else {}
    async for index, delta in answers.deltas():
        text, echoed[index] = echoed[index] + delta.text, ""
        if not text and delta.ended is None and not delta.logprobs:
            continue
        rows = delta.logprobs
        last = empty if with_usage or not answers.ended else {"timings": timings_of(answers.jobs)}
        while True:
            now, rows = rows[:STREAMED_ROWS], rows[STREAMED_ROWS:]
            ended = _reason(delta) if delta.ended and not rows else None
            logprobs = _logprobs(names[index], now, last=bool(ended)) if names else None
            choice = CompletionChoice.construct(
                index=index, text="" if rows else text, finish_reason=ended, logprobs=logprobs
            )
            also = empty if rows else last
            yield Completion.construct(choices=[choice], **also, **head)
            if logprobs is None or not rows:
                break
            await asyncio.sleep(0)
    if with_usage:
        yield Completion.construct(choices=[], **ending(answers.jobs, body), **head)


def _reason(delta: Delta) -> Any:
    return delta.ended or STOP


def _logprobs(names: TokenNames, found: Sequence[TokenLogprobs], *, last: bool) -> Logprobs:
    """Log-probabilities of the next tokens in this route's format; ``last``: no others follow."""
    texts, offsets, top = [], [], []
    for left, each in enumerate(found, 1 - len(found)):
        offsets.append(names.offset)
        texts.append(names.add(each.token, last=last and not left))
        top.append(None if each.logprob is None else names.of(each, texts[-1]))
    return Logprobs.construct(
        tokens=texts,
        token_logprobs=[each.logprob for each in found],
        top_logprobs=top,
        text_offset=offsets,
    )
