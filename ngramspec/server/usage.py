"""The fields ``usage`` and ``timings`` of responses."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from openai.types import CompletionUsage

from ngramspec.server.job import Job
from ngramspec.server.openai_types import Common
from ngramspec.stats import DecodeStats

SPECULATION_FIELDS = (  # of DecodeStats, in the field ``ngramspec`` of a response
    *("target_calls", "tokens_per_call", "drafted", "accepted", "acceptance_rate"),
    *("prefill_drafted", "prefill_accepted"),
)


def ending(jobs: Sequence[Job], body: Common) -> dict[str, Any]:
    """The fields of a response whose answers have ended."""
    return {"usage": usage_of(jobs, body), "timings": timings_of(jobs)}


def usage_of(jobs: Sequence[Job], body: Common) -> CompletionUsage:
    """The usage of one request; several answers to one prompt share its array.

    With a prediction, the accepted and the rejected draft tokens that continue it (or
    ``ngramspec.reference``) are counted; without one there are none.
    """
    first = {id(job.request.prompt): job for job in reversed(jobs)}.values()  # of each prompt
    made = sum(len(job.progress.tokens) for job in jobs)
    read = sum(len(job.request.prompt) for job in first)
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
    return CompletionUsage(**fields)


def stats_of(jobs: Sequence[Job]) -> DecodeStats:
    """The statistics of several answers."""
    stats = DecodeStats()
    for job in jobs:
        if job.progress.stats is not None:
            stats.add(job.progress.stats)
    return stats


def timings_of(jobs: Sequence[Job]) -> dict[str, Any]:
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


def speculation_of(jobs: Sequence[Job]) -> dict[str, Any]:
    """Statistics of speculation for the answers of one request."""
    stats, progress = stats_of(jobs), jobs[0].progress
    return {
        "reused_tokens": sum(job.progress.reused for job in jobs),
        **{name: getattr(stats, name) for name in SPECULATION_FIELDS},
        "sources": {
            name: {"drafted": each.drafted, "verified": each.verified, "accepted": each.accepted}
            for name, each in stats.sources.items()
        },
        "seconds_waiting": max(progress.started - progress.submitted, 0.0),
        "seconds_to_first_token": max(progress.first - progress.submitted, 0.0),
        "seconds": max(progress.ended - progress.submitted, 0.0),
    }
