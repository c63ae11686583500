"""llama.cpp's routes, as far as llama.vim, llama.vscode and other clients of it use them.

Differences: ``/infill`` without ``temperature`` is greedy, because llama.cpp's sampler ``infill``
nearly is; that sampler's merging of tokens is not implemented. The penalties count the whole text,
not its last ``repeat_last_n`` tokens. ``t_max_prompt_ms``, ``id_slot`` and ``cache_prompt`` have no
effect here and are ignored.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Any

from fastapi import Response

from ngramspec.server.bodies import (
    NEUTRAL,
    PARAMETERS,
    DetokenizeBody,
    InfillBody,
    LlamaBody,
    TokenizeBody,
)
from ngramspec.server.engine import LENGTH, AnswerJob, Answers, Delta, Sampling
from ngramspec.server.grammars import MAX_SCHEMA_CHARACTERS, GrammarSource, bounded_json
from ngramspec.server.metrics import speculation_of, timings_of
from ngramspec.server.responses import json_response, refuse_unless
from ngramspec.server.service import BAN, BUILD, Reply, Service
from ngramspec.server.settings import Client

DEFAULT_TEMPERATURE = 0.8  # of ``/completion``, as in llama.cpp
MAX_TEXT_CHARACTERS = 1 << 18  # in a request to ``/tokenize``
# Fields of a request that are no settings of llama.cpp.
HIDDEN_SETTINGS = {
    *("prompt", "json_schema", "ngramspec"),
    *("n_cmpl", "repetition_penalty", "response_fields"),
}
# Fields of the samplers that a list without them switches off, with the values that do so.
SAMPLERS: dict[str, dict[str, Any]] = {
    "penalties": {"repeat_penalty": 1.0, "presence_penalty": 0.0, "frequency_penalty": 0.0},
    "temperature": {"temperature": 1.0},
    "top_k": {"top_k": 0},
    "top_p": {"top_p": 1.0},
    "min_p": {"min_p": 0.0},
}


def samples(body: LlamaBody, sampler: str) -> bool:
    """Whether a request uses a sampler; ``/infill`` uses all, as its clients list others."""
    return isinstance(body, InfillBody) or body.samplers is None or sampler in body.samplers


def source_of(service: Service, body: LlamaBody) -> GrammarSource | None:
    """The grammar that a request asks for. As in llama.cpp, ``grammar`` takes precedence."""
    param = "json_schema" if body.grammar is None else "grammar"
    given = getattr(body, param)
    if given is None:
        return None
    service.check_grammars(param, "it")
    refuse_unless(not body.ignore_eos, "ignore_eos", f"not supported together with {param}")
    if param == "json_schema":
        return param, param, bounded_json(param, given)
    message = f"at most {MAX_SCHEMA_CHARACTERS} characters, got {len(given)}"
    refuse_unless(len(given) <= MAX_SCHEMA_CHARACTERS, param, message)
    return param, param, given


def encoded(service: Service, body: LlamaBody) -> list[int]:
    """The ids of a prompt that continues ``prompt``, or whose continuation fills in the middle."""
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


class LlamaReply(Reply):
    """The answers to a prompt."""

    body: LlamaBody
    done = False

    def __init__(self, service: Service, body: LlamaBody, client: Client) -> None:
        off: dict[str, Any] = {}
        for name, values in SAMPLERS.items():
            if not samples(body, name):
                off |= values
        body = body.model_copy(update=off)
        super().__init__(service, body, client)
        refuse_unless(body.n_cmpl == 1 or not body.stream, "n_cmpl", "only 1 with stream")
        self.source = source_of(service, body)
        service.check_count(body.n_cmpl, "n_cmpl")
        prompt = service.check_prompt(encoded(service, body))
        asked = body.n_predict if body.n_predict >= 0 else None
        default = 0.0 if isinstance(body, InfillBody) else DEFAULT_TEMPERATURE
        banned = service.ends_of(prompt) if body.ignore_eos else ()
        sampling = Sampling(
            temperature=default if body.temperature is None else body.temperature,
            top_p=body.top_p,
            top_k=max(body.top_k, 0),
            min_p=body.min_p,
            presence_penalty=body.presence_penalty,
            frequency_penalty=body.frequency_penalty,
            repetition_penalty=body.repeat_penalty,
            logit_bias=service.biases(body.logit_bias) | dict.fromkeys(banned, BAN),
            seed=body.seed if body.seed >= 0 else None,
        )
        self.requests = self.ask(
            [prompt],
            body.n_cmpl,
            sampling,
            max_tokens=asked,
            logprobs=(body.n_probs or None, "n_probs"),
            indent=body.n_indent,
            seconds=body.t_max_predict_ms / 1000 if body.t_max_predict_ms > 0 else None,
        )

    def whole(self, jobs: Sequence[AnswerJob], found: Sequence[Delta]) -> Any:
        made = list(map(self._final, jobs, found))
        return made[0] if len(made) == 1 else made

    async def events(self, answers: Answers) -> AsyncIterator[Any]:
        held: list[Delta] = []  # whose tokens were not sent
        async for _, delta in answers.deltas():
            held.append(delta)
            if delta.ended is not None:
                yield self._final(answers.jobs[0], Delta.joined(held))
            elif delta.text:
                yield {**self._part(Delta.joined(held)), "stop": False}
                held = []

    def _part(self, delta: Delta) -> dict[str, Any]:
        """What a delta adds to an answer: text, tokens and log-probabilities."""
        shown = self.body.return_tokens or self.body.stream
        tokens = list(delta.tokens) if shown else []
        found: dict[str, Any] = {"content": delta.text, "tokens": tokens}
        rows = [self.service.bytes_of.row(each, self.service.hidden) for each in delta.logprobs]
        return found | ({"completion_probabilities": rows} if rows else {})

    def _final(self, job: AnswerJob, answer: Delta) -> dict[str, Any]:
        """llama.cpp's JSON of an answer that has ended, with the fields that were asked for."""
        body, progress, request = self.body, job.progress, job.request
        settings = settings_of(self.service, body) | {
            "n_predict": request.max_tokens,
            "max_tokens": request.max_tokens,
            "temperature": request.sampling.temperature,
            "seed": -1 if request.sampling.seed is None else request.sampling.seed,
        }
        found = self._part(answer) | {
            "stop": True,
            "model": self.service.settings.name,
            "stop_type": stop_type(answer),
            "stopping_word": answer.stop or "",
            "has_new_line": job.stop.has_line,
            "tokens_predicted": len(progress.tokens),
            "tokens_evaluated": len(request.prompt),
            "tokens_cached": len(request.prompt) + max(len(progress.tokens) - 1, 0),
            "truncated": False,
            "generation_settings": settings,
            "timings": timings_of([job]),
        }
        if body.ngramspec.usage:
            found["ngramspec"] = speculation_of([job])
        return picked(found, body.response_fields)


