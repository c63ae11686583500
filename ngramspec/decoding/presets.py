"""Settings that reproduce published drafting methods, by name."""

from __future__ import annotations

from typing import Any

from ngramspec.errors import check_choice

# akunu's chapter: MAX_ORDER 4, DRAFT_COUNT 4, MAX_HISTORY 512. Its tables keep the counts of tokens
# that have left the history. Here these counts are removed.
# prompt-lookup: Saxena 2023, as in transformers' prompt_lookup_num_tokens=10. This preset copies
# from the longest match; transformers matches at most two tokens.
# leviathan-bigram: Leviathan et al. 2023, section 3.6, the most probable token of a bigram model
# with gamma 3. Their model was trained; this one counts the request's own text.
# token-recycling: Luo et al. 2024, 8 candidates of each token and trees of 80 nodes. Their tree is
# fixed by hand; this one holds the most probable paths by an assumed probability of each rank.
# rest: He et al. 2023, trees of 64 nodes from the datastore alone. It needs stores=[corpus].
PRESETS: dict[str, dict[str, Any]] = {
    "akunu": {"drafter": "ngram(order=4,window=512)", "gamma": 4},
    "prompt-lookup": {"drafter": "copy(min_match=1)", "gamma": 10},
    "leviathan-bigram": {"drafter": "ngram(order=2)", "gamma": 3},
    "token-recycling": {"drafter": "recycle(top_k=8)", "gamma": 80, "tree": 80},
    "rest": {"drafter": "store", "gamma": 64, "tree": 64},
}
# Settings of all presets: chains, and draft sources in fixed priority.
COMMON: dict[str, Any] = {"tree": None, "policy": "priority"}


def preset_settings(name: str) -> dict[str, Any]:
    """The Speculator arguments of a preset; for an unknown one, a ValueError lists all presets."""
    check_choice("preset", name, tuple(PRESETS))
    return COMMON | PRESETS[name]
