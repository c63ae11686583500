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
from ngramspec.draft import Float32
from ngramspec.measure.calls import PLAIN, Caller, Configuration, Outcome, take_turns
from ngramspec.measure.forwards import forward_seconds
from ngramspec.measure.models import LoadedModel
from ngramspec.theory.walltime import improvement_at

WIDTHS = (1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 16, 20, 24, 32, 48, 65)
CURVE_POSITIONS = 4097  # entries of a cost curve
MIN_NOISE = 0.01  # share of a time; no measurement here is more precise
FIRST, OURS = "first token", "speculative"  # FIRST: calls of the baseline for a single token


@dataclass(slots=True)
class Run:
    """The measurements of one model and Speculator; lists of figures have one for each prompt.

    Attributes:
        settings: settings of the Speculator and of the run.
        seconds: seconds of a forward of n positions, by n, with ``context`` positions in the cache.
        prompts: their names.
        tokens: the number of new tokens of speculation in the last repeat.
        same: whether the output is the baseline's.
        steps: steps of the last repeat as JSON values; see ``step_of``.
        stats: statistics of the last repeat.
        plain_seconds, speculative_seconds: median seconds of whole calls.
        plain_first_seconds: median seconds of calls for one token (the prefill).
        plain_rounds, speculative_rounds: seconds of every timed call, by prompt and round.
    """

    model: str
    settings: dict[str, Any]
    seconds: dict[int, float]
    context: int
    prompts: list[str] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    same: list[bool] = field(default_factory=list)
    steps: list[dict[str, Any]] = field(default_factory=list)
    stats: DecodeStats = field(default_factory=DecodeStats)
    plain_seconds: list[float] = field(default_factory=list)
    speculative_seconds: list[float] = field(default_factory=list)
    plain_first_seconds: list[float] = field(default_factory=list)
    plain_rounds: list[list[float]] = field(default_factory=list)
    speculative_rounds: list[list[float]] = field(default_factory=list)

    @property
    def plain_token_seconds(self) -> float:
        """Seconds of a plain step, including overhead."""
        tokens = sum(self.tokens) - len(self.tokens)
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


def curve(seconds: Mapping[int, float]) -> Float32:
    """Costs relative to one position, float32 (4097,) by positions; index 0 is unused."""
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
        calls = {each: partial(caller.call, way, ids, n) for each, (way, n) in ways.items()}
        results = take_turns(calls, repeats, warm_up=0).results
        if len(results[OURS][-1].tokens) >= 2:
            _add(run, name, results, loaded.tokenizer)
    run.seconds = {width: median(each[width] for each in found) for width in WIDTHS}
    return run


def _add(run: Run, name: str, results: dict[str, list[Outcome]], tokenizer: Any) -> None:
    """Add the calls of one prompt to the run."""
    output, plain = results[OURS][-1], results[PLAIN][-1]
    assert output.stats is not None
    first, plain_rounds, rounds = (
        [outcome.seconds for outcome in results[each]] for each in (FIRST, PLAIN, OURS)
    )
    run.steps += [step_of(event, len(run.prompts), tokenizer) for event in output.events]
    run.prompts.append(name)
    run.tokens.append(len(output.tokens))
    run.same.append(output.tokens == plain.tokens)
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


@dataclass(frozen=True, slots=True)
class Rung:
    """One prediction: the speedup over the baseline with one more cause, ``name``.

    Attributes:
        says: the inputs, in words.
        noise: a relative change of the speed from the rung before is noise if it is not larger.
        resolved: whether the measurements determine the speed. If not, ``says`` gives the reason.
    """

    name: str
    speed: float
    says: str
    noise: float = 0.0
    resolved: bool = True


@dataclass(frozen=True, slots=True)
class Share:
    """Verified draft tokens of one depth or draft source."""

    verified: int
    accepted: int

    @property
    def rate(self) -> float:
        """Accepted / verified."""
        return self.accepted / self.verified if self.verified else 0.0


