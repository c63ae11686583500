"""llama.cpp's routes, as far as llama.vim, llama.vscode and other clients of it use them.

Differences: ``/infill`` without ``temperature`` is greedy, because llama.cpp's sampler ``infill``
nearly is; that sampler's merging of tokens is not implemented. ``t_max_prompt_ms``, ``id_slot`` and
``cache_prompt`` have no effect here and are ignored.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Any

from anyio.to_thread import run_sync
from fastapi import Request, Response

from ngramspec import __version__
from ngramspec.server.auth import Client
from ngramspec.server.engine import Answers
from ngramspec.server.errors import refuse_unless
from ngramspec.server.job import LENGTH, CompletionRequest, Delta, Job, answers_of
from ngramspec.server.openai_types import InfillBody, LlamaBody, TokenizeBody
from ngramspec.server.responses import Stream, json_response
from ngramspec.server.sampling import Sampling
from ngramspec.server.service import Service
from ngramspec.server.usage import speculation_of, timings_of

DEFAULT_TEMPERATURE = 0.8  # of ``/completion``, as in llama.cpp
MAX_TEXT_CHARACTERS = 1 << 18  # in a request to ``/tokenize``; not tuned
SAMPLING_FIELDS = {
    *("n_predict", "seed", "stop", "ignore_eos", "top_k", "top_p", "min_p"),
    *("repeat_penalty", "presence_penalty", "frequency_penalty"),
}


async def respond(service: Service, body: LlamaBody, client: Client, request: Request) -> Any:
    """Answer a request, whole or as a stream. An ApiError names the invalid field."""
    service.check_model(body.model)
    for name in ("grammar", "json_schema"):
        refuse_unless(getattr(body, name) is None, name, "not supported on this route")
    refuse_unless(body.n_cmpl == 1 or not body.stream, "n_cmpl", "only 1 with stream")
    completions = await service.reading.run(request, requests_of, service, body, client)
    answers = Answers(service.engine, completions, client)
    if body.stream:
        return Stream(chunks(service, body, answers), answers.cancel, done=False)
    found = await answers.whole(request)
    return await run_sync(whole, service, body, answers, found)


def encoded(service: Service, body: LlamaBody) -> list[int]:
    """The ids of a prompt that continues ``prompt``, or whose continuation fills in the middle.

    The middle is between ``input_prefix`` plus ``prompt`` and ``input_suffix``. A prompt for it
    that is too long loses the oldest of ``input_extra`` first, then the beginning of the prefix and
    the end of the suffix.
    """
    if not isinstance(body, InfillBody):
        return service.encode(body.prompt) if isinstance(body.prompt, str) else body.prompt
    fim = service.filler("input_suffix")
    refuse_unless(isinstance(body.prompt, str), "prompt", "it must be text here")
    asked = body.n_predict if body.n_predict >= 0 else service.settings.max_tokens
    return fim.prompt(
        body.input_prefix,
        body.input_suffix,
        line=str(body.prompt),
        files=body.input_extra,
        name=body.filename,
        room=max(service.context - min(asked, service.context // 2) - 1, 1),
    )


def whole(
    service: Service, body: LlamaBody, answers: Answers, found: Sequence[Sequence[Delta]]
) -> Response:
    """The response without streaming."""
    made = [
        picked(final(service, body, job, deltas), body.response_fields)
        for job, deltas in zip(answers.jobs, found, strict=True)
    ]
    return json_response(made[0] if len(made) == 1 else made)


def requests_of(service: Service, body: LlamaBody, client: Client) -> list[CompletionRequest]:
    """The completion request of each answer. This can take seconds."""
    service.check_count(body.n_cmpl, "n_cmpl")
    prompt = service.check_prompt(encoded(service, body))
    asked = body.n_predict if body.n_predict >= 0 else None
    eos = service.ends_of(prompt)
    default = 0.0 if isinstance(body, InfillBody) else DEFAULT_TEMPERATURE
    sampling = Sampling(
        temperature=default if body.temperature is None else max(body.temperature, 0.0),
        top_p=body.top_p or 1.0,
        top_k=max(body.top_k, 0),
        min_p=body.min_p,
        presence_penalty=body.presence_penalty,
        frequency_penalty=body.frequency_penalty,
        repetition_penalty=body.repeat_penalty,
        seed=body.seed if body.seed >= 0 else None,
        banned=eos if body.ignore_eos else (),
    )
    common: dict[str, Any] = {
        "prompt": prompt,
        "user": client.user,
        "max_tokens": service.max_tokens(asked, prompt, "n_predict"),
        "stops": tuple(body.stop),
        "indent": body.n_indent,
        "eos": eos,
        "seconds": body.t_max_predict_ms / 1000 or None,
        "reference": service.reference(body.ngramspec)(prompt),
        "stores": service.stores(body.ngramspec, client),
        "speculate": body.ngramspec.speculate,
    }
    return answers_of(sampling, body.n_cmpl, **common)


async def chunks(
    service: Service, body: LlamaBody, answers: Answers
) -> AsyncIterator[dict[str, Any]]:
    """The events of a streamed response: text, then the final event with everything else."""
    async for _, delta in answers.deltas():
        if delta.ended is not None:
            yield final(service, body, answers.jobs[0], [delta])
        elif delta.text:
            yield {"content": delta.text, "tokens": [], "stop": False}


def final(service: Service, body: LlamaBody, job: Job, deltas: Sequence[Delta]) -> dict[str, Any]:
    """llama.cpp's JSON of an answer that has ended."""
    last, progress = deltas[-1], job.progress
    answer = {
        "content": "".join(delta.text for delta in deltas),
        "tokens": list(progress.tokens) if body.return_tokens else [],
        "stop": True,
        "model": service.settings.name,
        "stop_type": stop_type(last),
        "stopping_word": last.stop or "",
        "tokens_predicted": len(progress.tokens),
        "tokens_evaluated": len(job.request.prompt),
        "tokens_cached": len(job.request.prompt) + max(len(progress.tokens) - 1, 0),
        "truncated": False,
        "timings": timings_of([job]),
    }
    if body.ngramspec.usage:
        answer["ngramspec"] = speculation_of([job])
    return answer


