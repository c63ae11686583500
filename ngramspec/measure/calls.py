"""Calls of ``generate`` in several configurations, which take turns and are timed and compared."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from copy import copy, deepcopy
from dataclasses import dataclass, field
from functools import partial
from itertools import zip_longest
from statistics import median
from time import perf_counter
from typing import Any, Generic, TypeVar

import torch

from ngramspec import DecodeStats, Speculator, StepEvent, generate
from ngramspec.hf_model.compat.caches import cache_argument, cache_of
from ngramspec.hf_model.compat.devices import device_of
from ngramspec.hf_model.compat.factories import compile_config
from ngramspec.measure.forwards import forwards_of
from ngramspec.measure.machine import PeakMemory, synchronize
from ngramspec.measure.models import LoadedModel

Result = TypeVar("Result")

PLAIN = "plain"  # the name of the baseline, ``generate`` without speculation
WARM_UP_TOKENS = 8
OWN_POSITIONS = 64  # of a prompt whose other positions are in a kept cache


@dataclass(frozen=True, slots=True)
class Turns(Generic[Result]):
    """The seconds and the results of each configuration's calls, with an entry for each repeat."""

    seconds: dict[str, list[float]]
    results: dict[str, list[Result]]

    def last(self, name: str) -> Result:
        """The result of a configuration's last call."""
        return self.results[name][-1]

    def median(self, name: str) -> float:
        """The median of a configuration's seconds."""
        return median(self.seconds[name])

    def speedups(self, name: str) -> list[float]:
        """Seconds of the baseline / seconds of a configuration, for each repeat.

        A repeat in which the machine was slow affects both, so these ratios vary less than seconds.
        """
        pairs = zip(self.seconds[PLAIN], self.seconds[name], strict=True)
        return [theirs / own for theirs, own in pairs]

    def speedup(self, name: str) -> float:
        """The median of ``speedups``."""
        return median(self.speedups(name))


def take_turns(
    calls: Mapping[str, Callable[[], Result]],
    repeats: int,
    *,
    warm_up: int = 1,
    first: int | None = None,
) -> Turns[Result]:
    """Call every configuration once in each repeat, so that a slow machine slows all of them down.

    A call must end only when its work is done on the device, too. ``warm_up`` rounds precede the
    counted ones. ``first`` is the configuration that begins the first repeat, modulo their number;
    the next repeat begins with the next one. None: all repeats begin with the first.
    """
    names = list(calls)
    found: Turns[Result] = Turns({name: [] for name in names}, {name: [] for name in names})
    for repeat in range(-warm_up, repeats):
        start = 0 if first is None else (first + repeat) % len(names)
        for name in names[start:] + names[:start]:
            began = perf_counter()
            result = calls[name]()
            seconds = perf_counter() - began
            if repeat >= 0:
                found.seconds[name].append(seconds)
                found.results[name].append(result)
    return found


