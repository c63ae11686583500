"""llama.cpp's fields whose defaults have no effect: clients send them, also to OpenAI's routes."""

from __future__ import annotations

from typing import Any

# By name, the value with which a request means the same as without the field, on every route. It
# is llama.cpp's default, except that the penalties of this server count the whole text.
NEUTRAL: dict[str, Any] = {
    "n_predict": -1,
    "n_indent": 0,
    "n_keep": 0,
    "n_discard": 0,
    "n_cmpl": 1,
    "t_max_predict_ms": 0,
    "ignore_eos": False,
    "dynatemp_range": 0,
    "typical_p": 1,
    "top_n_sigma": -1,
    "xtc_probability": 0,
    "min_keep": 0,
    "repeat_last_n": -1,
    "repeat_penalty": 1,
    "repetition_penalty": 1,
    "presence_penalty": 0,
    "frequency_penalty": 0,
    "dry_multiplier": 0,
    "mirostat": 0,
    "adaptive_target": -1,
    "logit_bias": [],
    "grammar": "",
    "grammar_lazy": False,
    "lora": [],
    "n_probs": 0,
    "post_sampling_probs": False,
    "backend_sampling": False,
    "return_tokens": False,
    "return_progress": False,
    "response_fields": [],
    "stop": [],
}
# Parameters of samplers that NEUTRAL's values switch off, with llama.cpp's defaults. No value of
# them has an effect.
PARAMETERS: dict[str, Any] = {
    "dynatemp_exponent": 1.0,
    "xtc_threshold": 0.1,
    "dry_base": 1.75,
    "dry_allowed_length": 2,
    "dry_penalty_last_n": 64,
    "dry_sequence_breakers": ["\n", ":", '"', "*"],
    "mirostat_tau": 5.0,
    "mirostat_eta": 0.1,
    "adaptive_decay": 0.9,
}
PENALTIES = {"repeat_penalty", "repetition_penalty", "presence_penalty", "frequency_penalty"}


def effective(given: dict[str, Any]) -> dict[str, Any]:
    """The fields of a request without those that have no effect."""
    found = {name: value for name, value in given.items() if not _idle(name, value)}
    if not PENALTIES & found.keys():
        found.pop("repeat_last_n", None)
    return found


def _idle(name: str, value: Any) -> bool:
    if name not in NEUTRAL:
        return name in PARAMETERS
    neutral = NEUTRAL[name]
    return bool(value == neutral) and isinstance(value, bool) == isinstance(neutral, bool)
