"""What the server tells about its work: metrics, usage, timings, and logs without texts."""

from __future__ import annotations

import logging
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from functools import partial
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from ngramspec.server.bodies import Common
from ngramspec.server.engine import AnswerJob, Engine
from ngramspec.stats import DecodeStats

# The loggers of a server's process that log exceptions.
LOGGERS = ("ngramspec", "ngramspec.server", "ngramspec.stores", "uvicorn.error")


class TypeName(str):
    """The name of an exception's type, whose ``repr`` has no quotes."""

    __slots__ = ()
    __repr__ = str.__str__


class WithoutMessages(logging.Filter):
    """Removes the messages of exceptions from log records, as they can quote a request."""

    def filter(self, record: logging.LogRecord) -> bool:
        if record.exc_info and record.exc_info[1] is not None:
            record.exc_text, record.exc_info = outline(record.exc_info[1]), None
        if isinstance(record.args, tuple):
            record.args = tuple(map(named, record.args))
        return True


def named(value: object) -> object:
    """The name of an exception's type; other values are returned as they are."""
    return TypeName(type(value).__name__) if isinstance(value, BaseException) else value


def outline(error: BaseException, seen: frozenset[int] = frozenset()) -> str:
    """The traceback of an exception, and of those that it was caused by, without messages."""
    seen |= {id(error)}
    before = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    parts = [] if before is None or id(before) in seen else [outline(before, seen), ""]
    frames = "".join(traceback.format_tb(error.__traceback__))
    parts.append(f"Traceback (most recent call last):\n{frames}{type(error).__name__}")
    if isinstance(error, BaseExceptionGroup):
        parts += [outline(each, seen) for each in error.exceptions]
    return "\n".join(parts)


@contextmanager
def private_logs() -> Iterator[None]:
    """Log exceptions without their messages, see ``WithoutMessages``."""
    own = WithoutMessages()
    for name in LOGGERS:
        logging.getLogger(name).addFilter(own)
    try:
        yield
    finally:
        for name in LOGGERS:
            logging.getLogger(name).removeFilter(own)


SPECULATION_FIELDS = (  # of DecodeStats, in the field ``ngramspec`` of a response
    *("target_calls", "tokens_per_call", "drafted", "accepted", "acceptance_rate"),
    *("prefill_drafted", "prefill_accepted"),
)


def ending(jobs: Sequence[AnswerJob], body: Common) -> dict[str, Any]:
    """The usage and the timings of one request; answers to one prompt share its array."""
    first = {id(job.request.prompt): job for job in reversed(jobs)}.values()  # of each prompt
    made = sum(len(job.progress.tokens) for job in jobs)
    read = sum(len(job.request.prompt) for job in first)
    # Draft tokens that continue the prediction are counted only if there is one.
    stats = DecodeStats() if body.prediction is None else stats_of(jobs)
    fields: dict[str, Any] = {
        "prompt_tokens": read,
        "completion_tokens": made,
        "total_tokens": read + made,
        "prompt_tokens_details": {"cached_tokens": sum(job.progress.reused for job in first)},
        "completion_tokens_details": {
            "accepted_prediction_tokens": stats.reference_accepted,
            "rejected_prediction_tokens": stats.reference_drafted - stats.reference_accepted,
        },
    }
    if body.ngramspec.usage:
        fields["ngramspec"] = speculation_of(jobs)
    return {"usage": fields, "timings": timings_of(jobs)}


def stats_of(jobs: Sequence[AnswerJob]) -> DecodeStats:
    """The statistics of several answers."""
    stats = DecodeStats()
    for job in jobs:
        if job.progress.stats is not None:
            stats.add(job.progress.stats)
    return stats


def timings_of(jobs: Sequence[AnswerJob]) -> dict[str, Any]:
    """llama.cpp's token counts and milliseconds for the answers of one request together."""
    stats, started = stats_of(jobs), [job.progress for job in jobs if job.progress.started]
    read = sum(len(job.request.prompt) - job.progress.reused for job in jobs)
    made = sum(len(job.progress.tokens) for job in jobs)
    reading = sum((each.first or each.ended) - each.started for each in started)
    making = sum(each.ended - each.first for each in started if each.first)
    found: dict[str, Any] = {"cache_n": sum(job.progress.reused for job in jobs)}
    for name, count, seconds in (("prompt", read, reading), ("predicted", made, making)):
        seconds = max(seconds, 1e-6)
        found |= {
            f"{name}_n": count,
            f"{name}_ms": 1000 * seconds,
            f"{name}_per_token_ms": 1000 * seconds / max(count, 1),
            f"{name}_per_second": count / seconds,
        }
    found["draft_n"] = stats.drafted + stats.prefill_drafted
    found["draft_n_accepted"] = stats.accepted + stats.prefill_accepted
    return found


