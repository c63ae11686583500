"""Requests to a server by the ``openai`` client, one or many at a time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import openai

NEAR = 1e-3  # a first difference is forgiven where the two best log-probabilities are as close


@dataclass(frozen=True)
class Answer:
    """What came: ids, text, and for each token how much better it is than the next best."""

    ids: tuple[int, ...]
    text: str
    leads: tuple[float, ...]
    reason: str


def client(url: str) -> openai.OpenAI:
    return openai.OpenAI(base_url=url, api_key="none", timeout=600, max_retries=0)


def complete(url: str, prompt: str | Sequence[int], tokens: int, **kwargs: Any) -> Answer:
    settings = {"temperature": 0, "logprobs": 2, "max_tokens": tokens} | kwargs
    extra = {"return_token_ids": True} | settings.pop("extra_body", {})
    with client(url) as asked:
        out = asked.completions.create(
            model="model", prompt=prompt, extra_body=extra, **settings
        ).choices[0]
    leads = []
    if out.logprobs is not None:
        for best in out.logprobs.top_logprobs or ():
            ranked = sorted((best or {}).values(), reverse=True)
            leads.append(ranked[0] - ranked[1] if len(ranked) > 1 else float("inf"))
    return Answer(tuple(out.token_ids), out.text, tuple(leads), out.finish_reason)


def at_once(jobs: Sequence[Callable[[], Any]], threads: int) -> list[Any]:
    """The results of jobs, so many of which run at a time."""
    with ThreadPoolExecutor(threads) as pool:
        return [each.result() for each in [pool.submit(job) for job in jobs]]


def differ(plain: Answer, ours: Answer) -> str | None:
    """What is different, unless two tokens were as good there; None: nothing."""
    for at, (one, other) in enumerate(zip(plain.ids, ours.ids, strict=False)):
        if one != other:
            lead = plain.leads[at] if at < len(plain.leads) else float("inf")
            return None if lead < NEAR else f"token {at}: {one} and {other}, lead {lead:.5f}"
    if len(plain.ids) != len(ours.ids):
        return f"{len(plain.ids)} and {len(ours.ids)} tokens"
    return None if plain.reason == ours.reason else f"{plain.reason} and {ours.reason}"
