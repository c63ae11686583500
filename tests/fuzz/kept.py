"""Cases that failed once, or nearly did; each runs in ``make test``. Add one by copying the line
that ``make fuzz`` prints; the comment says what was wrong."""

from __future__ import annotations

from fuzz.case import PROMPT, Case

__all__ = ["KEPT", "PROMPT"]

KEPT: dict[str, Case] = {
    "a prompt of one token, and one to generate": Case(
        prompts=((5,),), options={"max_new_tokens": 1}
    ),
    "a tree over a static cache": Case(
        options={"max_new_tokens": 24, "cache_implementation": "static"},
        drafter="bushy",
        settings={"tree": 9},
    ),
}
