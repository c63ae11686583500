"""Where a step's time goes: the sections of the decode loop, timed while it runs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial, wraps
from time import perf_counter
from typing import Any

from benchmarks.harness import prepared_call
from ngramspec import Speculator
from ngramspec.decoding.observer import (
    DRAFTING,
    INPUT_PREPARATION,
    ROLLBACK,
    STEP,
    STREAMING,
    VERIFICATION,
    Observer,
    no_section,
)
from ngramspec.measure.bench import SetText
from ngramspec.measure.calls import inputs_of
from ngramspec.measure.machine import synchronize
from ngramspec.measure.tasks import Prompt

FORWARD, PYTHON = "forward", "rest of Python"
SECTIONS = (DRAFTING, INPUT_PREPARATION, FORWARD, VERIFICATION, ROLLBACK, STREAMING, PYTHON)


class Stopwatch(Observer):
    """Exclusive time by section: a section's time without that of the sections inside it.

    Only sections inside a step are timed, not those of the prefill. The step's own time is PYTHON.
    """

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self.calls: dict[str, int] = {}
        self._inner: list[float] = []  # of each running section, the seconds of those inside it

    def section(self, name: str) -> AbstractContextManager[None]:
        """See Observer; also called for the model's forward."""
        if name == STEP:
            return self._timed(PYTHON)
        return self._timed(name) if self._inner else no_section

    @contextmanager
    def _timed(self, name: str) -> Iterator[None]:
        self._inner.append(0.0)
        begin = perf_counter()
        try:
            yield
        finally:
            taken = perf_counter() - begin
            inner = self._inner.pop()
            self.seconds[name] = self.seconds.get(name, 0.0) + taken - inner
            self.calls[name] = self.calls.get(name, 0) + 1
            if self._inner:
                self._inner[-1] += taken


Span = tuple[float, float, int]  # when a forward begins and ends, and its positions


@contextmanager
def timed_forwards(
    model: Any, around: Callable[[], AbstractContextManager[None]] = nullcontext
) -> Iterator[list[Span]]:
    """Time every forward of a model inside the block, and run it in a new context.

    On a GPU each forward is waited for, so that its time is its own and not that of whoever reads
    the result. Steps are a little slower for it.
    """
    inner: Callable[..., Any] = model.forward
    spans: list[Span] = []
    device = model.device

    @wraps(inner)
    def forward(*args: Any, **kwargs: Any) -> Any:
        with around():
            began = perf_counter()
            outputs = inner(*args, **kwargs)
            synchronize(device)
            spans.append((began, perf_counter(), kwargs["input_ids"].shape[1]))
        return outputs

    model.forward = forward
    try:
        yield spans
    finally:
        del model.forward


class _Sink:
    """A streamer that keeps nothing."""

    def put(self, value: Any) -> None:
        return None

    def end(self) -> None:
        return None


def profile_steps(model: Any, prompt: Prompt, new: int, repeats: int = 3) -> dict[str, Any]:
    """Seconds of a step by section, of speculative decoding with a new Speculator each time."""
    runs = []
    call = prepared_call(model, inputs_of(model, prompt.ids), new, streamer=_Sink())
    for _ in range(repeats + 1):
        speculator, watch = Speculator(), Stopwatch()
        speculator.observer = watch
        with timed_forwards(model, partial(watch.section, FORWARD)):
            call(speculator)
        steps = watch.calls.get(PYTHON, 0)
        if watch.calls.get(FORWARD, 0) < steps or not steps:
            raise RuntimeError("steps were not seen to call the model's forward")
        seconds = {name: watch.seconds.get(name, 0.0) / steps for name in SECTIONS}
        runs.append((seconds, steps, speculator.stats.tokens_per_call))
    seconds, steps, tokens_per_call = _median(runs[1:], lambda run: sum(run[0].values()))
    return _row("ngramspec", prompt, steps, seconds, tokens_per_call)


def profile_plain(
    model: Any, prompt: Prompt, new: int, repeats: int = 3, lookup: int | None = None
) -> dict[str, Any]:
    """The same for transformers' own loop, with two sections: the forward, and the rest."""
    arguments = {} if lookup is None else {"prompt_lookup_num_tokens": lookup}
    call = prepared_call(model, inputs_of(model, prompt.ids), new, **arguments)
    runs = []
    for _ in range(repeats + 1):
        with timed_forwards(model) as spans:
            call()
        steps = len(spans) - 1
        if steps < 1:
            raise RuntimeError("plain generate was not seen to call the model's forward twice")
        whole = (spans[-1][1] - spans[0][1]) / steps
        runs.append((whole, sum(end - begin for begin, end, _ in spans[1:]) / steps, steps))
    whole, forward, steps = _median(runs[1:], lambda run: run[0])
    way = "plain" if lookup is None else f"lookup {lookup}"
    return _row(way, prompt, steps, {FORWARD: forward, PYTHON: whole - forward}, None)


def _median(runs: list[Any], key: Callable[[Any], float]) -> Any:
    """The run in the middle."""
    return sorted(runs, key=key)[len(runs) // 2]


def _row(
    way: str, prompt: Prompt, steps: int, seconds: dict[str, float], tokens_per_call: float | None
) -> dict[str, Any]:
    whole = sum(seconds.values())
    return {
        "way": way,
        "task": prompt.task,
        "prompt": prompt.id,
        "steps": steps,
        "step_seconds": whole,
        "seconds": seconds,
        "share": {name: each / whole for name, each in seconds.items()},
        "tokens_per_call": tokens_per_call,
    }


def profile(
    model: Any, prompts: Sequence[Prompt], new: int, repeats: int, set_text: SetText
) -> Iterator[dict[str, Any]]:
    """Rows of plain decoding, prompt lookup and speculation for each prompt."""
    for prompt in prompts:
        for measure in (profile_plain, partial(profile_plain, lookup=10), profile_steps):
            set_text(prompt.whole)
            yield measure(model, prompt, new, repeats)