def stop_type(last: Delta) -> str:
    """Why an answer ended, in llama.cpp's terms; too little indentation counts as "limit"."""
    if last.stop:
        return "word"
    return "limit" if last.ended == LENGTH or last.stop is not None else "eos"


def picked(answer: dict[str, Any], fields: Sequence[str] | None) -> dict[str, Any]:
    """The fields that ``response_fields`` lists, under those names; None: all fields."""
    if fields is None:
        return answer
    found = {}
    for name in fields:
        value: Any = answer
        for part in name.split("/"):
            value = value.get(part) if isinstance(value, dict) else None
        if value is not None:
            found[name] = value
    return found


def props(service: Service) -> dict[str, Any]:
    """The context size, the template and the default parameters."""
    tokenizer, name = service.tokenizer, service.settings.name
    params = LlamaBody().model_dump(include=SAMPLING_FIELDS) | {"temperature": DEFAULT_TEMPERATURE}
    template = getattr(tokenizer, "chat_template", None)
    if isinstance(template, dict):  # several templates by name
        template = template.get("default")
    return {
        "default_generation_settings": {"n_ctx": service.context, "params": params},
        "total_slots": service.settings.limits.active,
        "model_alias": name,
        "model_path": name,  # the path itself is of no use to a client
        "chat_template": template or "",
        "bos_token": tokenizer.bos_token or "",
        "eos_token": tokenizer.eos_token or "",
        "modalities": {"vision": False, "audio": False},
        "build_info": f"ngramspec {__version__}",
    }


async def tokenize(
    service: Service, body: TokenizeBody, client: Client, request: Request
) -> Response:
    """The ids of a text; an ApiError if ``with_pieces`` is set, or the text is too long."""
    refuse_unless(not body.with_pieces, "with_pieces", "not supported here")
    message = f"at most {MAX_TEXT_CHARACTERS} characters, got {len(body.content)}"
    refuse_unless(len(body.content) <= MAX_TEXT_CHARACTERS, "content", message)
    return await service.reading.run(request, _tokenized, service, body)


def _tokenized(service: Service, body: TokenizeBody) -> Response:
    if body.parse_special:
        ids = service.encode_prompt(body.content, body.add_special, None)
    else:
        before = service.text.lead if body.add_special else []
        ids = before + service.text.encode(body.content)
    return json_response({"tokens": ids})
