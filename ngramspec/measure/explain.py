"""Measures whole calls of the baseline and of speculation, and explains the difference in steps.

The first prediction is Theorem 3.8 of Leviathan et al. 2023 from one alpha, gamma and c. Each
further one replaces an assumption by a measurement. Their differences are the parts of the total
gap.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from html import escape
from statistics import median
from typing import Any

import numpy as np

from ngramspec import DecodeStats, Speculator, StepEvent
from ngramspec.measure.calls import PLAIN, Configuration, ModelCaller, take_turns
from ngramspec.measure.forwards import forward_seconds
from ngramspec.measure.models import LoadedModel
from ngramspec.measure.tasks import Prompt
from ngramspec.theory.walltime import expected_tokens

MIN_NOISE = 0.01  # share of a time; no measurement here is more precise
FIRST, OURS = "first token", "speculative"  # FIRST: calls of the baseline for a single token

ExplainedStep = Mapping[str, Any]  # see ``step_of``


@dataclass(slots=True)
class Run:
    """The measurements of one model and Speculator; lists have an entry for each prompt.

    Attributes:
        model: its name.
        settings: settings of the Speculator and of the run.
        prompts: their names.
        same_text: whether the output is the baseline's.
        plain_tokens: number of tokens of the baseline's output.
        forward_seconds: seconds of a forward of n positions, by n, over a cache of a call's middle.
        first_rounds: seconds of every timed call of the baseline for one token (the prefill).
        plain_rounds, speculative_rounds: seconds of every timed whole call.
        steps: steps of the last repeat as JSON values, those of all prompts; see ``step_of``.
        stats: statistics of the last repeat, of all prompts.
    """

    model: str
    settings: dict[str, Any]
    prompts: list[str] = field(default_factory=list)
    same_text: list[bool] = field(default_factory=list)
    plain_tokens: list[int] = field(default_factory=list)
    forward_seconds: list[dict[int, float]] = field(default_factory=list)
    first_rounds: list[list[float]] = field(default_factory=list)
    plain_rounds: list[list[float]] = field(default_factory=list)
    speculative_rounds: list[list[float]] = field(default_factory=list)
    steps: list[dict[str, Any]] = field(default_factory=list)
    stats: DecodeStats = field(default_factory=DecodeStats)

    @property
    def plain_token_seconds(self) -> float:
        """Seconds of a plain step, including overhead."""
        tokens = sum(self.plain_tokens) - len(self.prompts)
        return (_seconds(self.plain_rounds) - _seconds(self.first_rounds)) / max(tokens, 1)

    @property
    def plain_seconds(self) -> float:
        """Seconds of the baseline's calls, for as many tokens as those of speculation emitted."""
        tokens = sum(len(step["emitted"]) for step in self.steps) - len(self.prompts)
        return _seconds(self.first_rounds) + tokens * self.plain_token_seconds

    @property
    def speedup(self) -> float:
        """The measured speedup: baseline seconds / speculative seconds for the same tokens."""
        return self.plain_seconds / _seconds(self.speculative_rounds)

    @property
    def noise(self) -> float:
        """Range of the times of equal rounds / their median, of plain or of speculative calls.

        A round's time is the sum over all prompts. It is 0.01 at least.
        """
        found = [MIN_NOISE]
        for rounds in (self.plain_rounds, self.speculative_rounds):
            totals = [sum(times) for times in zip(*rounds, strict=True)]
            found.append((max(totals) - min(totals)) / median(totals))
        return max(found)

    @property
    def noise_says(self) -> str:
        """``noise`` in words."""
        return (
            f"Rounds of the same calls differ by up to {self.noise:.0%}. Changes up to that size"
            " are marked as noise."
        )

    @property
    def text_says(self) -> str:
        """How many texts are the baseline's, in words."""
        count = f"{sum(self.same_text)} of {len(self.prompts)}"
        return f"{count} texts equal the baseline's; times are per token."


def _seconds(rounds: Iterable[Sequence[float]]) -> float:
    """The sum over prompts of the medians over rounds."""
    return sum(map(median, rounds))


