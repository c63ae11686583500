"""The demo's output: streamed texts, progress bars and tables, with and without colour."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from importlib.metadata import version
from typing import Any

import torch
from rich.console import Console
from rich.live import Live
from rich.text import Text

from ngramspec import DecodeStats, StepEvent, __version__
from ngramspec.cli.options import console, counted, make_table, printable
from ngramspec.measure.calls import ComparedRow
from ngramspec.server.text import REPLACEMENT_CHARACTER, Detokenizer, hidden_ids

ACCEPTED, REJECTED, CORRECTED, PLAIN = "accepted", "rejected", "corrected", "plain"
STYLES = {ACCEPTED: "bright_blue", REJECTED: "bright_black strike", CORRECTED: "yellow", PLAIN: ""}
MAX_COLUMNS = 100
INDENT = "  "
MAX_PROMPT_ROWS = 3  # shown of the prompt's last paragraph

Piece = tuple[str, str]  # outcome of a token (one of the above), and its text


class Pieces:
    """The text of each step's tokens, decoded step by step; a character comes whole."""

    def __init__(self, tokenizer: Any, ids: Sequence[int]) -> None:
        self._text = Detokenizer(tokenizer, ids, hidden_ids(tokenizer))
        self._kind = PLAIN  # of the last token

    def of(self, event: StepEvent) -> list[Piece]:
        """The drafted and emitted tokens of a step; of the rejected ones, the one replaced."""
        verdict = event.verdict
        accepted = len(verdict.accepted)
        pieces = [(ACCEPTED, self._add(token)) for token in verdict.emitted[:accepted]]
        if verdict.rejected is not None:
            text = printable(self._text.peek((event.drafted[verdict.rejected],)))
            pieces.append((REJECTED, text.strip(REPLACEMENT_CHARACTER)))
        kind = PLAIN if verdict.rejected is None else CORRECTED
        pieces += [(kind, self._add(token)) for token in verdict.emitted[accepted:]]
        self._kind = pieces[-1][0] if pieces else self._kind
        return [(kind, text) for kind, text in pieces if text]

    def end(self) -> list[Piece]:
        """The text that was undecided after the last step."""
        text = printable(self._text.add((), last=True))
        return [(self._kind, text)] if text else []

    def _add(self, token: int) -> str:
        return printable(self._text.add((token,)))


@contextmanager
def streamed(screen: Console, *, colour: bool) -> Iterator[Callable[[Sequence[Piece]], None]]:
    """Yield what prints the pieces of a step, wrapped, at once with colour, else at the end."""
    shown, width = Text(), min(screen.width, MAX_COLUMNS) - len(INDENT)
    live = Live(console=screen, auto_refresh=False, transient=True)

    def rows() -> list[Text]:
        return list(map(indented, shown.wrap(screen, width)))

    def add(pieces: Sequence[Piece]) -> None:
        for kind, text in pieces:
            if kind == REJECTED:  # not part of the text: show a newline, do not break the line
                text = re.sub(r"\n\s*", "↵" if colour else r"\\n", text)
                text = text if colour else f"[-{text}-]"
            shown.append(text if shown else text.lstrip("\n"), STYLES[kind])
        if colour:
            live.update(Text("\n").join(rows()[1 - screen.height :]), refresh=True)

    try:
        with live if colour else nullcontext():
            yield add
    finally:
        for row in rows():
            screen.print(row, soft_wrap=True)


def indented(row: Text) -> Text:
    """``row`` indented by two columns, without trailing spaces."""
    row = Text.assemble(INDENT, row)
    row.rstrip()
    return row