def ladder(run: Run) -> list[Rung]:
    """The predictions, from the paper's to the measured speed.

    The last two rungs are for whole calls, the others for steps after the prefill. A plain step
    takes longer than its forward. If it is measured shorter by more than the noise, the machine did
    other work during one of the measurements, and the rungs that combine them are not resolved.
    """
    stats, steps = run.stats, decoding_steps(run.steps)
    calls, runs = max(stats.target_calls, 1), max(stats.runs, 1)
    cost, one = curve(run.seconds), run.seconds[1]
    gamma = stats.drafted / calls
    drafting = stats.draft_seconds / calls / one  # gamma c: forwards that a step's drafting takes
    tokens = stats.tokens_per_call or 1.0
    wide = float(np.mean([cost[step["width"]] for step in steps])) if steps else 1.0
    decode = wide * one * calls + stats.draft_seconds + stats.other_seconds
    paper = _at_gamma(stats.alpha, gamma) / (1 + drafting)
    whole = sum(run.plain_seconds) / (stats.prefill_seconds + decode)
    plain, noise = run.plain_token_seconds, run.noise or MIN_NOISE
    resolved = plain - one >= -noise * one
    if resolved:
        plain_says = f"below the noise of {1000 * noise * one:.2f} ms"
        if plain - one > noise * one:
            plain_says = f"{1000 * (plain - one):.2f} ms"
        overhead_says = (
            f"{1000 * stats.other_seconds / calls:.2f} ms a step outside of drafting and forwards;"
            f" plain: {plain_says}"
        )
        prefill_says = (
            f"{stats.prefill_seconds / runs:.3f} s a call; plain:"
            f" {sum(run.plain_first_seconds) / runs:.3f} s"
        )
    else:
        overhead_says = (
            f"not resolved: plain calls leave {1000 * plain:.2f} ms a step after the prefill, but a"
            f" forward alone took {1000 * one:.2f} ms; repeat on an idle machine"
        )
        prefill_says = "not resolved, for the same reason"
    acceptance_says = f"{tokens:.2f} tokens a step: by depth, branches, steps without a draft"
    cost_says = f"a forward costs {wide:.2f} on average"
    overhead = max(stats.emitted, 1) * plain / decode
    rest = "the rest: forwards whose times differ from cost(n)"
    return [
        Rung("Theorem 3.8", paper, f"alpha {stats.alpha:.3f}, gamma {gamma:.2f}, flat cost"),
        Rung("acceptance as measured", tokens / (1 + drafting), acceptance_says),
        Rung("cost(n)", tokens / (wide + drafting), cost_says, noise),
        Rung("overhead", overhead, overhead_says, noise, resolved),
        Rung("prefill", whole, prefill_says, noise, resolved),
        Rung("measured", run.measured, rest, noise),
    ]


def rung_rows(rungs: Sequence[Rung]) -> list[tuple[str, str, str, str]]:
    """(name, speed, change from the last resolved rung, inputs) of each rung."""
    rows: list[tuple[str, str, str, str]] = []
    before = None
    for rung in rungs:
        if not rung.resolved:
            rows.append((rung.name, "-", "-", rung.says))
            continue
        change = "" if before is None else f"{rung.speed - before:+.2f}"
        if before is not None and rung.noise and abs(rung.speed - before) <= rung.noise * before:
            change += " (noise)"
        rows.append((rung.name, f"{rung.speed:.2f}", change, rung.says))
        before = rung.speed
    return rows


def _at_gamma(alpha: float, gamma: float) -> float:
    """Equation 1 at a fractional mean gamma, interpolated linearly."""
    least = int(gamma)
    values = improvement_at(np.full(least + 1, alpha), np.ones(least + 3))
    return float(np.interp(gamma, [least, least + 1], values[-2:]))