def explain(
    loaded: LoadedModel,
    prompts: Sequence[Prompt],
    speculator: Speculator,
    *,
    new: int,
    repeats: int = 3,
    on_stage: Callable[[str], None] = lambda stage: None,
) -> Run:
    """Measure costs of forwards, and whole greedy calls of the baseline and of speculation.

    They take turns, so that a slow moment of the machine affects all of them. Prompts whose whole
    text the prefill emits are left out.

    Args:
        loaded: the model.
        prompts: what to continue.
        speculator: how to speculate; its ``on_step`` is used.
        new: maximum number of new tokens of each call.
        repeats: timed rounds, >= 1. Before them, the first prompt is run without timing.
        on_stage: called with the name of each stage as it begins.
    """
    run = Run(loaded.name, {**speculator.to_dict(), "new": new, "repeats": repeats})
    caller = ModelCaller(loaded.model)
    baseline, ours = Configuration(PLAIN), Configuration(OURS, speculator=speculator)
    for each in (baseline, ours):
        caller.call(each, prompts[0].ids, min(new, 8))
    ways = {FIRST: (baseline, 1), PLAIN: (baseline, new), OURS: (ours, new)}
    for number, prompt in enumerate(prompts, 1):
        on_stage(f"prompt {number} of {len(prompts)}")
        calls = {way: partial(caller.call, of, prompt.ids, n) for way, (of, n) in ways.items()}
        found = take_turns(calls, repeats, warm_up=0)
        output = found.last(OURS)
        if output.stats is None or not output.widths:
            continue
        widths, context = (1, *output.widths), len(prompt.ids) + new // 2
        run.forward_seconds.append(forward_seconds(loaded.model, context, widths, repeats))
        run.steps += [step_of(each, len(run.prompts), loaded.tokenizer) for each in output.events]
        run.stats.add(output.stats)
        run.prompts.append(f"{prompt.task}, {prompt.id}")
        run.same_text.append(output.tokens == found.last(PLAIN).tokens)
        run.plain_tokens.append(len(found.last(PLAIN).tokens))
        run.first_rounds.append(found.seconds[FIRST])
        run.plain_rounds.append(found.seconds[PLAIN])
        run.speculative_rounds.append(found.seconds[OURS])
    return run


def step_of(event: StepEvent, prompt: int, tokenizer: Any) -> dict[str, Any]:
    """A prompt's step as JSON values: the fields of its event, with tokens decoded one by one."""

    def texts(tokens: Sequence[int]) -> list[str]:
        return [tokenizer.decode([token]) for token in tokens]

    chain = range(-1, len(event.drafted) - 1)
    return {
        "prompt": prompt,
        "index": event.index,
        "width": event.width,
        "drafted": texts(event.drafted),
        "source": list(event.source),
        "parents": list(chain if event.parents is None else event.parents),
        "accepted": list(event.verdict.accepted),
        "emitted": texts(event.verdict.emitted),
        "draft_seconds": event.draft_seconds,
        "forward_seconds": event.forward_seconds,
        "other_seconds": event.other_seconds,
    }


@dataclass(frozen=True, slots=True)
class Rung:
    """One prediction: the speedup over the baseline with one more cause, ``name``.

    ``says`` are the inputs, in words.
    """

    name: str
    speed: float
    says: str