@dataclass(frozen=True, slots=True)
class Configuration:
    """How to generate: arguments of ``generate``, and how to speculate, if at all."""

    name: str
    arguments: dict[str, Any] = field(default_factory=dict)
    speculator: dict[str, Any] | Speculator | None = None  # or the arguments of one for each call
    # Whether forwards over a static cache are compiled, on a CPU, too; None: as ``generate`` does.
    compiled: bool | None = False

    @property
    def static(self) -> bool:
        """Whether its forwards run over a static cache, not a dynamic one."""
        return bool(self.compiled) or "cache_implementation" in self.arguments


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of one call."""

    tokens: list[int]
    seconds: float  # of the whole call, prefill included
    peak: int | None  # most bytes in use
    widths: dict[int, int]  # forwards after the prefill by their positions; empty: not counted
    emitted: int  # tokens of those forwards
    stats: DecodeStats | None = None
    events: list[StepEvent] = field(default_factory=list)  # its steps, the prefill among them


def usual_configurations(
    *,
    lookups: Sequence[int] = (3, 10),
    widths: Sequence[int] = (),
    speculators: Sequence[dict[str, Any]] = (),
    compiled: bool = False,
) -> list[Configuration]:
    """The baseline, transformers' prompt lookup, and ngramspec with these settings.

    ``widths`` are fixed widths of a verify forward, each with a static cache. ``compiled`` adds
    the baseline, the default and each width with a static cache and a compiled forward.
    """
    static = {"cache_implementation": "static"}
    found = [Configuration(PLAIN)]
    if compiled:
        found.append(Configuration("plain, static", static))
        found.append(Configuration("plain, compiled", static, compiled=True))
    found += [Configuration(f"prompt lookup {n}", {"prompt_lookup_num_tokens": n}) for n in lookups]
    found.append(Configuration("ngramspec", {}, {}))
    found += [Configuration(f"ngramspec, width {n}", static, {"width": n}) for n in widths]
    for each in speculators:
        named = ", ".join(f"{name} {value}" for name, value in each.items())
        found.append(Configuration(f"ngramspec, {named}", {}, dict(each)))
    for width in (None, *widths) if compiled else ():
        name = "ngramspec, compiled" if width is None else f"ngramspec, width {width}, compiled"
        settings = {"compiled": True} if width is None else {"width": width, "compiled": True}
        found.append(Configuration(name, static, settings, compiled=True))
    return found


def inputs_of(model: Any, prompt: Sequence[int]) -> dict[str, torch.Tensor]:
    """One prompt as ``input_ids`` and ``attention_mask``."""
    ids = torch.tensor([list(prompt)], device=device_of(model))
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids)}


class ModelCaller:
    """Generates from one prompt at a time with a causal language model, by any configuration.

    Each call has a new Speculator, unless the configuration brings its own.
    """

    def __init__(self, model: Any) -> None:
        self.model = model
        self.memory = PeakMemory(device_of(model))
        self.kept: tuple[Sequence[int] | None, Any] = (None, None)

    def keep(self, ids: Sequence[int]) -> None:
        """Run a prompt but ``OWN_POSITIONS``. Its next calls begin with copies of this cache."""
        begin = {**inputs_of(self.model, ids[:-OWN_POSITIONS]), "max_new_tokens": 1}
        if len(ids) > OWN_POSITIONS:
            output = self.model.generate(**begin, do_sample=False, return_dict_in_generate=True)
            self.kept = ids, cache_of(output)

    def call(
        self,
        configuration: Configuration,
        ids: Sequence[int],
        new: int,
        on_step: Callable[[StepEvent], None] = lambda event: None,
    ) -> Outcome:
        """Generate at most ``new`` tokens after a prompt, greedily unless configured otherwise."""
        arguments = {"do_sample": False, "max_new_tokens": new, **inputs_of(self.model, ids)}
        arguments |= {**configuration.arguments, **self._compiling(configuration)}
        if ids == self.kept[0]:
            if "prompt_lookup_num_tokens" in arguments:
                raise ValueError("transformers' lookup generates another text from a given cache")
            arguments |= cache_argument(deepcopy(self.kept[1]))
        events: list[StepEvent] = []

        def note(event: StepEvent) -> None:
            events.append(event)
            on_step(event)

        call, speculator = self.model.generate, configuration.speculator
        if speculator is not None:
            if not isinstance(speculator, Speculator):
                speculator = Speculator(**speculator)
            speculator.reset()
            speculator.on_step = note
            call = partial(generate, self.model, speculator=speculator)
        self.memory.reset()
        with forwards_of(self.model, watch="prompt_lookup_num_tokens" in arguments) as seen:
            synchronize(device_of(self.model))
            begin = perf_counter()
            output = call(**arguments)
            tokens: list[int] = output[0, len(ids) :].tolist()
            seconds = perf_counter() - begin
        peak = self.memory.read()
        if speculator is None:
            widths, emitted = _counted(configuration, seen, len(ids), len(tokens))
            return Outcome(tokens, seconds, peak, widths, emitted)
        speculator.on_step = None
        steps = [event for event in events if event.index]
        widths = dict(Counter(event.width for event in steps))
        emitted = sum(len(event.verdict.emitted) for event in steps)
        return Outcome(tokens, seconds, peak, widths, emitted, copy(speculator.stats), events)

    def _compiling(self, configuration: Configuration) -> dict[str, Any]:
        """The arguments that make ``generate`` compile, or keep a static cache from doing so."""
        if configuration.compiled and device_of(self.model).type == "cpu":
            return {"compile_config": compile_config(dynamic=False, mode="default")}
        never = configuration.static and configuration.compiled is False
        return {"disable_compile": True} if never else {}


def _counted(
    configuration: Configuration, seen: Sequence[tuple[int, int]], prompt: int, new: int
) -> tuple[dict[int, int], int]:
    """Widths and emitted tokens of transformers' own forwards after the first."""
    if "prompt_lookup_num_tokens" not in configuration.arguments:
        return ({1: new - 1} if new > 1 else {}), new - 1
    if len(seen) < 2:
        return {}, 0
    first = seen[1][1] - prompt + 1
    return dict(Counter(width for width, _ in seen[1:])), new - first


