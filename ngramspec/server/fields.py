"""Unknown fields of a request's body."""

from __future__ import annotations

from difflib import get_close_matches
from urllib.parse import quote

from fastapi import Request
from pydantic import BaseModel

from ngramspec.server.errors import bad

MAX_NAMED_FIELDS = 8  # in a warning's header; not tuned
MIN_SIMILARITY = 0.75  # of an unknown field to the one that an error suggests; not tuned
# Names of one thing in OpenAI's and llama.cpp's APIs, to suggest the other one.
SAME_FIELDS = {
    **dict.fromkeys(("max_tokens", "max_completion_tokens", "max_new_tokens"), ("n_predict",)),
    "n_predict": ("max_completion_tokens", "max_tokens"),
    "json_schema": ("response_format",),
}
# Fields of OpenAI's and llama.cpp's APIs that do not change the answer's text, so they can be
# ignored: they concern the user, billing, storage, and the slot or cache to use.
IGNORABLE_FIELDS = {
    *("metadata", "prompt_cache_retention"),
    *("safety_identifier", "service_tier", "store"),
    *("cache_prompt", "id_slot", "n_cache_reuse", "samplers", "sse_ping_interval"),
    *("t_max_prompt_ms", "timings_per_token"),
}


def unknown_in(body: BaseModel) -> list[str]:
    """The unknown fields of a body that might change the answer."""
    given = body.model_extra or {}
    return [name for name in given if given[name] is not None and name not in IGNORABLE_FIELDS]


def check_fields(body: BaseModel, request: Request, mode: str) -> None:
    """Refuse unknown fields with an ApiError, or name them in a header of the response.

    ``mode`` is "refuse" or "warn".
    """
    unknown = unknown_in(body)
    if not unknown:
        return
    if mode == "warn":
        named = [quote(name[:100], safe="") for name in unknown[:MAX_NAMED_FIELDS]]
        request.scope["state"]["ignored"] = ", ".join(named)
        return
    name = unknown[0]
    fields = type(body).model_fields
    same = [each for each in SAME_FIELDS.get(name, ()) if each in fields]
    known = same or get_close_matches(name[:100], fields, 1, cutoff=MIN_SIMILARITY)
    hint = f"; did you mean {known[0]!r}?" if known else ""
    raise bad(name[:100], f"this server does not know the field{hint}", "unknown_parameter")