def ladder(run: Run) -> list[Rung]:
    """The predictions, from the paper's to the measured speed.

    The last two rungs are for whole calls, the others for steps after the prefill. A plain step
    takes longer than its forward. If it is measured shorter by more than the noise, the machine did
    other work during one of the measurements, and the rungs that combine them are left out.
    """
    stats, runs = run.stats, len(run.prompts)
    steps = [(run.forward_seconds[each["prompt"]], each) for each in run.steps if each["index"]]
    calls, tokens = len(steps), stats.tokens_per_call
    flat = sum(seconds[1] for seconds, _ in steps)
    wide = sum(seconds[step["width"]] for seconds, step in steps)
    draft_seconds, other_seconds = (
        sum(step[name] for _, step in steps) for name in ("draft_seconds", "other_seconds")
    )
    gamma, drafting = stats.drafted / calls, draft_seconds / flat  # the latter is gamma c
    around = [int(gamma), int(gamma) + 1]
    equation_1 = float(np.interp(gamma, around, expected_tokens(stats.alpha, around)))
    acceptance_says = f"{tokens:.2f} tokens a step: by depth, branches, steps without a draft"
    cost_says = f"a forward costs {wide / flat:.2f} on average"
    rungs = [
        Rung(
            "Theorem 3.8",
            equation_1 / (1 + drafting),
            f"alpha {stats.alpha:.3f}, gamma {gamma:.2f}, flat cost",
        ),
        Rung("acceptance as measured", tokens / (1 + drafting), acceptance_says),
        Rung("cost(n)", tokens / (wide / flat + drafting), cost_says),
    ]
    decode = wide + draft_seconds + other_seconds
    plain, one = 1000 * run.plain_token_seconds, 1000 * flat / calls  # milliseconds of a step
    rest = "the rest: forwards whose times differ from cost(n)"
    if plain < (1 - run.noise) * one:
        rest = (
            f"overhead and prefill are not resolved: plain calls leave {plain:.2f} ms a step after"
            f" the prefill, but a forward alone took {one:.2f} ms; run it again"
            " on an idle machine"
        )
    else:
        overhead_says = (
            f"{1000 * other_seconds / calls:.2f} ms a step outside of drafting and forwards;"
            f" plain: {max(0.0, plain - one):.2f} ms"
        )
        prefill = stats.draft_seconds + stats.prefill_seconds + stats.other_seconds
        prefill -= draft_seconds + other_seconds
        first = _seconds(run.first_rounds)
        prefill_says = f"{prefill / runs:.3f} s a call; plain: {first / runs:.3f} s"
        rungs.append(Rung("overhead", stats.emitted * plain / 1000 / decode, overhead_says))
        rungs.append(Rung("prefill", run.plain_seconds / (prefill + decode), prefill_says))
    return [*rungs, Rung("measured", run.speedup, rest)]


RUNG_HEADS = ("takes into account", "speed", "change", "from")  # of ``rung_rows``


def rung_rows(run: Run) -> list[tuple[str, str, str, str]]:
    """(name, speed, change from the rung before, inputs) of each rung of the ladder."""
    rows: list[tuple[str, str, str, str]] = []
    before = 0.0
    for number, rung in enumerate(ladder(run)):
        change = f"{rung.speed - before:+.2f}" if number else ""
        if number > 1 and abs(rung.speed - before) <= run.noise * before:  # from times, not counts
            change += " (noise)"
        rows.append((rung.name, f"{rung.speed:.2f}", change, rung.says))
        before = rung.speed
    return rows


def acceptance(run: Run) -> dict[str, tuple[int, int]]:
    """(verified, accepted) draft tokens by draft source, and by their position in the draft.

    A step verifies at most one accepted token at a position; other branches there do not count.
    """
    verified: Counter[int] = Counter()
    accepted: Counter[int] = Counter()
    for step in run.steps:
        if step["index"]:
            count = len(step["accepted"])
            ended = len(step["emitted"]) <= count  # by a stop criterion
            accepted.update(range(count))
            verified.update(range(count + (first_rejected(step) is not None and not ended)))
    sources = {name: (each.verified, each.accepted) for name, each in run.stats.sources.items()}
    return sources | {f"position {n + 1}": (verified[n], accepted[n]) for n in sorted(verified)}


def first_rejected(step: ExplainedStep) -> int | None:
    """The first rejected node after the accepted ones, or None."""
    last = step["accepted"][-1] if step["accepted"] else -1
    following = (node for node, parent in enumerate(step["parents"]) if parent == last)
    return next((node for node in following if node not in step["accepted"]), None)


