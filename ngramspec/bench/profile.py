"""Where a step's time goes: the parts of the decode loop, timed from outside while it runs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import wraps
from time import perf_counter
from typing import Any

import torch

from ngramspec import Speculator, generate
from ngramspec.bench.forced import forced_model
from ngramspec.bench.machine import synchronize
from ngramspec.bench.tasks import Prompt
from ngramspec.decoding import loop as decode
from ngramspec.decoding.draft_runner import DraftRunner
from ngramspec.decoding.group import Group
from ngramspec.target.model import Target

FORWARD, PYTHON = "forward", "rest of Python"
SECTIONS = (
    "drafting",
    "input preparation",
    FORWARD,
    "verification",
    "rollback",
    "streaming",
    PYTHON,
)
# What is timed as which section: a call's time less that of the calls inside it.
SEAMS: tuple[tuple[Any, str, str], ...] = (
    (decode.DecodeLoop, "step", PYTHON),
    (DraftRunner, "propose", "drafting"),
    (DraftRunner, "learn", "drafting"),
    (decode.DecodeLoop, "block", "input preparation"),
    (Target, "forward", "input preparation"),
    (decode.DecodeLoop, "choices", "verification"),
    (Group, "verify", "verification"),
    (Target, "rollback", "rollback"),
)


class Stopwatch:
    """Exclusive time by section, of calls within calls; counted only inside the outermost section.

    Args:
        outermost: calls outside it are not timed: a forward of the prefill, say.
    """

    def __init__(self, outermost: str) -> None:
        self.outermost = outermost
        self.seconds: dict[str, float] = {}
        self.calls: dict[str, int] = {}
        self._open: list[list[float]] = []  # of each running call, the seconds inside its own calls

    def timed(self, section: str, call: Callable[..., Any], device: torch.device) -> Any:
        """``call``, with its time added to ``section``; a device is waited for before it ends."""

        @wraps(call)
        def run(*args: Any, **kwargs: Any) -> Any:
            if not self._open and section != self.outermost:
                return call(*args, **kwargs)
            self._open.append([0.0])
            begin = perf_counter()
            try:
                result = call(*args, **kwargs)
                if section == FORWARD:
                    synchronize(device)
                return result
            finally:
                taken = perf_counter() - begin
                (inside,) = self._open.pop()
                self.seconds[section] = self.seconds.get(section, 0.0) + taken - inside
                self.calls[section] = self.calls.get(section, 0) + 1
                if self._open:
                    self._open[-1][0] += taken

        return run


class _Sink:
    """A streamer that keeps nothing."""

    def put(self, value: Any) -> None:
        return None

    def end(self) -> None:
        return None


@contextmanager
def watched(model: Any, streamer: Any) -> Iterator[Stopwatch]:
    """Time the loop's sections in every generation inside the block; one thread at a time.

    On a GPU each forward is waited for, so that its time is its own and not that of whoever asks
    for the result; steps are a little slower for it.
    """
    watch = Stopwatch(PYTHON)
    seams = [*SEAMS, (model, "forward", FORWARD), (streamer, "put", "streaming")]
    with ExitStack() as restore:
        for owner, name, section in seams:
            before = vars(owner).get(name)
            setattr(owner, name, watch.timed(section, getattr(owner, name), model.device))
            if before is None:
                restore.callback(delattr, owner, name)
            else:
                restore.callback(setattr, owner, name, before)
        yield watch


def profile_steps(model: Any, prompt: Prompt, new: int, repeats: int = 3) -> dict[str, Any]:
    """Seconds of a step by section, of speculative decoding with a new Speculator each time.

    Args:
        model: a causal language model of transformers, not compiled.
        prompt: what to continue; its text, if it has one, is forced by the model's own logits.
        new: max_new_tokens.
        repeats: generations after one that is not counted; the one of median time is reported.

    Returns:
        ``steps``, ``step_seconds``, ``seconds`` and ``share`` by section, ``tokens_per_call``.
    """
    streamer = _Sink()
    runs = []
    with _text(model, prompt, new):
        for _ in range(repeats + 1):
            speculator = Speculator()
            with watched(model, streamer) as watch:
                _generate(model, prompt, new, generate, speculator=speculator, streamer=streamer)
            steps = watch.calls.get(PYTHON, 0)
            if watch.calls.get(FORWARD, 0) < steps or not steps:
                raise RuntimeError("steps were not seen to call the model's forward")
            seconds = {name: watch.seconds.get(name, 0.0) / steps for name in SECTIONS}
            runs.append((seconds, steps, speculator.stats.tokens_per_call))
    typical = sorted(runs[1:], key=lambda run: sum(run[0].values()))[len(runs[1:]) // 2]
    seconds, steps, tokens_per_call = typical
    whole = sum(seconds.values())
    return {
        "way": "ngramspec",
        "task": prompt.task,
        "prompt": prompt.id,
        "steps": steps,
        "step_seconds": whole,
        "seconds": seconds,
        "share": {name: each / whole for name, each in seconds.items()},
        "tokens_per_call": tokens_per_call,
    }


def profile_plain(
    model: Any, prompt: Prompt, new: int, repeats: int = 3, lookup: int | None = None
) -> dict[str, Any]:
    """The same of transformers' own loop, of which only the forward is told from the rest.

    Args:
        model, prompt, new, repeats: as in profile_steps.
        lookup: ``prompt_lookup_num_tokens``, or None: plain decoding.
    """
    arguments = {} if lookup is None else {"prompt_lookup_num_tokens": lookup}
    runs = []
    with _text(model, prompt, new):
        for _ in range(repeats + 1):
            spans: list[tuple[float, float]] = []
            with _timed_forward(model, spans):
                _generate(model, prompt, new, model.generate, **arguments)
            steps = len(spans) - 1
            if steps < 1:
                raise RuntimeError("plain generate was not seen to call the model's forward twice")
            whole = (spans[-1][1] - spans[0][1]) / steps
            runs.append((whole, sum(end - begin for begin, end in spans[1:]) / steps, steps))
    whole, forward, steps = sorted(runs[1:])[len(runs[1:]) // 2]
    return {
        "way": "plain" if lookup is None else f"lookup {lookup}",
        "task": prompt.task,
        "prompt": prompt.id,
        "steps": steps,
        "step_seconds": whole,
        "seconds": {FORWARD: forward, PYTHON: whole - forward},
        "share": {FORWARD: forward / whole, PYTHON: 1 - forward / whole},
        "tokens_per_call": None,
    }


def profile(
    model: Any, prompts: Sequence[Prompt], new: int, repeats: int = 3
) -> list[dict[str, Any]]:
    """Plain decoding, prompt lookup and speculation for each prompt."""
    rows = []
    for prompt in prompts:
        rows.append(profile_plain(model, prompt, new, repeats))
        rows.append(profile_plain(model, prompt, new, repeats, lookup=10))
        rows.append(profile_steps(model, prompt, new, repeats))
    return rows


def _generate(
    model: Any, prompt: Prompt, new: int, call: Callable[..., Any], **arguments: Any
) -> None:
    ids = torch.tensor([prompt.ids], device=model.device)
    if call is generate:
        arguments["model"] = model
    arguments |= {"attention_mask": torch.ones_like(ids), "do_sample": False}
    call(input_ids=ids, max_new_tokens=new, **arguments)


@contextmanager
def _text(model: Any, prompt: Prompt, new: int) -> Iterator[None]:
    """Have the model say the prompt's text, if it has one."""
    if prompt.text is None:
        yield
        return
    room = len(prompt.ids) + new + Speculator().gamma_max + 1
    with forced_model(model, room) as set_text:
        set_text([*prompt.ids, *prompt.text[:new]])
        yield


@contextmanager
def _timed_forward(model: Any, spans: list[tuple[float, float]]) -> Iterator[None]:
    """Note when each forward of ``model`` begins and ends."""
    plain = model.forward

    @wraps(plain)
    def forward(*args: Any, **kwargs: Any) -> Any:
        begin = perf_counter()
        outputs = plain(*args, **kwargs)
        synchronize(model.device)
        spans.append((begin, perf_counter()))
        return outputs

    model.forward = forward
    try:
        yield
    finally:
        del model.forward
