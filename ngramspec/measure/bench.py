"""Whole calls of the baseline, prompt lookup and ngramspec, compared in one process."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from itertools import chain
from statistics import geometric_mean, median
from typing import Any

from ngramspec.hf_model.compiled import compilations
from ngramspec.measure.calls import (
    PLAIN,
    Configuration,
    ModelCaller,
    Outcome,
    first_difference,
    take_turns,
)
from ngramspec.measure.forwards import (
    POSITIONS_AFTER_TEXT,
    compiled_forwards,
    forced_model,
    forward_seconds,
)
from ngramspec.measure.tasks import Prompt
from ngramspec.stats import CHAINS

PROBE_TOKENS = 8
WARM_UPS = 2  # calls before a compiled configuration is timed; the second may record graphs
MAX_COMPILING_CALLS = 16  # consecutive calls that may be repeated because they compiled

SetText = Callable[[Sequence[int] | None], None]  # see ``forced_model``


@contextmanager
def forced_texts(model: Any, prompts: Sequence[Prompt], plan: BenchPlan) -> Iterator[SetText]:
    """Force the texts of prompts by the model's own logits, if there are any or the plan asks.

    No logits processor is used: transformers' prompt lookup runs the processors over its candidates
    and cuts them at the first impossible token, so it would learn the text from the processor.
    """
    if not plan.same_text and all(each.text is None for each in prompts):
        yield lambda tokens: None
        return
    capacity = max((len(each.ids) for each in prompts), default=0) + plan.new
    with forced_model(model, capacity + POSITIONS_AFTER_TEXT) as set_text:
        yield set_text


@dataclass(frozen=True, slots=True)
class BenchPlan:
    """How to measure.

    ``same_text``: the baseline's text is forced in all configurations. Otherwise texts diverge at
    near ties, and then contain other repetitions to draft from. ``cached``: see
    ``ModelCaller.keep``.
    """

    repeats: int = 3  # timed calls of each configuration and prompt
    new: int = 96  # most tokens of a call
    least: int = 48  # prompts with a shorter baseline output are left out
    prompts: int = 8  # most of a task and length
    cost_repeats: int = 7  # timed forwards for each cost(n)
    same_text: bool = False
    cached: bool = False


@dataclass(slots=True)
class MeasuredCall:
    """One timed call, and how its text compares with the baseline's."""

    task: str
    length: int | None
    prompt: str
    prompt_tokens: int
    way: str
    repeat: int
    seconds: float
    new_tokens: int
    first_difference: int | None  # index of the first new token that differs, or None
    peak: int | None
    widths: dict[int, int]
    emitted: int
    stats: dict[str, Any] | None


@dataclass(slots=True)
class Measured:
    """Everything measured.

    ``prefills`` has the seconds of baseline calls for one token by (task, length, prompt), and
    ``costs`` the context and the seconds of forwards by width, by (task, length).
    """

    calls: list[MeasuredCall] = field(default_factory=list)
    prefills: dict[tuple[str, int | None, str], list[float]] = field(default_factory=dict)
    costs: dict[tuple[str, int | None], tuple[int, dict[int, float]]] = field(default_factory=dict)
    static: list[str] = field(default_factory=list)  # ways to whose forwards no costs apply
    compiling: Counter[str] = field(default_factory=Counter)  # calls repeated because of it, by way
    left_out: Counter[str] = field(default_factory=Counter)  # prompts with a short output, by task
    skipped: dict[str, str] = field(default_factory=dict)  # why a configuration did not run


