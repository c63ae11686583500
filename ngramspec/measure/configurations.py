"""The ways to generate that are measured side by side, each from a prompt to its new tokens."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from time import perf_counter
from typing import Any

import torch

from ngramspec import Speculator, StepEvent, generate
from ngramspec.measure.machine import PeakMemory, synchronize
from ngramspec.target.hf_private import compile_on_every_device

PLAIN = "plain"


@dataclass(frozen=True, slots=True)
class Way:
    """One configuration.

    Attributes:
        name: what tables call it.
        arguments: of ``generate``, plain JSON values.
        speculator: arguments of Speculator; None: it is decoded without one.
        compiled: whether ``generate`` is to compile the forward, on a CPU too.
    """

    name: str
    arguments: dict[str, Any] = field(default_factory=dict)
    speculator: dict[str, Any] | None = None
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
    """

    tokens: list[int]
    seconds: float
    peak: int | None
    widths: dict[int, int]
    emitted: int
    stats: dict[str, Any] | None = None


def usual_ways(
    *,
    lookups: Sequence[int] = (3, 10),
    widths: Sequence[int] = (),
    trees: Sequence[int] = (),
    chains: bool = False,
    speculators: Sequence[dict[str, Any]] = (),
    compiled: bool = False,
) -> list[Way]:
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
    ways = [Way(PLAIN)]
    if compiled:
        ways += [Way("plain, static", static), Way("plain, compiled", static, compiled=True)]
    ways += [Way(f"prompt lookup {n}", {"prompt_lookup_num_tokens": n}) for n in lookups]
    ways.append(Way("ngramspec", {}, {}))
    ways += [Way("ngramspec, chains", {}, {"tree": None})] if chains else []
    ways += [Way(f"ngramspec, width {n}", static, {"width": n}) for n in widths]
    ways += [Way(f"ngramspec, tree {n}", {}, {"tree": n}) for n in trees]
    for each in speculators:
        named = ", ".join(f"{name} {value}" for name, value in each.items())
        ways.append(Way(f"ngramspec, {named}", {}, dict(each)))
    if compiled:
        for name, arguments in (("", {}), *((f", width {n}", {"width": n}) for n in widths)):
            speculator = arguments | {"compiled": True}
            ways.append(Way(f"ngramspec{name}, compiled", static, speculator, compiled=True))
    return ways


class Caller:
    """Generates greedily from one prompt at a time, in any way.

    Args:
        model: a causal language model of transformers.
        keep: whether all calls of a way have one Speculator; otherwise each has a new one.
    """

    def __init__(self, model: Any, *, keep: bool = False) -> None:
        self.model = model
        self.memory = PeakMemory(model.device)
        self.keep = keep
        self._kept: dict[str, Speculator] = {}

    def call(self, way: Way, ids: Sequence[int], new: int, **arguments: Any) -> Outcome:
        """Generate at most ``new`` tokens after ``ids``, int64 (1, len(ids)).

        Args:
            way: how.
            ids: the prompt's token ids.
            new: max_new_tokens.
            arguments: further ones of ``generate``.
        """
        prompt = torch.tensor([list(ids)], device=self.model.device)
        arguments |= way.arguments | self._compiling(way)
        arguments |= {"attention_mask": torch.ones_like(prompt), "do_sample": False}
        events: list[StepEvent] = []
        speculator = self._speculator(way)
        if speculator is not None:
            arguments["speculator"] = speculator
            speculator.on_step = events.append
        call = (
            self.model.generate
            if speculator is None
            else lambda **them: generate(self.model, **them)
        )
        self.memory.reset()
        with forwards_of(self.model, watch="prompt_lookup_num_tokens" in arguments) as seen:
            synchronize(self.model.device)
            begin = perf_counter()
            output = call(input_ids=prompt, max_new_tokens=new, **arguments)
            tokens: list[int] = output[0, len(ids) :].tolist()
            seconds = perf_counter() - begin
        peak = self.memory.read()
        if speculator is None:
            widths, emitted = _counted(way, seen, len(ids), len(tokens))
            return Outcome(tokens, seconds, peak, widths, emitted)
        steps = [event for event in events if event.index]
        widths = dict(Counter(event.width for event in steps))
        emitted = sum(len(event.verdict.emitted) for event in steps)
        return Outcome(tokens, seconds, peak, widths, emitted, asdict(speculator.stats))

    def _speculator(self, way: Way) -> Speculator | None:
        if way.speculator is None:
            return None
        if not self.keep:
            return Speculator(**way.speculator)
        if way.name not in self._kept:
            self._kept[way.name] = Speculator(**way.speculator)
        self._kept[way.name].reset()
        return self._kept[way.name]

    def _compiling(self, way: Way) -> dict[str, Any]:
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
    way: Way, seen: Sequence[tuple[int, int]], prompt: int, new: int
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
