"""Fields of a request's body that the server does not know."""

from __future__ import annotations

from difflib import get_close_matches
from urllib.parse import quote

from fastapi import Request
from pydantic import BaseModel

from ngramspec.server.errors import bad

MOST_NAMED = 8  # fields that the header of a warning names
# Fields of OpenAI's and llama.cpp's interfaces that leave the answer's text as it is, so that it is
# right to ignore them here: who asks, how it is billed and kept, and which slot or cache is used.
WITHOUT_EFFECT = {
    *("metadata", "prediction", "prompt_cache_key", "prompt_cache_retention"),
    *("safety_identifier", "service_tier", "store"),
    *("cache_prompt", "id_slot", "n_cache_reuse", "samplers", "sse_ping_interval"),
    *("t_max_prompt_ms", "timings_per_token"),
}


def unknown_in(body: BaseModel) -> list[str]:
    """The fields of a body that would be ignored although they ask for something."""
    given = body.model_extra or {}
    return [name for name in given if given[name] is not None and name not in WITHOUT_EFFECT]


def check_fields(body: BaseModel, request: Request, mode: str) -> None:
    """Refuse fields that are not known, or have a header of the answer name them.

    Args:
        body: of the request.
        request: whose answer has the header.
        mode: "refuse" or "warn".

    Raises:
        ApiError: there is such a field, and the mode is "refuse".
    """
    unknown = unknown_in(body)
    if not unknown:
        return
    if mode == "warn":
        named = [quote(name[:100], safe="") for name in unknown[:MOST_NAMED]]
        request.scope["state"]["ignored"] = ", ".join(named)
        return
    name = unknown[0]
    known = get_close_matches(name[:100], type(body).model_fields, 1)
    hint = f"; did you mean {known[0]!r}?" if known else ""
    raise bad(name[:100], f"this server does not know the field{hint}", "unknown_parameter")
