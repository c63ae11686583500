"""One self-contained HTML page about a run, without network, scripts or other files."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any

from ngramspec.measure.explain import (
    Run,
    by_depth,
    by_source,
    ladder,
    parents_of,
    rung_rows,
)

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