def speculation_of(jobs: Sequence[AnswerJob]) -> dict[str, Any]:
    """Statistics of speculation for the answers of one request."""
    stats, progress = stats_of(jobs), jobs[0].progress
    return {
        "reused_tokens": sum(job.progress.reused for job in jobs),
        **{name: getattr(stats, name) for name in SPECULATION_FIELDS},
        "sources": {name: asdict(each) for name, each in stats.sources.items()},
        "seconds_waiting": max(progress.started - progress.submitted, 0.0),
        "seconds_to_first_token": max(progress.first - progress.submitted, 0.0),
        "seconds": max(progress.ended - progress.submitted, 0.0),
    }


def choice_stats_of(job: AnswerJob) -> dict[str, Any]:
    """vLLM's statistics of one answer; a step is a target forward with a draft."""
    stats = stats_of([job])
    steps = stats.target_calls - stats.plain_steps
    return {
        "mean_acceptance_length": 1 + stats.accepted / max(steps, 1),
        "draft_acceptance_rate": stats.acceptance_rate,
        "num_spec_steps": steps,
        "num_accepted_draft_tokens": stats.accepted,
        "num_draft_tokens": stats.drafted,
    }


BUCKET_SECONDS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0)


class Metrics:
    """The metrics of one server, in a separate registry."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        counter, gauge = partial(self._made, Counter), partial(self._made, Gauge)
        seconds = partial(self._made, Histogram, buckets=BUCKET_SECONDS)
        self.requests = counter("requests", "Answered requests.", ("route", "status"))
        self.answers = counter("answers", "Answers by how they ended.", ("ended",))
        self.prompt_tokens = counter("prompt_tokens", "Tokens of prompts.")
        self.reused = counter("reused_tokens", "Prompt tokens whose keys and values were kept.")
        self.tokens = counter("tokens", "Tokens of answers.")
        self.calls = counter("target_calls", "Target forwards after the prefill.")
        self.call_tokens = counter("target_call_tokens", "Tokens that these forwards emitted.")
        self.drafts = counter("draft_tokens", "Draft tokens by source.", ("source", "outcome"))
        self.first = seconds("time_to_first_token_seconds", "From request to first token.")
        self.whole = seconds("answer_seconds", "From the request to the end of an answer.")
        self.waited = seconds("waiting_seconds", "From the request to its first turn.")
        self.active = gauge("active_answers", "Answers that take turns.")
        self.waiting = gauge("waiting_answers", "Answers that wait for a place.")
        self.pool = {  # by an attribute of CachePool
            "bytes": gauge("cache_pool_bytes", "Memory of the idle key-value caches."),
            "copies": gauge("cache_pool_copies", "Caches copied, since the start."),
            "evicted": gauge("cache_pool_evicted", "Caches dropped, since the start."),
            "afresh": gauge("cache_pool_afresh", "Requests whose model's caches cannot be cut."),
        }

    def _made(self, kind: Any, name: str, text: str, labels: Any = (), **more: Any) -> Any:
        return kind(f"ngramspec_{name}", text, labels, registry=self.registry, **more)

    def count_request(self, route: str, status: str) -> None:
        self.requests.labels(route, status).inc()

    def count(self, job: AnswerJob) -> None:
        progress, stats = job.progress, job.progress.stats
        self.answers.labels(job.end or "error").inc()
        if progress.started:
            self.prompt_tokens.inc(len(job.request.prompt))
            self.reused.inc(progress.reused)
            self.waited.observe(progress.started - progress.submitted)
        self.tokens.inc(len(progress.tokens))
        if progress.first:
            self.first.observe(progress.first - progress.submitted)
        self.whole.observe(max(progress.ended - progress.submitted, 0.0))
        if stats is None:
            return
        self.calls.inc(stats.target_calls)
        self.call_tokens.inc(stats.emitted)
        for name, each in stats.sources.items():
            self.drafts.labels(name, "accepted").inc(each.accepted)
            self.drafts.labels(name, "rejected").inc(each.verified - each.accepted)
            self.drafts.labels(name, "unverified").inc(each.drafted - each.verified)

    def text(self, engine: Engine) -> bytes:
        for gauge, value in zip((self.active, self.waiting), engine.load, strict=True):
            gauge.set(value)
        for name, gauge in self.pool.items():
            gauge.set(getattr(engine.pool, name))
        return bytes(generate_latest(self.registry))
