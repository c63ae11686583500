"""``/v1/completions``."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Any
from uuid import uuid4

from ngramspec.server.bodies import CompletionBody
from ngramspec.server.engine import STOP, Answers, CompletionRequest, Delta, Job, answers_of
from ngramspec.server.metrics import ending, timings_of
from ngramspec.server.responses import bad, refuse_unless
from ngramspec.server.service import Reply, Service
from ngramspec.server.settings import Client
from ngramspec.server.text import TokenLogprobs

STREAMED_ROWS = 32  # tokens with log-probabilities in one event; not tuned


class CompletionReply(Reply):
    """The answers to each prompt, prompt by prompt."""

    def __init__(self, service: Service, body: CompletionBody, client: Client) -> None:
        super().__init__(service, body, client)
        self._body = body
        self._head = {"object": "text_completion", **service.head(f"cmpl-{uuid4().hex}")}
        n = body.n or 1
        refuse_unless(body.best_of in (None, n), "best_of", f"only n={n} is supported")
        refuse_unless(not (body.echo and body.suffix), "echo", "not supported with suffix")
        given: Any = body.prompt
        several = isinstance(given, list) and given and not isinstance(given[0], int)
        many: list[Any] = given if several else [given]
        ids = encoded(service, body, many)
        refuse_unless(bool(ids), "prompt", "it must have at least one prompt, got none")
        prompts = [service.check_prompt(each) for each in ids]
        if body.max_tokens == 0 and not body.echo:
            raise bad("max_tokens", "0 is of use with echo only")
        # The text to repeat before each answer.
        self._echoes = [""] * (n * len(many))
        if body.echo:
            texts = [each if isinstance(each, str) else service.decode(each) for each in many]
            self._echoes = [text for text in texts for _ in range(n)]
        common = service.common(body, client) | {
            "top_logprobs": body.logprobs,
            "prompt_logprobs": bool(body.echo) and body.logprobs is not None,
        }
        sampling, reference = service.sampling(body), service.reference(body)
        self.requests: list[CompletionRequest] = []
        for prompt in prompts:
            own = common | {
                "prompt": prompt,
                "max_tokens": service.max_tokens(body.max_tokens, prompt, "max_tokens"),
                "eos": service.ends_of(prompt),
                "reference": reference(prompt),
            }
            self.requests += answers_of(sampling, n, **own)
        service.check_logprobs(self.requests, "logprobs")
        self._names = []
        if body.logprobs is not None:
            framings = [service.text.framing(each) for each in many for _ in range(n)]
            self._names = [
                service.names(each, framing=framing, echoed=each.prompt_logprobs)
                for each, framing in zip(self.requests, framings, strict=True)
            ]

    def whole(self, jobs: Sequence[Job], found: Sequence[Sequence[Delta]]) -> Any:
        choices = []
        for index, deltas in enumerate(found):
            text = self._echoes[index] + "".join(delta.text for delta in deltas)
            rows = [row for delta in deltas for row in delta.logprobs]
            choices.append(self._choice(index, text, rows, deltas[-1].ended or STOP))
        return {"choices": choices, **ending(jobs, self._body), **self._head}

    async def events(self, answers: Answers) -> AsyncIterator[Any]:
        with_usage = self._body.streams_usage
        empty: dict[str, Any] = {"usage": None} if with_usage else {}
        async for index, delta in answers.deltas():
            text, self._echoes[index] = self._echoes[index] + delta.text, ""
            if not text and delta.ended is None and not delta.logprobs:
                continue
            rows, more = delta.logprobs, True
            last = {} if with_usage or not answers.ended else {"timings": timings_of(answers.jobs)}
            while more:
                now, rows = rows[:STREAMED_ROWS], rows[STREAMED_ROWS:]
                more = bool(rows)
                if more:
                    choice, also = self._choice(index, "", now, None), {}
                else:
                    choice, also = self._choice(index, text, now, delta.ended), last
                yield {"choices": [choice], **empty, **also, **self._head}
                if more:
                    await asyncio.sleep(0)
        if with_usage:
            yield {"choices": [], **ending(answers.jobs, self._body), **self._head}

    def _choice(
        self, index: int, text: str, rows: Sequence[TokenLogprobs], ended: str | None
    ) -> dict[str, Any]:
        logprobs = self._logprobs(index, rows, last=ended is not None) if self._names else None
        return {"index": index, "text": text, "finish_reason": ended, "logprobs": logprobs}

    def _logprobs(self, index: int, rows: Sequence[TokenLogprobs], *, last: bool) -> dict[str, Any]:
        """Log-probabilities of the next tokens; ``last``: no others follow."""
        texts, offsets, top, names = [], [], [], self._names[index]
        for left, row in enumerate(rows, 1 - len(rows)):
            offsets.append(names.offset)
            texts.append(names.add(row.token, last=last and not left))
            top.append(None if row.logprob is None else names.of(row, texts[-1]))
        values = [row.logprob for row in rows]
        return {
            "tokens": texts,
            "token_logprobs": values,
            "top_logprobs": top,
            "text_offset": offsets,
        }


def encoded(service: Service, body: CompletionBody, many: list[Any]) -> list[list[int]]:
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