def decoding_steps(steps: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """The steps after the prefill."""
    return [step for step in steps if step["index"]]


def parents_of(step: Mapping[str, Any]) -> list[int]:
    """The parent of each drafted node, -1 for the last committed token."""
    parents: list[int] | None = step["parents"]
    return list(range(-1, len(step["drafted"]) - 1)) if parents is None else parents


def judged(step: Mapping[str, Any]) -> list[tuple[int, int, bool]]:
    """(node, depth, accepted) of the nodes that a step verified; one per depth at most is accepted.

    These are the children of the last committed token and of accepted nodes.
    """
    right = set(step["accepted"])
    above = {-1, *right}
    ended = len(step["emitted"]) <= len(right)  # by a stop criterion
    depths: list[int] = []
    found = []
    for node, parent in enumerate(parents_of(step)):
        depths.append(0 if parent < 0 else depths[parent] + 1)
        unseen = ended and depths[node] >= len(right)
        if node in right or (parent in above and not unseen):
            found.append((node, depths[node], node in right))
    return found


def by_depth(steps: Sequence[Mapping[str, Any]]) -> dict[int, Share]:
    """By depth: steps that verified a token there, and those that accepted one."""
    verified: Counter[int] = Counter()
    accepted: Counter[int] = Counter()
    for step in decoding_steps(steps):
        nodes = judged(step)
        verified.update({depth for _, depth, _ in nodes})
        accepted.update({depth for _, depth, right in nodes if right})
    return {depth: Share(verified[depth], accepted[depth]) for depth in sorted(verified)}


def by_source(run: Run) -> dict[str, Share]:
    """Verified draft tokens by draft source."""
    return {name: Share(each.verified, each.accepted) for name, each in run.stats.sources.items()}


MAX_SHOWN_DEPTHS = 12
COLOURS = ("#1a7f37", "#0b7285", "#9a6700", "#8250df", "#bf3989", "#57606a")  # of draft sources
STYLE = """
:root { color-scheme: light dark; --ink: #1f2328; --paper: #fff; --soft: #f6f8fa;
  --line: #d0d7de; --bad: #57606a; --own: #0969da; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6edf3; --paper: #0d1117; --soft: #161b22;
  --line: #30363d; --own: #58a6ff; --bad: #8b949e; } }
body { font: 15px/1.5 system-ui, sans-serif; max-width: 62rem; margin: 2rem auto; padding: 0 1rem;
  color: var(--ink); background: var(--paper); }
table { border-collapse: collapse; } td, th { padding: .25rem .8rem; text-align: left;
  border-bottom: 1px solid var(--line); } td + td { text-align: right; }
td:nth-child(4) { text-align: left; } svg { width: 12rem; height: .8rem; fill: var(--own); }
pre { white-space: pre-wrap; overflow-wrap: anywhere; background: var(--soft); padding: 1rem;
  border: 1px solid var(--line); border-radius: 6px; line-height: 1.7; }
.step { position: relative; } .own { color: var(--own); text-decoration: underline; }
.step:hover, .step:focus { background: color-mix(in srgb, var(--own) 18%, transparent);
  outline: none; }
.rejected { color: var(--bad); text-decoration: line-through; font-size: .8em; }
.tip { display: none; position: absolute; z-index: 9; left: 0; top: 1.6em; width: max-content;
  max-width: 30rem; padding: .5rem .8rem; background: var(--paper); color: var(--ink);
  border: 1px solid var(--line); border-radius: 6px; font-size: .85em; white-space: pre;
  overflow: hidden; }
.step:hover .tip, .step:focus .tip { display: block; }
"""

Step = Mapping[str, Any]  # see ``step_of``


def page(run: Run) -> str:
    """The page as HTML 5."""
    sources = {name: COLOURS[n % len(COLOURS)] for n, name in enumerate(by_source(run))}
    stats, settings = run.stats, run.settings
    summary = (
        f"{len(run.prompts)} prompts, {stats.emitted:,} tokens in {stats.target_calls:,} forwards"
        f" after the prefill: {stats.tokens_per_call:.2f} a forward. Drafter"
        f" {settings['drafter']}, gamma {settings['gamma']}, tree {settings['tree']}."
    )
    names = ("takes into account", "speed", "change", "from")
    rows = [tuple(map(escape, row)) for row in rung_rows(ladder(run))]
    parts = [f"<h1>{escape(run.model)}: {run.measured:.2f} times as fast as plain</h1>"]
    parts += [f"<p>{escape(summary)}</p>", _table(names, rows), f"<p>{escape(run.noise_says)}</p>"]
    depths = {f"position {n + 1}": share for n, share in by_depth(run.steps).items()}
    shown = list((by_source(run) | depths).items())[: len(sources) + MAX_SHOWN_DEPTHS]
    shares = [(escape(name), f"{s.verified:,}", f"{s.rate:.3f}", _bar(s.rate)) for name, s in shown]
    parts += ["<h2>Acceptance</h2>", _table(("of", "verified", "accepted / verified", ""), shares)]
    parts += ["<h2>The text</h2>", _legend(sources)]
    for number, name in enumerate(run.prompts):
        parts.append(f"<h3>{escape(name)}</h3>")
        if not run.same[number]:
            parts.append("<p>The baseline's text differs here.</p>")
        steps = (_step(step, sources) for step in run.steps if step["prompt"] == number)
        parts.append(f"<pre>{''.join(steps)}</pre>")
    head = f'<meta charset="utf-8"><title>{escape(run.model)}, explained</title>'
    body = "\n".join(parts)
    return (
        f'<!DOCTYPE html>\n<html lang="en"><head>{head}<style>{STYLE}</style></head>\n'
        f"<body>\n{body}\n</body></html>\n"
    )


def _table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table of cells in HTML."""
    lines = ["".join(f"<th>{head}</th>" for head in heads)]
    lines += ["".join(f"<td>{cell}</td>" for cell in row) for row in rows]
    return f"<table><tbody>{''.join(f'<tr>{line}</tr>' for line in lines)}</tbody></table>"


def _bar(share: float) -> str:
    return f'<svg viewBox="0 0 100 6"><rect width="{100 * share:.1f}" height="6"></rect></svg>'


def _legend(sources: Mapping[str, str]) -> str:
    words = [
        f'<span style="color:{colour}">{escape(name)}</span>' for name, colour in sources.items()
    ]
    words.append('<span class="own">the target\'s own</span>')
    words.append('<span class="rejected">rejected</span>')
    return f"<p>accepted from {', '.join(words)}. Hover over a step to see its draft.</p>"


def _step(step: Step, sources: Mapping[str, str]) -> str:
    count = len(step["accepted"])
    pieces = []
    for node, text in zip(step["accepted"], step["emitted"], strict=False):
        colour = sources.get(step["source"][node], COLOURS[-1])
        pieces.append(f'<span style="color:{colour}">{escape(text)}</span>')
    wrong = first_rejected(step)
    if wrong is not None:
        pieces.append(f'<span class="rejected">{escape(step["drafted"][wrong].strip())}</span>')
    pieces += [f'<span class="own">{escape(text)}</span>' for text in step["emitted"][count:]]
    tip = f'<span class="tip">{escape(tree_text(step))}</span>'
    return f'<span class="step" tabindex="0">{"".join(pieces)}{tip}</span>'


def first_rejected(step: Step) -> int | None:
    """The first rejected node after the accepted ones, or None."""
    last = step["accepted"][-1] if step["accepted"] else -1
    following = (node for node, parent in enumerate(parents_of(step)) if parent == last)
    return next((node for node in following if node not in step["accepted"]), None)


def tree_text(step: Step) -> str:
    """A step's draft as indented lines with marks at accepted nodes."""
    milliseconds = 1000 * (step["draft_seconds"] + step["forward_seconds"] + step["other_seconds"])
    head = f"step {step['index']}: forward of {step['width']}, {milliseconds:.1f} ms"
    if not step["drafted"]:
        return f"{head}, no draft"
    children: dict[int, list[int]] = {}
    for node, parent in enumerate(parents_of(step)):
        children.setdefault(parent, []).append(node)
    deeper = 0 if step["parents"] is None else 1  # chains are not indented
    lines, open_ = [head], [(node, 0) for node in reversed(children.get(-1, []))]
    while open_:
        node, depth = open_.pop()
        mark = "✓" if node in step["accepted"] else "·"
        indent = "  " * min(depth, 20)
        lines.append(f"{indent}{mark} {step['drafted'][node]!r} ({step['source'][node]})")
        open_ += [(child, depth + deeper) for child in reversed(children.get(node, []))]
    return "\n".join(lines)