@dataclass
class EndToEnd:
    """Compares configurations of ``generate`` with the first of them, the baseline PLAIN."""

    model: Any
    configurations: list[Configuration]
    plan: BenchPlan
    set_text: SetText = lambda tokens: None
    progress: Callable[[str], None] = lambda line: None

    def __post_init__(self) -> None:
        self.configurations = [*self.configurations]  # without those that are skipped
        self.caller = ModelCaller(self.model)
        self.measured = Measured(static=[each.name for each in self.configurations if each.static])

    def run(self, prompts: Iterable[Prompt]) -> Measured:
        """Measure all prompts, grouped by task and length in their order."""
        sets: dict[tuple[str, int | None], list[Prompt]] = {}
        for prompt in prompts:
            sets.setdefault((prompt.task, prompt.length), []).append(prompt)
        if not sets:
            raise ValueError("no prompt has the length asked for")
        longest = max(chain.from_iterable(sets.values()), key=lambda prompt: len(prompt.ids))
        self.probe(longest)
        for key, candidates in sets.items():
            self.measure(key, candidates)
        return self.measured

    def probe(self, prompt: Prompt) -> None:
        """Try and warm up all configurations on the longest prompt; skip those that fail."""
        if self.plan.cached:
            self.caller.keep(prompt.ids)
        for configuration in self.configurations[:]:
            self.progress(f"warming up: {configuration.name}")
            self.try_out(configuration, prompt)

    def try_out(self, configuration: Configuration, prompt: Prompt) -> None:
        """Warm up a configuration; skip it from now on if it fails."""
        try:
            # Compiled ones run whole, so that later static caches have one size.
            for _ in range(WARM_UPS if configuration.compiled else 1):
                new = self.plan.new if configuration.compiled else PROBE_TOKENS
                with compiled_forwards(self.model) as compiled:
                    stats = self.call(configuration, prompt, new).stats
            limits = [] if stats is None else [each for each in stats.limits if CHAINS in each]
            if limits:
                raise RuntimeError(", ".join(limits))
            if configuration.compiled and compiled == [0]:
                raise RuntimeError("its forward was not compiled")
        except Exception as error:
            if configuration.name == PLAIN:
                raise
            lines = str(error).strip().splitlines() or [""]
            self.measured.skipped[configuration.name] = f"{type(error).__name__}: {lines[0]}"
            self.configurations.remove(configuration)

    def measure(self, key: tuple[str, int | None], candidates: Sequence[Prompt]) -> None:
        """Measure a task's first prompts with a long enough baseline output; then the costs."""
        task = key[0]
        count = 0
        for prompt in candidates:
            if count == self.plan.prompts:
                break
            if self.plan.cached:
                self.caller.keep(prompt.ids)
            plain = self.call(self.configurations[0], prompt, self.plan.new).tokens
            if prompt.text is not None and plain != [*prompt.text[: len(plain)]]:
                raise RuntimeError(f"{task} {prompt.id}: the forced text was not generated")
            if len(plain) < self.plan.least:
                self.measured.left_out[task] += 1
                continue
            self.progress(f"{task}, {len(prompt.ids)} tokens: {prompt.id}")
            forced = replace(prompt, text=tuple(plain)) if self.plan.same_text else prompt
            self.turns(forced, plain, first=count)
            count += 1
        mine = [each for each in self.measured.calls if (each.task, each.length) == key]
        dynamic = [each for each in mine if each.way not in self.measured.static]
        widths = {width for each in dynamic for width in each.widths}
        if widths:
            context = int(median(each.prompt_tokens + each.new_tokens / 2 for each in mine))
            self.progress(f"{task}: costs at {context} tokens")
            seconds = forward_seconds(
                self.model, context, sorted({1, *widths}), self.plan.cost_repeats
            )
            self.measured.costs[key] = (context, seconds)

    def turns(self, prompt: Prompt, plain: list[int], first: int) -> None:
        """All repeats of one prompt; the first begins with the configuration ``first``."""
        for repeat in range(self.plan.repeats):
            prefill = self.call(self.configurations[0], prompt, 1)
            key = (prompt.task, prompt.length, prompt.id)
            self.measured.prefills.setdefault(key, []).append(prefill.seconds)
            calls = {
                configuration.name: partial(self.timed, configuration, prompt)
                for configuration in self.configurations
            }
            found = take_turns(calls, 1, warm_up=0, first=first + repeat)
            for name, (outcome,) in found.results.items():
                call = MeasuredCall(
                    task=prompt.task,
                    length=prompt.length,
                    prompt=prompt.id,
                    prompt_tokens=len(prompt.ids),
                    way=name,
                    repeat=repeat,
                    seconds=outcome.seconds,
                    new_tokens=len(outcome.tokens),
                    first_difference=first_difference(outcome.tokens, plain),
                    peak=outcome.peak,
                    widths=outcome.widths,
                    emitted=outcome.emitted,
                    stats=None if outcome.stats is None else asdict(outcome.stats),
                )
                self.measured.calls.append(call)

    def timed(self, configuration: Configuration, prompt: Prompt) -> Outcome:
        """A call that is counted. If something was compiled in it, it is repeated instead."""
        for _ in range(MAX_COMPILING_CALLS):
            before = compilations()
            outcome = self.call(configuration, prompt, self.plan.new)
            if compilations() == before:
                return outcome
            self.measured.compiling[configuration.name] += 1
        raise RuntimeError(
            f"{configuration.name} compiles again in each of {MAX_COMPILING_CALLS} calls"
        )

    def call(self, configuration: Configuration, prompt: Prompt, new: int) -> Outcome:
        """One call. If the prompt has a text, it is forced, and the call ends with it."""
        new = new if prompt.text is None else min(new, len(prompt.text))
        self.set_text(prompt.whole)
        return self.caller.call(configuration, prompt.ids, new)


