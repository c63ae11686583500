"""One self-contained HTML page about a run, without network, scripts or other files.

It shows the text coloured as in Figure 1 of Leviathan et al. 2023, with each step's tree
on hover, times, acceptance by position, reliability of confidences, and predicted and measured
speed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from ngramspec.measure.explain import Run
from ngramspec.measure.explain_advice import Advice, reliability
from ngramspec.measure.explain_charts import bars, points, timeline
from ngramspec.measure.explain_predict import (
    Rung,
    Share,
    batches,
    by_depth,
    by_source,
    parents_of,
    rung_rows,
)
from ngramspec.measure.replay import CONFIDENCE_BINS
from ngramspec.measure.wording import counted

MAX_SHOWN_DEPTHS = 12
# Of draft sources, in order.
COLOURS = ("#1a7f37", "#0b7285", "#9a6700", "#8250df", "#bf3989", "#57606a")

STYLE = """
:root { color-scheme: light dark; --ink: #1f2328; --paper: #fff; --soft: #f6f8fa;
  --line: #d0d7de; --draft: #54aeff; --forward: #8250df; --other: #d4a72c; --bad: #57606a;
  --own: #0969da; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6edf3; --paper: #0d1117; --soft: #161b22;
  --line: #30363d; --own: #58a6ff; --bad: #8b949e; } }
body { font: 15px/1.5 system-ui, sans-serif; max-width: 62rem; margin: 2rem auto; padding: 0 1rem;
  color: var(--ink); background: var(--paper); }
table { border-collapse: collapse; } td, th { padding: .25rem .8rem; text-align: left;
  border-bottom: 1px solid var(--line); } td.n { text-align: right; }
pre.text { white-space: pre-wrap; overflow-wrap: anywhere; background: var(--soft); padding: 1rem;
  border: 1px solid var(--line); border-radius: 6px; line-height: 1.7; }
.step { position: relative; border-bottom: 1px dotted transparent; }
.step:hover, .step:focus { background: color-mix(in srgb, var(--own) 18%, transparent);
  outline: none; }
.own { color: var(--own); text-decoration: underline; }
.rejected { color: var(--bad); text-decoration: line-through; font-size: .8em; opacity: .75; }
.tip { display: none; position: absolute; z-index: 9; left: 0; top: 1.6em; width: max-content;
  max-width: 30rem; padding: .5rem .8rem; background: var(--paper); color: var(--ink);
  border: 1px solid var(--line); border-radius: 6px; font-size: .85em; white-space: pre;
  overflow: hidden; box-shadow: 0 2px 8px #0004; }
.step:hover .tip, .step:focus .tip { display: block; }
svg { width: 100%; max-width: 44rem; height: auto; display: block; }
svg text { font-size: 11px; fill: var(--ink); text-anchor: middle; }
.bar { fill: var(--own); } .frame { fill: none; stroke: var(--line); }
.mark { stroke: var(--bad); stroke-dasharray: 4 3; }
.draft { fill: var(--draft); } .forward { fill: var(--forward); } .other { fill: var(--other); }
"""


def page(run: Run, rungs: Sequence[Rung], advice: Sequence[Advice]) -> str:
    """The page as HTML 5; ``rungs`` are those of ``ladder``, ``advice`` that of ``advise``."""
    sources = {name: COLOURS[n % len(COLOURS)] for n, name in enumerate(by_source(run))}
    changes = [(each.name, f"{each.gain:.2f}", "", each.basis) for each in advice]
    parts = [
        f"<h1>{escape(run.model)}: {run.measured:.2f} times as fast as plain</h1>",
        f"<p>{escape(_summary(run))}</p>",
        "<h2>Predicted and measured speed</h2>",
        _table(("takes into account", "speed", "change", "from"), rung_rows(rungs)),
        bars([(rung.name, rung.speed, rung.says) for rung in rungs if rung.resolved], mark=1.0),
        f"<p>{escape(run.noise_says)}</p>",
        "<h2>What would help most</h2>",
        _table(("change", "predicted gain", "", "by"), changes),
    ]
    if run.row_seconds:
        rows = [
            (str(each.rows), f"{each.speed:.2f}", f"{each.cost:.2f}", f"{each.speculative:.1f}")
            for each in batches(run)
        ]
        heads = ("rows", "predicted speed", "cost(n)", "tokens/s of all rows")
        parts += ["<h2>Batches</h2>", _table(heads, rows)]
    parts += ["<h2>The text</h2>", _legend(sources)]
    for number, trace in enumerate(run.traces):
        steps = [step for step in run.steps if step["prompt"] == number]
        parts.append(f"<h3>{escape(trace.group)}</h3>")
        if not run.same[number]:
            note = "The baseline's text differs here; see What is guaranteed about the text."
            parts.append(f"<p>{note}</p>")
        spans = "".join(_step(step, sources) for step in steps)
        parts.append(f'<pre class="text">{spans}</pre>')
        parts.append(timeline(steps))
    parts += _acceptance(run)
    body = "\n".join(parts)
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta name="viewport" content="width=device-width"><title>{escape(run.model)}, explained'
        f"</title><style>{STYLE}</style></head>\n<body>\n{body}\n</body></html>\n"
    )


def _summary(run: Run) -> str:
    stats = run.stats
    return (
        f"{counted(len(run.traces), 'prompt')}, {counted(stats.emitted, 'token')} in"
        f" {counted(stats.target_calls, 'forward')} after the prefill:"
        f" {stats.tokens_per_call:.2f} a forward. Drafter {run.settings['drafter']},"
        f" gamma {run.settings['gamma']}, tree {run.settings['tree']}."
    )


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table with numbers in its second and third columns."""
    top = "".join(f"<th>{escape(head)}</th>" for head in heads)
    classes = ("", " class=n", " class=n", "")
    body = ""
    for row in rows:
        cells = (f"<td{kind}>{escape(cell)}</td>" for kind, cell in zip(classes, row, strict=True))
        body += f"<tr>{''.join(cells)}</tr>"
    return f"<table><thead><tr>{top}</tr></thead><tbody>{body}</tbody></table>"


def _legend(sources: Mapping[str, str]) -> str:
    words = [
        f'<span style="color:{colour}">{escape(name)}</span>' for name, colour in sources.items()
    ]
    words.append('<span class="own">the target\'s own</span>')
    words.append('<span class="rejected">rejected</span>')
    hint = (
        "Hover over a step to see its draft. The chart below each text shows its steps over time;"
        " the height is the forward's width."
    )
    return f"<p>accepted from {', '.join(words)}. {hint}</p>"


def _step(step: Mapping[str, Any], sources: Mapping[str, str]) -> str:
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


def first_rejected(step: Mapping[str, Any]) -> int | None:
    """The first rejected node after the accepted ones, or None."""
    last = step["accepted"][-1] if step["accepted"] else -1
    following = (node for node, parent in enumerate(parents_of(step)) if parent == last)
    return next((node for node in following if node not in step["accepted"]), None)


def tree_text(step: Mapping[str, Any]) -> str:
    """A step's draft as indented lines with marks at accepted nodes."""
    milliseconds = 1000 * (step["draft_seconds"] + step["forward_seconds"] + step["other_seconds"])
    head = f"step {step['index']}: {counted(step['width'], 'position')}, {milliseconds:.1f} ms"
    if not step["drafted"]:
        return f"{head}, no draft"
    children: dict[int, list[int]] = {}
    for node, parent in enumerate(parents_of(step)):
        children.setdefault(parent, []).append(node)
    lines, open_ = [head], [(node, 0) for node in reversed(children.get(-1, []))]
    while open_:
        node, depth = open_.pop()
        mark = "✓" if node in step["accepted"] else "·"
        indent = "  " * min(depth, 20)
        lines.append(f"{indent}{mark} {step['drafted'][node]!r} ({step['source'][node]})")
        deeper = 0 if step["parents"] is None else 1  # chains are not indented
        open_ += [(child, depth + deeper) for child in reversed(children.get(node, []))]
    return "\n".join(lines)


def _acceptance(run: Run) -> list[str]:
    """Charts of acceptance by position and by source, and of the confidences' reliability."""

    def heights(shares: Mapping[str, Share]) -> list[tuple[str, float, str]]:
        return [
            (name, share.rate, f"{share.accepted} of {share.verified}")
            for name, share in shares.items()
        ]

    depths = by_depth(run.steps).items()
    shown = {str(depth + 1): share for depth, share in depths if depth < MAX_SHOWN_DEPTHS}
    dots = []
    for _, share in sorted(reliability(run).confidence.items()):
        at, up = share.expected / share.verified, share.accepted / share.verified
        dots.append((at, up, f"{share.verified} verified"))
    return [
        "<h2>Acceptance by position in the draft</h2>",
        bars(heights(shown), top=1.0),
        "<h2>Acceptance by source</h2>",
        bars(heights(by_source(run)), top=1.0),
        f"<h2>Reliability of the confidences ({CONFIDENCE_BINS} bins, replayed)</h2>",
        points(dots) if dots else "<p>This drafter reports no confidences.</p>",
    ]
