"""The same text with the baseline and speculatively: times, and the first difference."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from statistics import median
from typing import Any

import torch

from ngramspec import DecodeStats, Speculator, StepEvent
from ngramspec.measure.configurations import Caller, Configuration
from ngramspec.measure.models import LoadedModel, set_dtype
from ngramspec.measure.turns import PLAIN, take_turns
from ngramspec.measure.whole_calls import first_difference

WARM_UP_TOKENS = 8


@dataclass(frozen=True, slots=True)
class Difference:
    """Where speculative text first diverges from the baseline's.

    ``ulps`` is the distance of the two best logits of a baseline forward there, in units in the
    last place of the larger one in the model's dtype.
    """

    token: int  # the first new token that differs, counted from 1
    plain: str  # the baseline's token there, decoded
    speculative: str
    ulps: float


@dataclass(frozen=True, slots=True)
class Row:
    """The measurement of one text; rates are generated tokens per second of a whole call."""

    name: str
    new_tokens: int
    stats: DecodeStats  # of the last speculative run
    plain_rate: float  # a median over repeats
    speculative_rate: float
    difference: Difference | None


class Measurement:
    """A model, with the baseline and speculation to compare: greedy, one sequence at a time.

    The speculator's statistics are those of the last call, of at most ``max_new_tokens`` >= 1.
    """

    def __init__(self, loaded: LoadedModel, speculator: Speculator, max_new_tokens: int) -> None:
        self.model = loaded.model
        self.tokenizer = loaded.tokenizer
        self.max_new_tokens = max_new_tokens
        self._caller = Caller(loaded.model)
        self._baseline = Configuration(PLAIN)
        self._speculative = Configuration("speculative", speculator=speculator)

    def watch(self, ids: list[int], show: Callable[[StepEvent], None]) -> DecodeStats:
        """Generate speculatively and call ``show`` with each step; not timed."""
        outcome = self._caller.call(self._speculative, ids, self.max_new_tokens, show)
        assert outcome.stats is not None
        return outcome.stats

    def prepare(self, dtype: str, ids: list[int]) -> None:
        """Convert the model to ``dtype``, and warm up what will be measured."""
        set_dtype(self.model, getattr(torch, dtype))
        for configuration in (self._baseline, self._speculative):
            self._caller.call(configuration, ids, WARM_UP_TOKENS)

    def measure(self, name: str, ids: list[int], repeats: int) -> Row:
        """Generate with the baseline and speculatively in turn, ``repeats`` >= 1 times each."""
        calls = {
            each.name: partial(self._caller.call, each, ids, self.max_new_tokens)
            for each in (self._baseline, self._speculative)
        }
        turns = take_turns(calls, repeats, warm_up=0)
        plain, ours = (turns.results[name] for name in calls)
        texts = [(one.tokens, other.tokens) for one, other in zip(plain, ours, strict=True)]
        differences = (self.difference(ids, *both) for both in texts)
        stats = ours[-1].stats
        assert stats is not None
        return Row(
            name=name,
            new_tokens=len(ours[-1].tokens),
            stats=stats,
            plain_rate=median(len(each.tokens) / each.seconds for each in plain),
            speculative_rate=median(len(each.tokens) / each.seconds for each in ours),
            difference=next((each for each in differences if each is not None), None),
        )

    def speculate(self, ids: list[int]) -> list[int]:
        """The tokens that speculation generates after ``ids``."""
        return self._caller.call(self._speculative, ids, self.max_new_tokens).tokens

    def difference(
        self, ids: list[int], plain: list[int], speculative: list[int]
    ) -> Difference | None:
        """Where two continuations of ``ids`` diverge, and how close the two best logits are there.

        One forward over their common prefix gives the logits.
        """
        same = first_difference(plain, speculative)
        if same is None:
            return None
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


def ulps_apart(left: float, right: float, dtype: torch.dtype) -> float:
    """The distance of two numbers, in units in the last place of the larger in magnitude.

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