def to_dict(measured: Measured) -> dict[str, Any]:
    """Everything measured, as JSON values."""
    return {
        "calls": [asdict(each) for each in measured.calls],
        "prefills": [
            {"task": task, "length": length, "prompt": prompt, "seconds": seconds}
            for (task, length, prompt), seconds in measured.prefills.items()
        ],
        "costs": [
            {"task": task, "length": length, "context": context, "seconds": seconds}
            for (task, length), (context, seconds) in measured.costs.items()
        ],
        "compiling": measured.compiling,
        "left_out": measured.left_out,
        "skipped": measured.skipped,
    }


MEANS = "ratio", "decode_ratio", "limit_share", "tokens_per_second", "tokens_per_call", "mean_cost"


def summarize(measured: Measured) -> list[dict[str, Any]]:
    """A row for each task, length and configuration, the baseline included.

    Rows have geometric means over prompts of ``MEANS``; ``ratio_median`` and ``ratio_worst``;
    ``peak_bytes``, the most; the number of ``prompts``, and of those with the ``same`` text as the
    baseline; ``first_differences`` of the others by prompt.
    """
    rows = []
    for task, length in dict.fromkeys((each.task, each.length) for each in measured.calls):
        calls = [each for each in measured.calls if (each.task, each.length) == (task, length)]
        _, seconds = measured.costs.get((task, length), (0, {}))
        for way in dict.fromkeys(each.way for each in calls):
            figures = {
                prompt: _figures(
                    [each for each in calls if each.prompt == prompt and each.way == way],
                    [each for each in calls if each.prompt == prompt and each.way == PLAIN],
                    median(measured.prefills[task, length, prompt]),
                    {} if way in measured.static else seconds,
                )
                for prompt in dict.fromkeys(each.prompt for each in calls)
            }
            rows.append({"task": task, "length": length, "way": way, **_row(figures)})
    return rows


def _figures(
    calls: Sequence[MeasuredCall],
    plain: Sequence[MeasuredCall],
    prefill: float,
    costs: dict[int, float],
) -> dict[str, Any]:
    """The figures of one configuration for one prompt: medians over repeats."""
    widths: Counter[int] = Counter()
    for call in calls:
        widths.update(call.widths)
    forwards = widths.total()
    tokens_per_call = sum(call.emitted for call in calls) / forwards if forwards else None
    mean_cost = limit_share = None
    if forwards and all(width in costs for width in (1, *widths)):
        spent = sum(count * costs[width] for width, count in widths.items())
        mean_cost = spent / forwards / costs[1]
    decode_ratio = _decode_ratio(calls, plain, prefill)
    if decode_ratio is not None and tokens_per_call and mean_cost is not None:
        limit_share = decode_ratio * mean_cost / tokens_per_call
    differences = [each for call in calls if (each := call.first_difference) is not None]
    return {
        "tokens_per_second": median(_rate(call) for call in calls),
        "ratio": _ratio(calls, plain, _rate),
        "decode_ratio": decode_ratio,
        "tokens_per_call": tokens_per_call,
        "mean_cost": mean_cost,
        "limit_share": limit_share,
        "peak": max((call.peak for call in calls if call.peak is not None), default=None),
        "first_difference": min(differences, default=None),
    }


def _rate(call: MeasuredCall) -> float:
    return call.new_tokens / call.seconds


def _ratio(
    calls: Sequence[MeasuredCall],
    plain: Sequence[MeasuredCall],
    rate: Callable[[MeasuredCall], float],
) -> float:
    """Median over repeats of a configuration's rate / the baseline's."""
    plain_rates = {call.repeat: rate(call) for call in plain}
    return median(rate(call) / plain_rates[call.repeat] for call in calls)


def _decode_ratio(
    calls: Sequence[MeasuredCall], plain: Sequence[MeasuredCall], prefill: float
) -> float | None:
    """The ratio of tokens emitted after the prefill / (seconds - prefill)."""
    if any(call.seconds <= prefill or call.emitted < 1 for call in (*calls, *plain)):
        return None
    return _ratio(calls, plain, lambda call: call.emitted / (call.seconds - prefill))


def _row(figures: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """A row from the figures of each prompt."""
    means = {name: _mean([each[name] for each in figures.values()]) for name in MEANS}
    ratios = [each["ratio"] for each in figures.values()]
    peaks = [each["peak"] for each in figures.values() if each["peak"] is not None]
    different = {
        prompt: each["first_difference"]
        for prompt, each in figures.items()
        if each["first_difference"] is not None
    }
    return {
        "prompts": len(figures),
        **means,
        "ratio_median": median(ratios),
        "ratio_worst": min(ratios),
        "peak_bytes": max(peaks, default=None),
        "same": len(figures) - len(different),
        "first_differences": different,
    }


def _mean(values: Sequence[float | None]) -> float | None:
    """Geometric mean; None if one is missing."""
    numbers = [each for each in values if each]
    return geometric_mean(numbers) if numbers and len(numbers) == len(values) else None
