"""Prometheus metrics: counts and times of all requests, without any text or user."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from ngramspec.server.engine import Engine
from ngramspec.server.job import Job

POOL_GAUGES = {  # by the attribute of CachePool
    "bytes": "Memory of the idle key-value caches.",
    "copies": "Caches copied, since the start.",
    "evicted": "Caches dropped, since the start.",
    "afresh": "Requests whose model's caches cannot be cut, since the start.",
}
BUCKET_SECONDS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0)


class Metrics:
    """The metrics of one server, in a separate registry."""

    def __init__(self) -> None:
        self.registry = registry = CollectorRegistry()

        def counter(name: str, text: str, labels: tuple[str, ...] = ()) -> Counter:
            return Counter(f"ngramspec_{name}", text, labels, registry=registry)

        def gauge(name: str, text: str) -> Gauge:
            return Gauge(f"ngramspec_{name}", text, registry=registry)

        def histogram(name: str, text: str) -> Histogram:
            return Histogram(f"ngramspec_{name}", text, registry=registry, buckets=BUCKET_SECONDS)

        self.requests = counter("requests", "Answered requests.", ("route", "status"))
        self.answers = counter("answers", "Answers by how they ended.", ("ended",))
        self.prompt_tokens = counter("prompt_tokens", "Tokens of prompts.")
        self.reused = counter("reused_tokens", "Prompt tokens whose keys and values were kept.")
        self.tokens = counter("tokens", "Tokens of answers.")
        self.calls = counter("target_calls", "Target forwards after the prefill.")
        self.call_tokens = counter("target_call_tokens", "Tokens that these forwards emitted.")
        self.drafts = counter("draft_tokens", "Draft tokens by source.", ("source", "outcome"))
        self.first = histogram("time_to_first_token_seconds", "From request to first token.")
        self.whole = histogram("answer_seconds", "From the request to the end of an answer.")
        self.waited = histogram("waiting_seconds", "From the request to its first turn.")
        self.active = gauge("active_answers", "Answers that take turns.")
        self.waiting = gauge("waiting_answers", "Answers that wait for a place.")
        self.pool = {name: gauge(f"cache_pool_{name}", text) for name, text in POOL_GAUGES.items()}

    def count_request(self, route: str, status: str) -> None:
        """Add an answered request."""
        self.requests.labels(route, status).inc()

    def count(self, job: Job) -> None:
        """Add an answer that has ended."""
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
        """The whole metrics page."""
        active, waiting = engine.load
        self.active.set(active)
        self.waiting.set(waiting)
        for name, each in self.pool.items():
            each.set(getattr(engine.pool, name))
        page: bytes = generate_latest(self.registry)
        return page
