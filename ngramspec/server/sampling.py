"""Sampling parameters: from a request's fields to arguments of ``generate``."""

from __future__ import annotations

import math
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """Sampling parameters with the names and defaults of OpenAI's API."""

    temperature: float = 1.0  # 0 is greedy
    top_p: float = 1.0
    top_k: int = 0  # 0: all tokens
    min_p: float = 0.0
    presence_penalty: float = 0.0  # both are subtracted from the scores of tokens in the answer
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0  # transformers' penalty for tokens in prompt and answer
    logit_bias: Mapping[int, float] = field(default_factory=dict)  # added to scores, by token id
    seed: int | None = None  # None: a new random seed
    banned: tuple[int, ...] = ()  # ids that are never chosen
    grammar: Any = None  # returns a processor that allows only a grammar's text; None: any text

    def of_answer(self, index: int) -> Sampling:
        """The sampling of one of several answers; each gets a different seed."""
        return self if self.seed is None else replace(self, seed=(self.seed + index) % 2**63)

    def arguments(self, prompt: int, device: torch.device) -> dict[str, Any]:
        """Arguments of ``generate``. All are given, so that the model's defaults have no effect.

        ``prompt`` is the number of prompt tokens, which the penalties do not count.
        """
        given: dict[str, Any] = {
            "do_sample": self.temperature > 0,
            "repetition_penalty": self.repetition_penalty,
            "logits_processor": self._processors(prompt),
        }
        if self.logit_bias:
            given["sequence_bias"] = [[[token], bias] for token, bias in self.logit_bias.items()]
        if self.banned:
            given["suppress_tokens"] = list(self.banned)
        if self.temperature > 0:
            generator = torch.Generator(device)
            generator.manual_seed(secrets.randbits(63) if self.seed is None else self.seed)
            given |= {
                "temperature": self.temperature,
                "top_p": self.top_p,
                "top_k": self.top_k,
                "min_p": self.min_p or None,
                "generator": generator,
            }
        return given

    def _processors(self, prompt: int) -> Any:
        from ngramspec.hf_model.compat.names import processor_list

        found = processor_list()
        if self.presence_penalty or self.frequency_penalty:
            found.append(Penalties(prompt, self.presence_penalty, self.frequency_penalty))
        if self.grammar is not None:
            found.append(self.grammar())
        return found


class Penalties:
    """OpenAI's penalties: score - count * frequency - (count > 0) * presence, in the answer.

    The answer begins after ``prompt`` tokens.
    """

    def __init__(self, prompt: int, presence: float, frequency: float) -> None:
        self._prompt, self._presence, self._frequency = prompt, presence, frequency

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        """Penalized scores (rows, vocab) after the tokens ``input_ids``, int64 (rows, length)."""
        answer = input_ids[:, self._prompt :].to(scores.device)
        counts = torch.zeros_like(scores).scatter_add_(
            1, answer, torch.ones_like(answer, dtype=scores.dtype)
        )
        return scores - counts * self._frequency - (counts > 0) * self._presence


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """The target's natural log-probabilities at one token, before any processor.

    ``logprob`` is None for the first token of a prompt. ``top`` has the ids and log-probabilities
    of the most probable tokens, best first.
    """

    token: int
    logprob: float | None
    top: tuple[tuple[int, float], ...] = ()


def logprobs_of(logits: torch.Tensor, tokens: list[int], top: int) -> list[TokenLogprobs]:
    """The target's log-probabilities at each of n tokens, and the ``top`` most probable ones.

    ``logits`` is (n, vocab), at the positions before the tokens.
    """
    if not tokens:
        return []
    scores = torch.log_softmax(logits.float(), dim=-1)
    chosen = scores.gather(1, torch.tensor(tokens, device=scores.device)[:, None])[:, 0].tolist()
    values, ids = scores.topk(top, dim=-1)
    rows = zip(tokens, chosen, ids.tolist(), values.tolist(), strict=True)
    return [
        TokenLogprobs(token, finite(own), tuple(zip(best, map(finite, each), strict=True)))
        for token, own, best, each in rows
    ]


def finite(value: float) -> float:
    """A log-probability that JSON can represent: minus infinity becomes -9999."""
    return value if math.isfinite(value) else -9999.0