def settings_of(service: Service, body: LlamaBody) -> dict[str, Any]:
    """The parameters of a request in effect, with those that this server does not have."""
    known = {
        **NEUTRAL,
        **PARAMETERS,
        **{name: getattr(body, name) for name in LlamaBody.model_fields},
    }
    temperature = DEFAULT_TEMPERATURE if body.temperature is None else body.temperature
    return {
        **{name: value for name, value in known.items() if name not in HIDDEN_SETTINGS},
        "temperature": temperature,
        "stop": list(body.stops),
        "max_tokens": body.n_predict,
        "grammar": body.grammar or "",
        "samplers": [each for each in SAMPLERS if samples(body, each)],
        "n_ctx": service.context,
        "model": service.settings.name,
    }


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
    params = settings_of(service, LlamaBody())
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
        "build_info": BUILD,
    }


def tokenize(service: Service, body: TokenizeBody, client: Client) -> Response:
    """The ids of a text, or with ``with_pieces`` also what each adds to it."""
    message = f"at most {MAX_TEXT_CHARACTERS} characters, got {len(body.content)}"
    refuse_unless(len(body.content) <= MAX_TEXT_CHARACTERS, "content", message)
    if body.parse_special:
        ids = service.encode_prompt(body.content, body.add_special, None)
    else:
        before = service.text.lead if body.add_special else []
        ids = before + service.text.encode(body.content)
    if not body.with_pieces:
        return json_response({"tokens": ids})
    pieces: list[dict[str, Any]] = []
    for token in ids:
        text = service.bytes_of.text(token)  # None: part of a character, which is sent as bytes
        pieces.append(
            {"id": token, "piece": list(service.bytes_of(token)) if text is None else text}
        )
    return json_response({"tokens": pieces})


def detokenize(service: Service, body: DetokenizeBody, client: Client) -> Response:
    """The text of tokens."""
    service.check_ids(body.tokens, "tokens")
    return json_response({"content": service.decode(body.tokens)})
