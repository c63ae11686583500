"""The ways to generate that are measured side by side, each from a prompt to its new tokens."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass, field
from functools import partial
from time import perf_counter
from typing import Any

import torch

from ngramspec import DecodeStats, Speculator, StepEvent, generate
from ngramspec.measure.machine import PeakMemory, synchronize
from ngramspec.measure.turns import PLAIN
from ngramspec.target.hf_private import compile_on_every_device


@dataclass(frozen=True, slots=True)
class Configuration:
    """One configuration.

    Attributes:
        name: what tables call it.
        arguments: of ``generate``, plain JSON values.
        speculator: arguments of a new Speculator for each call; or one for all calls; None: none.
        compiled: whether ``generate`` is to compile the forward, on a CPU too.
    """

    name: str
    arguments: dict[str, Any] = field(default_factory=dict)
    speculator: dict[str, Any] | Speculator | None = None
    compiled: bool = False

    @property
    def static(self) -> bool:
        """Whether its forwards are not those of a dynamic cache."""
        return self.compiled or "cache_implementation" in self.arguments


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one call did.

    Attributes:
        tokens: the new ones.
        seconds: wall time of the whole call, prefill included.
        peak: most bytes in use, or None.
        widths: forwards after the prefill by their number of positions; empty if not counted.
        emitted: tokens of those forwards.
        stats: what the Speculator counted, or None.
        events: its steps, the prefill among them.
    """

    tokens: list[int]
    seconds: float
    peak: int | None
    widths: dict[int, int]
    emitted: int
    stats: DecodeStats | None = None
    events: list[StepEvent] = field(default_factory=list)

    @property
    def tokens_per_call(self) -> float:
        """Emitted tokens / forwards after the prefill; 0.0 if there were none."""
        forwards = sum(self.widths.values())
        return self.emitted / forwards if forwards else 0.0


def usual_configurations(
    *,
    lookups: Sequence[int] = (3, 10),
    widths: Sequence[int] = (),
    trees: Sequence[int] = (),
    chains: bool = False,
    speculators: Sequence[dict[str, Any]] = (),
    compiled: bool = False,
) -> list[Configuration]:
    """Plain ``generate``, transformers' prompt lookup, and ngramspec with these settings.

    Args:
        lookups: values of ``prompt_lookup_num_tokens``.
        widths: fixed widths of a verify forward, each with a static cache.
        trees: most nodes of a draft tree, whatever its branches cost.
        chains: drafts without branches, too.
        speculators: further arguments of Speculator.
        compiled: plain, automatic and each width with a static cache and a compiled forward, too.
    """
    static = {"cache_implementation": "static"}
    ways = [Configuration(PLAIN)]
    if compiled:
        ways += [
            Configuration("plain, static", static),
            Configuration("plain, compiled", static, compiled=True),
        ]
    ways += [Configuration(f"prompt lookup {n}", {"prompt_lookup_num_tokens": n}) for n in lookups]
    ways.append(Configuration("ngramspec", {}, {}))
    ways += [Configuration("ngramspec, chains", {}, {"tree": None})] if chains else []
    ways += [Configuration(f"ngramspec, width {n}", static, {"width": n}) for n in widths]
    ways += [Configuration(f"ngramspec, tree {n}", {}, {"tree": n}) for n in trees]
    for each in speculators:
        named = ", ".join(f"{name} {value}" for name, value in each.items())
        ways.append(Configuration(f"ngramspec, {named}", {}, dict(each)))
    if compiled:
        for name, arguments in (("", {}), *((f", width {n}", {"width": n}) for n in widths)):
            speculator = arguments | {"compiled": True}
            ways.append(
                Configuration(f"ngramspec{name}, compiled", static, speculator, compiled=True)
            )
    return ways


class Caller:
    """Generates from one prompt at a time, with any configuration.

    Args:
        model: a causal language model of transformers.
        keep: whether all calls of a configuration share a Speculator. Otherwise each call has a new
            one, unless the configuration brings its own.
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
        **arguments: Any,
    ) -> Outcome:
        """Generate at most ``new`` tokens after a prompt, greedily unless ``arguments`` differ.

        Args:
            configuration: how to generate.
            ids: the prompt's token ids.
            new: max_new_tokens.
            on_step: called with each step of a Speculator.
            arguments: further ones of ``generate``.
        """
        prompt = torch.tensor([list(ids)], device=self.model.device)
        own = configuration.arguments | self._compiling(configuration)
        arguments = {"do_sample": False} | arguments | own
        arguments |= {"input_ids": prompt, "attention_mask": torch.ones_like(prompt)}
        events: list[StepEvent] = []

        def note(event: StepEvent) -> None:
            events.append(event)
            on_step(event)

        call = self.model.generate
        speculator = self._speculator(configuration)
        if speculator is not None:
            speculator.on_step = note
            call = partial(generate, self.model, speculator=speculator)
        self.memory.reset()
        with forwards_of(self.model, watch="prompt_lookup_num_tokens" in arguments) as seen:
            synchronize(self.model.device)
            begin = perf_counter()
            output = call(max_new_tokens=new, **arguments)
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
            if not self.keep:
                return Speculator(**given)
            if configuration.name not in self._kept:
                self._kept[configuration.name] = Speculator(**given)
            given = self._kept[configuration.name]
        given.reset()
        return given

    def _compiling(self, way: Configuration) -> dict[str, Any]:
        """What has ``generate`` compile; without it a static cache would do so on a GPU anyway."""
        if not way.compiled:
            return {"disable_compile": True} if way.static else {}
        from transformers import CompileConfig

        on_cpu = self.model.device.type == "cpu"
        mode = "default" if on_cpu else "reduce-overhead"
        config = CompileConfig(dynamic=False, mode=mode)  # one for all ways: another compiles anew
        if on_cpu:
            compile_on_every_device(config)
        return {"compile_config": config}


@contextmanager
def forwards_of(model: Any, *, watch: bool) -> Iterator[list[tuple[int, int]]]:
    """The width of every forward inside the block, and the cache's length before it.

    Args:
        model: not compiled.
        watch: False: no hook is set, and the list stays empty.
    """
    seen: list[tuple[int, int]] = []
    if not watch:
        yield seen
        return

    def note(module: Any, args: Any, kwargs: dict[str, Any]) -> None:
        cache = kwargs["past_key_values"]
        seen.append((kwargs["input_ids"].shape[1], int(cache.get_seq_length())))

    handle = model.register_forward_pre_hook(note, with_kwargs=True)
    try:
        yield seen
    finally:
        handle.remove()


@contextmanager
def compiled_forwards(model: Any) -> Iterator[list[int]]:
    """How often a compiled forward runs inside the block: the only entry of what is yielded."""
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
    way: Configuration, seen: Sequence[tuple[int, int]], prompt: int, new: int
) -> tuple[dict[int, int], int]:
    """Widths and emitted tokens of transformers' own forwards after the first.

    Prompt lookup drafts in its first forward already, which may emit several tokens.
    """
    if "prompt_lookup_num_tokens" not in way.arguments:
        return ({1: new - 1} if new > 1 else {}), new - 1
    if len(seen) < 2:
        return {}, 0
    first = seen[1][1] - prompt + 1
    return dict(Counter(width for width, _ in seen[1:])), new - first