@dataclass(frozen=True, slots=True)
class Difference:
    """Where speculative text first diverges from the baseline's."""

    token: int  # the first new token that differs, counted from 1
    plain: str  # the baseline's token there, decoded
    speculative: str
    ulps: float  # distance of the baseline's two best logits there, in units in the last place


@dataclass(frozen=True, slots=True)
class ComparedRow:
    """The measurement of one text; rates are generated tokens per second of a whole call."""

    name: str
    new_tokens: int
    stats: DecodeStats  # of the last speculative run
    plain_rate: float  # a median over repeats
    speculative_rate: float
    difference: Difference | None


def compare(
    loaded: LoadedModel,
    speculator: Speculator,
    name: str,
    ids: Sequence[int],
    new: int,
    repeats: int,
) -> ComparedRow:
    """Continue a text greedily with the baseline and speculatively in turn, ``repeats`` >= 1 times.

    ``name`` is that of the row, and ``new`` the maximum number of new tokens.
    """
    caller = ModelCaller(loaded.model)
    ways = Configuration(PLAIN), Configuration("speculative", speculator=speculator)
    calls = {each.name: partial(caller.call, each, ids, new) for each in ways}
    plain, ours = take_turns(calls, repeats, warm_up=0).results.values()
    texts = [(one.tokens, other.tokens) for one, other in zip(plain, ours, strict=True)]
    different = next((both for both in texts if both[0] != both[1]), None)
    stats = ours[-1].stats
    assert stats is not None
    return ComparedRow(
        name=name,
        new_tokens=len(ours[-1].tokens),
        stats=stats,
        plain_rate=median(len(each.tokens) / each.seconds for each in plain),
        speculative_rate=median(len(each.tokens) / each.seconds for each in ours),
        difference=None if different is None else difference(loaded, ids, *different),
    )


def difference(
    loaded: LoadedModel, ids: Sequence[int], plain: Sequence[int], speculative: Sequence[int]
) -> Difference:
    """Where two different continuations of ``ids`` diverge, by a forward over what they share."""
    model = loaded.model
    same = first_difference(plain, speculative) or 0
    with torch.no_grad():
        prefix = torch.tensor([[*ids, *plain[:same]]], device=device_of(model))
        logits: Any = model(input_ids=prefix, logits_to_keep=1).logits
    best, second = logits[0, -1].to(model.dtype).topk(2).values
    return Difference(
        token=same + 1,
        plain=loaded.tokenizer.decode(plain[same : same + 1]),
        speculative=loaded.tokenizer.decode(speculative[same : same + 1]),
        ulps=ulps_apart(float(best), float(second), model.dtype),
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
    low, end = torch.tensor((abs(value), math.inf), dtype=dtype, device="cpu")
    return float(torch.nextafter(low, end)) - float(low)


def first_difference(left: Sequence[int], right: Sequence[int]) -> int | None:
    """Index of the first token where two texts diverge or one ends; None: they are the same."""
    pairs = enumerate(zip_longest(left, right))
    return next((at for at, (one, other) in pairs if one != other), None)
