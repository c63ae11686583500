"""The field ``usage`` of responses."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from openai.types import CompletionUsage

from ngramspec.server.job import Job
from ngramspec.stats import DecodeStats


def usage_of(jobs: Sequence[Job], prompts: Sequence[int], *, speculation: bool) -> CompletionUsage:
    """The usage of one request, from its answers and the number of tokens of each prompt.

    ``speculation``: include statistics of speculation as ``usage.ngramspec``.
    """
    made, read = sum(len(job.progress.tokens) for job in jobs), sum(prompts)
    first = {id(job.request.prompt): job.progress.reused for job in reversed(jobs)}
    fields: dict[str, Any] = {
        "prompt_tokens": read,
        "completion_tokens": made,
        "total_tokens": read + made,
        "prompt_tokens_details": {"cached_tokens": sum(first.values())},
    }
    if speculation:
        fields["ngramspec"] = speculation_of(jobs)
    return CompletionUsage(**fields)


def speculation_of(jobs: Sequence[Job]) -> dict[str, Any]:
    """Statistics of speculation for the answers of one request."""
    stats = DecodeStats()
    for job in jobs:
        if job.progress.stats is not None:
            stats.add(job.progress.stats)
    progress = jobs[0].progress
    return {
        "reused_tokens": sum(job.progress.reused for job in jobs),
        "target_calls": stats.target_calls,
        "tokens_per_call": stats.tokens_per_call,
        "drafted": stats.drafted,
        "accepted": stats.accepted,
        "acceptance_rate": stats.acceptance_rate,
        "prefill_drafted": stats.prefill_drafted,
        "prefill_accepted": stats.prefill_accepted,
        "sources": {
            name: {"drafted": tier.drafted, "tested": tier.tested, "accepted": tier.accepted}
            for name, tier in stats.tiers.items()
        },
        "seconds_waiting": max(progress.started - progress.submitted, 0.0),
        "seconds_to_first_token": max(progress.first - progress.submitted, 0.0),
        "seconds": max(progress.ended - progress.submitted, 0.0),
    }
