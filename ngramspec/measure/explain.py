"""Measures whole calls of the baseline and of speculation, and records every step."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from statistics import median
from typing import Any

import numpy as np

from ngramspec import DecodeStats, Speculator, StepEvent
from ngramspec.draft import Float32
from ngramspec.measure.configurations import Caller, Configuration, Outcome
from ngramspec.measure.forwards import forward_seconds
from ngramspec.measure.models import LoadedModel
from ngramspec.measure.traces import Trace
from ngramspec.measure.turns import PLAIN, take_turns

WIDTHS = (1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 16, 20, 24, 32, 48, 65)
ROW_WIDTHS = (1, 2, 3, 5, 9, 17, 33)
CURVE_POSITIONS = 4097  # entries of a cost curve
MIN_NOISE = 0.01  # share of a time; no measurement here is more precise; not tuned
FIRST, OURS = "first token", "speculative"  # FIRST: calls of the baseline for a single token


@dataclass(slots=True)
class Run:
    """The measurements of one model and Speculator; lists of figures have one for each prompt.

    Attributes:
        settings: settings of the Speculator and of the run.
        seconds: seconds of a forward of n positions, by n, with ``context`` positions in the cache.
        traces: the prompts and the outputs of speculation in the last repeat.
        same: whether the output is the baseline's.
        steps: steps of the last repeat as JSON values; see ``step_of``.
        stats: statistics of the last repeat.
        plain_seconds, speculative_seconds: median seconds of whole calls.
        plain_first_seconds: median seconds of calls for one token (the prefill).
        row_seconds: ``seconds`` of batches, by rows; empty if not requested.
        plain_rounds, speculative_rounds: seconds of every timed call, by prompt and round.
    """

    model: str
    settings: dict[str, Any]
    seconds: dict[int, float]
    context: int
    traces: list[Trace] = field(default_factory=list)
    same: list[bool] = field(default_factory=list)
    steps: list[dict[str, Any]] = field(default_factory=list)
    stats: DecodeStats = field(default_factory=DecodeStats)
    plain_seconds: list[float] = field(default_factory=list)
    speculative_seconds: list[float] = field(default_factory=list)
    plain_first_seconds: list[float] = field(default_factory=list)
    row_seconds: dict[int, dict[int, float]] = field(default_factory=dict)
    plain_rounds: list[list[float]] = field(default_factory=list)
    speculative_rounds: list[list[float]] = field(default_factory=list)

    @property
    def plain_token_seconds(self) -> float:
        """Seconds of a plain step, including overhead."""
        tokens = sum(len(trace.output) - 1 for trace in self.traces)
        spent = sum(self.plain_seconds) - sum(self.plain_first_seconds)
        return spent / max(tokens, 1)

    @property
    def measured(self) -> float:
        """The measured speedup: baseline seconds / speculative seconds of all calls."""
        return sum(self.plain_seconds) / sum(self.speculative_seconds)

    @property
    def noise(self) -> float | None:
        """Range of the times of equal rounds / their median; None: there is only one round.

        A round's time is the sum over all prompts. This is the larger of the values of plain and of
        speculative calls.
        """
        found: list[float] = []
        for rounds in (self.plain_rounds, self.speculative_rounds):
            totals = [sum(times) for times in zip(*rounds, strict=True)]
            if len(totals) < 2:
                return None
            found.append((max(totals) - min(totals)) / median(totals))
        return max(*found, MIN_NOISE)

    @property
    def noise_says(self) -> str:
        """``noise`` in words."""
        if self.noise is None:
            return "There is only one timed round, so the noise is unknown; pass --repeats 3."
        return (
            f"Rounds of the same calls differ by up to {self.noise:.0%}. Changes up to that size"
            " are marked as noise."
        )

    def cost(self) -> Float32:
        """The relative cost of a forward of n positions; see ``curve``."""
        return curve(self.seconds)


def curve(seconds: Mapping[int, float]) -> Float32:
    """Costs relative to one position, float32 (4097,) by positions; index 0 is unused.

    They are interpolated linearly between the measured ``seconds``, and extrapolated by the last
    slope.
    """
    at = np.array(sorted(seconds), np.float64)
    found = np.array([seconds[int(n)] for n in at]) / seconds[1]
    slope = max(0.0, (found[-1] - found[-2]) / (at[-1] - at[-2])) if len(at) > 1 else 0.0
    positions = np.arange(CURVE_POSITIONS, dtype=np.float64)
    beyond = np.maximum(0.0, positions - at[-1]) * slope
    return np.asarray(np.interp(positions, at, found) + beyond, np.float32)


def explain(
    loaded: LoadedModel,
    prompts: Sequence[tuple[str, Sequence[int]]],
    speculator: Speculator,
    *,
    new: int,
    repeats: int = 3,
    rows: int = 1,
    on_stage: Callable[[str], None] = lambda stage: None,
) -> Run:
    """Measure costs of forwards, and whole greedy calls of the baseline and of speculation.

    They take turns, so that a slow moment of the machine affects all of them. Prompts after which
    the model generated fewer than two tokens are left out.

    Args:
        loaded: the model.
        prompts: (name, token ids) of each.
        speculator: how to speculate; its ``on_step`` is used.
        new: maximum number of new tokens of each call.
        repeats: timed rounds, >= 1. Before them, the first prompt is run without timing.
        rows: forwards of batches of this number of rows, of half of it and so on are measured too;
            1: none. Whole calls have one sequence.
        on_stage: called with the name of each stage as it begins.
    """
    context = int(median(len(ids) for _, ids in prompts)) + new // 2
    settings = {**speculator.to_dict(), "new": new, "repeats": repeats}
    run = Run(loaded.name, settings, {}, context)
    found = []
    caller = Caller(loaded.model)
    baseline, ours = Configuration(PLAIN), Configuration(OURS, speculator=speculator)
    for each in (baseline, ours):
        caller.call(each, prompts[0][1], min(new, 8))
    ways = {FIRST: (baseline, 1), PLAIN: (baseline, new), OURS: (ours, new)}
    for number, (name, ids) in enumerate(prompts):
        on_stage(f"prompt {number + 1} of {len(prompts)}: forwards")
        found.append(forward_seconds(loaded.model, context, WIDTHS, repeats))
        on_stage(f"prompt {number + 1} of {len(prompts)}: whole calls")
        calls = {each: partial(caller.call, way, ids, most) for each, (way, most) in ways.items()}
        results = take_turns(calls, repeats, warm_up=0).results
        if len(results[OURS][-1].tokens) >= 2:
            _add(run, name, ids, results, loaded.tokenizer)
    run.seconds = {width: median(each[width] for each in found) for width in WIDTHS}
    while rows > 1:
        on_stage(f"forwards of {rows} rows")
        times = forward_seconds(loaded.model, context, ROW_WIDTHS, repeats, rows)
        run.row_seconds[rows] = times
        rows //= 2
    return run


def _add(
    run: Run, name: str, ids: Sequence[int], results: dict[str, list[Outcome]], tokenizer: Any
) -> None:
    """Add the calls of one prompt to the run."""
    output, plain = results[OURS][-1], results[PLAIN][-1]
    assert output.stats is not None
    first, plain_rounds, rounds = (
        [outcome.seconds for outcome in results[each]] for each in (FIRST, PLAIN, OURS)
    )
    number = len(run.traces)
    recorded = np.array(output.tokens, np.int32)
    run.traces.append(Trace(name, str(number), np.array(ids, np.int32), recorded))
    run.same.append(output.tokens == plain.tokens)
    run.steps += [step_of(event, number, tokenizer) for event in output.events]
    run.stats.add(output.stats)
    run.plain_rounds.append(plain_rounds)
    run.speculative_rounds.append(rounds)
    run.plain_seconds.append(median(plain_rounds))
    run.speculative_seconds.append(median(rounds))
    run.plain_first_seconds.append(min(median(first), median(plain_rounds)))


def step_of(event: StepEvent, prompt: int, tokenizer: Any) -> dict[str, Any]:
    """A prompt's step as JSON values: the fields of its event, with tokens decoded one by one."""

    def texts(tokens: Sequence[int]) -> list[str]:
        return [tokenizer.decode([token]) for token in tokens]

    return {
        "prompt": prompt,
        "index": event.index,
        "width": event.width,
        "drafted": texts(event.drafted),
        "source": list(event.source),
        "parents": None if event.parents is None else list(event.parents),
        "accepted": list(event.verdict.accepted),
        "verified": event.verdict.verified,
        "emitted": texts(event.verdict.emitted),
        "draft_seconds": event.draft_seconds,
        "forward_seconds": event.forward_seconds,
        "other_seconds": event.other_seconds,
    }