STYLE = """
:root { color-scheme: light dark; }
body { font: 15px/1.5 system-ui, sans-serif; max-width: 62rem; margin: 2rem auto; padding: 0 1rem; }
td, th { padding: .25rem .8rem; text-align: left; }
pre { white-space: pre-wrap; overflow-wrap: anywhere; line-height: 1.7; }
.step:hover { background: color-mix(in srgb, CanvasText 12%, Canvas); }
.accepted { color: light-dark(#1a7f37, #3fb950); }
.rejected { color: GrayText; text-decoration: line-through; font-size: .8em; }
.own { color: light-dark(#0969da, #58a6ff); text-decoration: underline; }
"""


def page(run: Run) -> str:
    """The page as HTML 5."""
    title = escape(f"{run.model}: {run.speedup:.2f} times as fast as plain")
    given = ", ".join(f"{name} {run.settings[name]}" for name in ("drafter", "gamma", "tree"))
    parts = [f"<h1>{title}</h1>", f"<p>{escape(f'{given}: {run.stats}')}</p>"]
    parts += [_table(RUNG_HEADS, [map(escape, row) for row in rung_rows(run)])]
    shares = [
        (escape(name), f"{verified:,}", f'<meter value="{right / max(verified, 1):.3f}"></meter>')
        for name, (verified, right) in acceptance(run).items()
    ]
    parts += [f"<p>{escape(f'{run.text_says} {run.noise_says}')}</p>", "<h2>Acceptance</h2>"]
    parts += [_table(("of", "verified", "accepted / verified"), shares), "<h2>The text</h2>"]
    words = (("accepted", "accepted"), ("rejected", "rejected"), ("own", "the target's own"))
    legend = ", ".join(_span(kind, text) for kind, text in words)
    parts.append(f"<p>{legend}. Hover over a step to see its draft.</p>")
    for number, name in enumerate(run.prompts):
        differs = "" if run.same_text[number] else ": the baseline's text differs"
        steps = "".join(_step(step) for step in run.steps if step["prompt"] == number)
        parts.append(f"<h3>{escape(name + differs)}</h3>\n<pre>{steps}</pre>")
    head = f'<meta charset="utf-8"><title>{title}</title><style>{STYLE}</style>'
    body = "\n".join(parts)
    return f'<!DOCTYPE html>\n<html lang="en"><head>{head}</head>\n<body>\n{body}\n</body></html>\n'


def _table(heads: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """A table of cells in HTML."""
    lines = ["".join(f"<th>{head}</th>" for head in heads)]
    lines += ["".join(f"<td>{cell}</td>" for cell in row) for row in rows]
    return f"<table>{''.join(f'<tr>{line}</tr>' for line in lines)}</table>"


def _span(kind: str, text: str) -> str:
    return f'<span class="{kind}">{escape(text)}</span>'


def _step(step: ExplainedStep) -> str:
    """A step's tokens, with its draft as a tooltip."""
    count, wrong = len(step["accepted"]), first_rejected(step)
    pieces = [_span("accepted", text) for text in step["emitted"][:count]]
    if wrong is not None:
        pieces.append(_span("rejected", step["drafted"][wrong].strip()))
    pieces += [_span("own", text) for text in step["emitted"][count:]]
    return f'<span class="step" title="{escape(draft_text(step))}">{"".join(pieces)}</span>'


def draft_text(step: ExplainedStep) -> str:
    """A step's draft as lines, with marks at accepted tokens and what branches follow."""
    milliseconds = 1000 * (step["draft_seconds"] + step["forward_seconds"] + step["other_seconds"])
    lines = [f"step {step['index']}: forward of {step['width']}, {milliseconds:.1f} ms"]
    for node, (text, parent) in enumerate(zip(step["drafted"], step["parents"], strict=True)):
        mark = "✓" if node in step["accepted"] else "·"
        after = "" if parent == node - 1 else f" after {parent + 1}"
        lines.append(f"{node + 1} {mark} {text!r} ({step['source'][node]}){after}")
    return "\n".join(lines)
