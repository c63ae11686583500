"""The configurations of ``generate`` that are compared, and a timed call with one of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from copy import copy
from dataclasses import dataclass, field
from functools import partial
from time import perf_counter
from typing import Any

import torch

from ngramspec import DecodeStats, Speculator, StepEvent, generate
from ngramspec.hf_model.compat.caches import cache_of
from ngramspec.hf_model.compat.names import compile_config
from ngramspec.measure.machine import PeakMemory, synchronize
from ngramspec.measure.turns import PLAIN


@dataclass(frozen=True, slots=True)
class Configuration:
    """How to generate: arguments of ``generate``, and how to speculate, if at all.

    ``speculator`` is one for all calls, or the arguments of a new one for each call. ``compiled``:
    ``generate`` must compile the forward, on a CPU, too.
    """

    name: str
    arguments: dict[str, Any] = field(default_factory=dict)
    speculator: dict[str, Any] | Speculator | None = None
    compiled: bool = False

    @property
    def static(self) -> bool:
        """Whether its forwards run over a static cache, not a dynamic one."""
        return self.compiled or "cache_implementation" in self.arguments


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
    trees: Sequence[int] = (),
    chains: bool = False,
    speculators: Sequence[dict[str, Any]] = (),
    compiled: bool = False,
) -> list[Configuration]:
    """The baseline, transformers' prompt lookup, and ngramspec with these settings.

    ``widths`` are fixed widths of a verify forward, each with a static cache, and ``trees`` sizes
    of a draft tree in nodes. ``compiled`` adds the baseline, the default and each width with a
    static cache and a compiled forward.
    """
    static = {"cache_implementation": "static"}
    found = [Configuration(PLAIN)]
    if compiled:
        found.append(Configuration("plain, static", static))
        found.append(Configuration("plain, compiled", static, compiled=True))
    found += [Configuration(f"prompt lookup {n}", {"prompt_lookup_num_tokens": n}) for n in lookups]
    found.append(Configuration("ngramspec", {}, {}))
    found += [Configuration("ngramspec, chains", {}, {"tree": None})] if chains else []
    found += [Configuration(f"ngramspec, width {n}", static, {"width": n}) for n in widths]
    found += [Configuration(f"ngramspec, tree {n}", {}, {"tree": n}) for n in trees]
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
    ids = torch.tensor([list(prompt)], device=model.device)
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids)}


class Caller:
    """Generates from one prompt at a time with a causal language model, by any configuration.

    ``keep``: all calls of a configuration share a Speculator. Otherwise each call has a new one,
    unless the configuration brings its own.
    """

    def __init__(self, model: Any, *, keep: bool = False) -> None:
        self.model = model
        self.memory = PeakMemory(model.device)
        self.keep = keep
        self._kept: dict[str, Speculator] = {}

    def call(
        self,
        configuration: Configuration,
        ids: Sequence[int],
        new: int,
        on_step: Callable[[StepEvent], None] = lambda event: None,
    ) -> Outcome:
        """Generate at most ``new`` tokens after a prompt, greedily if the configuration does not.

        ``on_step`` is called with each step of a Speculator.
        """
        arguments = {"do_sample": False, "max_new_tokens": new, **inputs_of(self.model, ids)}
        arguments |= {**configuration.arguments, **self._compiling(configuration)}
        events: list[StepEvent] = []

        def note(event: StepEvent) -> None:
            events.append(event)
            on_step(event)

        call, speculator = self.model.generate, self._speculator(configuration)
        if speculator is not None:
            speculator.on_step = note
            call = partial(generate, self.model, speculator=speculator)
        self.memory.reset()
        with forwards_of(self.model, watch="prompt_lookup_num_tokens" in arguments) as seen:
            synchronize(self.model.device)
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

    def _speculator(self, configuration: Configuration) -> Speculator | None:
        given = configuration.speculator
        if given is None:
            return None
        if not isinstance(given, Speculator):
            given = self._kept.get(configuration.name) or Speculator(**given)
        if self.keep:
            self._kept[configuration.name] = given
        given.reset()
        return given

    def _compiling(self, configuration: Configuration) -> dict[str, Any]:
        """The arguments that make ``generate`` compile, or keep a static cache from doing so."""
        if not configuration.compiled:
            return {"disable_compile": True} if configuration.static else {}
        on_cpu = self.model.device.type == "cpu"
        mode = "default" if on_cpu else "reduce-overhead"
        config = compile_config(dynamic=False, mode=mode)  # a changed one compiles again
        return {"compile_config": config}


@contextmanager
def forwards_of(model: Any, *, watch: bool) -> Iterator[list[tuple[int, int]]]:
    """The width of every forward inside the block, and the cache's length before it.

    The model is not compiled. Without ``watch``, no hook is set, and the list stays empty.
    """
    seen: list[tuple[int, int]] = []

    def note(module: Any, args: Any, kwargs: dict[str, Any]) -> None:
        cache = cache_of(kwargs)
        seen.append((kwargs["input_ids"].shape[1], int(cache.get_seq_length())))

    handle = model.register_forward_pre_hook(note, with_kwargs=True) if watch else nullcontext()
    with handle:  # a hook's handle removes it
        yield seen


@contextmanager
def compiled_forwards(model: Any) -> Iterator[list[int]]:
    """Counts the compiled forwards inside the block; yields a list with the count."""
    count = [0]
    plain = model.get_compiled_call

    def get(config: Any) -> Any:
        compiled = plain(config)

        def run(*args: Any, **kwargs: Any) -> Any:
            count[0] += 1
            return compiled(*args, **kwargs)

        return run

    model.get_compiled_call = get
    try:
        yield count
    finally:
        del model.get_compiled_call


def _counted(
    configuration: Configuration, seen: Sequence[tuple[int, int]], prompt: int, new: int
) -> tuple[dict[int, int], int]:
    """Widths and emitted tokens of transformers' own forwards after the first.

    Prompt lookup drafts in its first forward already, which may emit several tokens.
    """
    if "prompt_lookup_num_tokens" not in configuration.arguments:
        return ({1: new - 1} if new > 1 else {}), new - 1
    if len(seen) < 2:
        return {}, 0
    first = seen[1][1] - prompt + 1
    return dict(Counter(width for width, _ in seen[1:])), new - first
