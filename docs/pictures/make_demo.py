"""Draw the picture of README and docs: a text of the demo, its tokens coloured by origin.

It is a real run of SmolLM2-135M-Instruct (greedy, float32). From the root of the repository::

    python docs/pictures/make_demo.py                # writes docs/pictures/demo.svg
"""

from __future__ import annotations

import argparse
import io
import re
from functools import partial
from pathlib import Path

from rich.console import Console
from rich.text import Text

from ngramspec import Speculator
from ngramspec.cli.demo_view import ACCEPTED, CORRECTED, PLAIN, REJECTED, STYLES, Piece, Pieces
from ngramspec.measure.calls import Configuration, ModelCaller
from ngramspec.measure.models import load
from ngramspec.measure.tasks import sample_texts

OUT = Path(__file__).with_name("demo.svg")
WIDTH = 92  # columns
TEXT = "summarize"
# rich's own frame asks another site for its font; this one takes the reader's
FRAME = """\
<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" class="rich-terminal">
<style>
.{unique_id}-matrix {{ font-family: Menlo, Consolas, "DejaVu Sans Mono", monospace;
  font-size: {char_height}px; line-height: {line_height}px; white-space: pre; }}
.{unique_id}-title {{ font-size: 18px; font-weight: bold; font-family: sans-serif; }}
{styles}
</style>
<defs>
<clipPath id="{unique_id}-clip-terminal">
<rect x="0" y="0" width="{terminal_width}" height="{terminal_height}" />
</clipPath>
{lines}
</defs>
{chrome}
<g transform="translate({terminal_x}, {terminal_y})" clip-path="url(#{unique_id}-clip-terminal)">
{backgrounds}
<g class="{unique_id}-matrix">
{matrix}
</g>
</g>
</svg>
"""


def painted(pieces: list[Piece]) -> Text:
    """The pieces of a text in their colours."""
    text = Text()
    for kind, piece in pieces:
        text.append(re.sub(r"\n\s*", "↵", piece) if kind == REJECTED else piece, STYLES[kind])
    return text


def legend() -> Text:
    """What the colours mean."""
    words = [(ACCEPTED, "accepted"), (PLAIN, ", "), (REJECTED, "rejected"), (PLAIN, " ")]
    words += [(CORRECTED, "corrected"), (PLAIN, "; the rest are the model's own.")]
    return Text("Drafted tokens: ").append_text(painted(words))


def draw(pieces: list[Piece], outcome: str, title: str) -> str:
    """The picture, as SVG."""
    console = Console(
        record=True, width=WIDTH, file=io.StringIO(), force_terminal=True, color_system="truecolor"
    )
    console.print(legend(), Text(), painted(pieces), Text(), Text(outcome, "dim"), sep="\n")
    return console.export_svg(title=title, code_format=FRAME, unique_id="demo")


def main() -> None:
    """Generate the text and write the picture."""
    parser = argparse.ArgumentParser(description="draw the picture of the demo")
    parser.add_argument("--model", help="folder or hub id (default: SmolLM2-135M-Instruct)")
    parser.add_argument("--text", default=TEXT, help=f"name of a demo text (default: {TEXT})")
    parser.add_argument("--max-new-tokens", type=int, default=128)
    parser.add_argument("--out", type=Path, default=OUT)
    arguments = parser.parse_args()
    loaded = load(arguments.model, "float32")
    ours = Configuration("ngramspec", speculator=Speculator())
    text = next(each for each in sample_texts() if each.name == arguments.text)
    ids = loaded.encode(text.prompt, chat=text.chat)
    shown, pieces = Pieces(loaded.tokenizer, ids), []
    call = partial(ModelCaller(loaded.model).call, ours, ids, arguments.max_new_tokens)
    stats = call(lambda event: pieces.extend(shown.of(event))).stats
    outcome = (
        f"{stats.emitted + stats.runs} tokens, {stats.target_calls} target calls,"
        f" {stats.tokens_per_call:.2f} tokens per forward"
    )
    title = f"{text.title}: {loaded.name}"
    arguments.out.write_text(draw(pieces, outcome, title) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
