"""Generating the same text plainly and speculatively, with times and the first difference."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import dataclass
from functools import partial
from statistics import median
from time import perf_counter
from typing import Any

import torch

from ngramspec import DecodeStats, Speculator, StepEvent, generate
from ngramspec.measure.models import LoadedModel, set_dtype

WARM_UP_TOKENS = 8


@dataclass(frozen=True, slots=True)
class Difference:
    """Where speculative text first diverges from plain text.

    Attributes:
        token: the first new token that differs, counted from 1.
        plain, speculative: the tokens there, decoded.
        ulps: how far the two best logits of a plain forward are apart there, in units in the
            last place of the larger in the model's dtype.
    """

    token: int
    plain: str
    speculative: str
    ulps: float


@dataclass(frozen=True, slots=True)
class Row:
    """The measurement of one text.

    Attributes:
        name: the text's name.
        new_tokens: tokens that speculation generated.
        stats: counts and times of the last speculative run.
        plain_rate, speculative_rate: generated tokens per second of a whole call, medians.
        difference: None if the token ids are those of plain ``generate``.
    """

    name: str
    new_tokens: int
    stats: DecodeStats
    plain_rate: float
    speculative_rate: float
    difference: Difference | None


class Measurement:
    """A model and the two ways to generate with it: greedy, batch 1.

    Args:
        loaded: the model and its tokenizer.
        speculator: how to speculate; its statistics are those of the last call.
        max_new_tokens: most tokens a call generates, >= 1.
    """

    def __init__(self, loaded: LoadedModel, speculator: Speculator, max_new_tokens: int) -> None:
        self.model = loaded.model
        self.tokenizer = loaded.tokenizer
        self.speculator = speculator
        self.max_new_tokens = max_new_tokens

    def watch(self, ids: list[int], show: Callable[[StepEvent], None]) -> DecodeStats:
        """Generate speculatively, handing every step to ``show``; not timed."""
        self.speculator.on_step = show
        try:
            self.speculate(ids)
        finally:
            self.speculator.on_step = None
        return copy(self.speculator.stats)

    def prepare(self, dtype: str, ids: list[int]) -> None:
        """Convert the model to ``dtype``, and warm up what will be measured."""
        set_dtype(self.model, getattr(torch, dtype))
        self.plain(ids, WARM_UP_TOKENS)
        self.speculate(ids, WARM_UP_TOKENS)

    def measure(self, name: str, ids: list[int], repeats: int) -> Row:
        """Run plainly and speculatively in turn, ``repeats`` >= 1 times each."""
        plain_rates, speculative_rates = [], []
        difference = None
        for _ in range(repeats):
            plain, seconds = timed(self.plain, ids)
            plain_rates.append(len(plain) / seconds)
            speculative, seconds = timed(self.speculate, ids)
            speculative_rates.append(len(speculative) / seconds)
            difference = difference or self.difference(ids, plain, speculative)
        return Row(
            name=name,
            new_tokens=len(speculative),
            stats=copy(self.speculator.stats),
            plain_rate=median(plain_rates),
            speculative_rate=median(speculative_rates),
            difference=difference,
        )

    def plain(self, ids: list[int], max_new_tokens: int | None = None) -> list[int]:
        """What plain ``generate`` adds to ``ids``."""
        return self.new_tokens(self.model.generate, ids, max_new_tokens)

    def speculate(self, ids: list[int], max_new_tokens: int | None = None) -> list[int]:
        """What speculative ``generate`` adds to ``ids``."""
        self.speculator.reset()
        speculative = partial(generate, self.model, speculator=self.speculator)
        return self.new_tokens(speculative, ids, max_new_tokens)

    def new_tokens(
        self, call: Callable[..., torch.Tensor], ids: list[int], max_new_tokens: int | None
    ) -> list[int]:
        """What ``call``, a ``generate``, adds to ``ids``; max_new_tokens None: the usual number."""
        prompt = torch.tensor([ids], device=self.model.device)
        output = call(
            input_ids=prompt,
            attention_mask=torch.ones_like(prompt),
            do_sample=False,
            max_new_tokens=max_new_tokens or self.max_new_tokens,
        )
        new: list[int] = output[0, len(ids) :].tolist()
        return new

    def difference(
        self, ids: list[int], plain: list[int], speculative: list[int]
    ) -> Difference | None:
        """Where two continuations of ``ids`` diverge, and how near a tie the model was there.

        One plain forward over their common prefix gives the logits.
        """
        if plain == speculative:
            return None
        same = common_prefix(plain, speculative)
        with torch.no_grad():
            prefix = torch.tensor([ids + plain[:same]], device=self.model.device)
            logits: Any = self.model(input_ids=prefix, logits_to_keep=1).logits
        best, second = logits[0, -1].to(self.model.dtype).topk(2).values
        return Difference(
            token=same + 1,
            plain=self.tokenizer.decode(plain[same : same + 1]),
            speculative=self.tokenizer.decode(speculative[same : same + 1]),
            ulps=ulps_apart(float(best), float(second), self.model.dtype),
        )


def timed(call: Callable[[list[int]], list[int]], ids: list[int]) -> tuple[list[int], float]:
    """What ``call(ids)`` returns, and its wall time in seconds."""
    begin = perf_counter()
    tokens = call(ids)
    return tokens, perf_counter() - begin


def ulps_apart(left: float, right: float, dtype: torch.dtype) -> float:
    """How far two numbers lie apart, in units in the last place of the larger in magnitude.

    That unit is the step from one number of the type to the next at that magnitude.

    Example:
        >>> ulps_apart(1.0, 1.015625, torch.bfloat16)
        2.0
    """
    apart = abs(left - right)
    return apart / ulp(max(abs(left), abs(right)), dtype) if math.isfinite(apart) else math.inf


def ulp(value: float, dtype: torch.dtype) -> float:
    """The step between numbers of a floating-point type at a finite number's magnitude."""
    kind = torch.finfo(dtype)
    exponent = math.frexp(max(abs(value), kind.tiny))[1] - 1  # 2**exponent <= value
    return math.ldexp(kind.eps, exponent)


def common_prefix(left: Sequence[int], right: Sequence[int]) -> int:
    """How many tokens two sequences have in common from their start."""
    pairs = enumerate(zip(left, right, strict=False))
    return next((at for at, (one, other) in pairs if one != other), min(len(left), len(right)))