class View:
    """The demo's output: results on stdout, progress on stderr."""

    def __init__(self) -> None:
        self.out, self.err = (console(each, columns=None) for each in (sys.stdout, sys.stderr))
        self.colour = self.out.is_terminal

    def header(self, model: str, drafter: str, gamma: int | str) -> None:
        """Print the versions and the legend of the colours."""
        self._line(Text.assemble(("ngramspec", "bold"), f" {__version__}, {model}"))
        versions = f"torch {torch.__version__}, transformers {version('transformers')}"
        threads = counted(torch.get_num_threads(), "thread")
        self._line(Text(f"{versions}, {threads}; drafter {drafter}, gamma {gamma}", "dim"))
        rejected = REJECTED if self.colour else f"[-{REJECTED}-]"
        legend = Text("Drafted tokens: ").append(ACCEPTED, STYLES[ACCEPTED]).append(", ")
        legend.append(rejected, STYLES[REJECTED]).append(" ").append(CORRECTED, STYLES[CORRECTED])
        self._line(legend.append("; the rest are the model's own."))

    def title(self, title: str, prompt: str, tokens: int) -> None:
        """Print a text's title and the end of its prompt."""
        self.out.print()
        size = f"  (prompt of {counted(tokens, 'token')})"
        self._line(Text.assemble((title, "bold"), (size, "dim")))
        end = Text(printable(prompt.rsplit("\n\n", 1)[-1]).strip("\n"), "dim")
        rows = list(end.wrap(self.out, self._width() - len(INDENT)))
        for row in rows[-MAX_PROMPT_ROWS:]:
            self._line(indented(row))
        self.out.print()

    @contextmanager
    def stream(self, tokenizer: Any, ids: Sequence[int]) -> Iterator[Callable[[StepEvent], None]]:
        """Show a generation. The yielded function takes its events."""
        pieces = Pieces(tokenizer, ids)
        with streamed(self.out, colour=self.colour) as add:
            yield lambda event: add(pieces.of(event))
            add(pieces.end())

    def outcome(self, stats: DecodeStats | None) -> None:
        """Print the counts of the last shown text."""
        assert stats is not None
        self.out.print()
        prefilled = stats.runs + stats.prefill_accepted
        tokens = counted(prefilled + stats.emitted, "token")
        calls = f"{counted(stats.target_calls, 'target call')}, {stats.tokens_per_call:.2f}"
        self._line(Text(f"{INDENT}{tokens}, {calls} tokens per forward", "dim"))

    def table(self, dtype: str, rows: Sequence[ComparedRow], repeats: int) -> None:
        """Print the measurements in one dtype, and where texts differ."""
        self.out.print()
        runs = "one run each" if repeats == 1 else f"medians of {repeats} runs each, in turn"
        self._line(Text.assemble((dtype, "bold"), (f"  ({runs})", "dim")))
        counts = ("new\ntokens", "target\ncalls", "tokens/\nforward", "alpha")
        rates = ("plain\ntokens/s", "spec.\ntokens/s", "ratio", "identical\nto plain")
        names = ("text", *counts, *rates)
        self.out.print(make_table(names, map(cells, rows), left=("text",)))
        for row in rows:
            if row.difference is not None:
                self._line(Text(note(row), "yellow"))

    def verdict(self, dtype: str, different: int, total: int) -> None:
        """Print whether the texts are the baseline's, as the exit code also shows."""
        which = "The text is" if total == 1 else f"All {total} texts are"
        line, style = f"{which} plain generate's, token for token.", "green"
        if different:
            differ = f"{different} of {counted(total, 'text')} differ{'s' * (different == 1)}"
            line, style = f"In {dtype}, {differ} from plain generate.", "bold red"
        self._line(Text(line, style))

    def _width(self) -> int:
        return min(self.out.width, MAX_COLUMNS)

    def _line(self, text: Text) -> None:
        for row in text.wrap(self.out, self._width()):
            row.rstrip()
            self.out.print(row, soft_wrap=True)


def cells(row: ComparedRow) -> list[Text]:
    """A row of the table."""
    ratio = row.speculative_rate / row.plain_rate
    same = row.difference is None
    return [
        Text(row.name),
        Text(str(row.new_tokens)),
        Text(str(row.stats.target_calls)),
        Text(f"{row.stats.tokens_per_call:.2f}"),
        Text(f"{row.stats.alpha:.2f}"),
        Text(f"{row.plain_rate:.1f}"),
        Text(f"{row.speculative_rate:.1f}"),
        Text(f"{ratio:.2f}", "bold green" if ratio >= 1 else "bold"),
        Text("yes", "green") if same else Text("no", "yellow"),
    ]


def note(row: ComparedRow) -> str:
    """One sentence about where a text differs from the baseline's."""
    found = row.difference
    assert found is not None
    ulps = f"{found.ulps:.1f}".removesuffix(".0")
    units = "unit" if ulps == "1" else "units"
    return (
        f"{row.name}: differs from new token {found.token} on, {found.speculative!r} where plain"
        f" generate has {found.plain!r}; the two best logits are {ulps} {units} in the"
        " last place apart there."
    )
