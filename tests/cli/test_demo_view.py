"""How the demo shows steps: pieces of text, brackets and colours, and its table."""

from __future__ import annotations

import io
import re
import sys

import pytest
from byte_model import ByteTokenizer
from rich.console import Console
from tiny_tokenizers import with_fallback

from ngramspec import DecodeStats, StepEvent, Verdict
from ngramspec.cli import demo_view
from ngramspec.cli.demo_view import Pieces
from ngramspec.cli.options import printable
from ngramspec.measure.calls import ComparedRow

ESCAPES = re.compile(r"[\x00-\x09\x0b-\x1f\x7f]")  # control characters other than the newline


def event(drafted, accepted, emitted, verified=None):
    """The step that drafted and emitted these characters or tokens, with so many accepted."""
    drafted, emitted = (
        tuple(each.encode() if isinstance(each, str) else each) for each in (drafted, emitted)
    )
    if verified is None:
        verified = min(len(drafted), accepted + 1)
    rejected = accepted if verified > accepted else None
    verdict = Verdict(range(accepted), verified, emitted, rejected)
    return StepEvent(1, drafted, ("copy",) * len(drafted), verdict, 0.0, 0.0, 0.0)


@pytest.mark.parametrize(
    ("step", "pieces"),
    [
        (event("", 0, "T"), ["plain T"]),
        (
            event("he cat", 3, "he d"),
            ["accepted h", "accepted e", "accepted  ", "rejected c", "corrected d"],
        ),
        (event("og", 2, "og."), ["accepted o", "accepted g", "plain ."]),
        # The part ends after the last accepted token.
        (event("abcd", 2, "ab", verified=2), ["accepted a", "accepted b"]),
        # The first byte of a character is not shown, and does not swallow what follows.
        (event("é".encode()[:1], 0, b"e"), ["corrected e"]),
    ],
)
def test_pieces_of_a_step_say_what_became_of_each_token(step, pieces):
    assert [f"{kind} {text}" for kind, text in Pieces(ByteTokenizer(), []).of(step)] == pieces


def test_a_character_of_several_tokens_comes_whole_and_special_tokens_not_at_all():
    pieces = Pieces(ByteTokenizer(), [*"naïve".encode()] * 5)
    tokens = [(), *((token,) for token in "é🦜".encode()), (0,)]
    shown = [pieces.of(event((), 0, emitted)) for emitted in tokens]
    assert [each for each in shown if each] == [[("plain", "é")], [("plain", "🦜")]]


def test_pieces_of_byte_fallback_join_to_the_decode_of_all_tokens():
    tokenizer = with_fallback()
    ids = tokenizer("be 日é漢\n😀")["input_ids"]
    for at in range(len(ids)):
        pieces = Pieces(tokenizer, ids[:at])
        shown = [each for token in ids[at:] for each in pieces.of(event((), 0, (token,)))]
        text = "".join(text for _, text in (*shown, *pieces.end()))
        if "�" not in tokenizer.decode(ids[:at]):
            assert tokenizer.decode(ids[:at]) + text == tokenizer.decode(ids)


def test_a_rejected_token_has_only_its_own_text():
    tokenizer = with_fallback()
    line, letter = tokenizer.convert_tokens_to_ids(["<0x0A>", "b"])
    pieces = Pieces(tokenizer, tokenizer("be")["input_ids"])
    assert pieces.of(event((), 0, (line,))) == []
    step = event((letter,), 0, (line,), verified=1)
    assert pieces.of(step) == [("rejected", "b")]
    assert pieces.end() == [("corrected", "\n\n")]


def test_printable_keeps_text_and_newlines_and_no_control_characters():
    assert printable("a\tb\r\nc\x1b[31m\x07é") == "a   b\nc\ufffd[31m\ufffdé"


def streamed(steps, width=40, **console):
    file = io.StringIO()
    out = Console(file=file, width=width, highlight=False, **console)
    with demo_view.streamed(out, colour=bool(console.get("force_terminal"))) as add:
        for pieces in steps:
            add(pieces)
    return file.getvalue()


def test_without_colour_rejected_tokens_stand_in_brackets():
    steps = [
        [("plain", "The")],
        [("accepted", " old"), ("rejected", "\n\n  cat"), ("corrected", " dog")],
        [("accepted", "\n    ran"), ("plain", ".")],
    ]
    assert streamed(steps, force_terminal=False) == "  The old[-\\ncat-] dog\n      ran.\n"


def test_long_text_is_wrapped_between_words_and_none_of_it_is_lost():
    words = [f"word{number}" for number in range(60)]
    steps = [[("plain", f" {word[:2]}"), ("accepted", word[2:])] for word in words]
    for width in (12, 13, 40, 79):
        text = streamed(steps, width=width, force_terminal=False)
        assert text.split() == words
        assert all(len(line) <= width for line in text.splitlines())


def test_with_colour_each_kind_has_its_style():
    steps = [
        [("accepted", "one"), ("rejected", " two"), ("corrected", " three"), ("plain", " four")],
        [("accepted", "\nfive")],
    ]
    text = streamed(steps, force_terminal=True, color_system="standard")
    row = "  \x1b[94mone\x1b[0m\x1b[9;90m two\x1b[0m\x1b[33m three\x1b[0m four\n"
    assert row in text
    assert text.endswith("  \x1b[94mfive\x1b[0m\n")


class Terminal(io.StringIO):
    encoding = "utf-8"

    def isatty(self):
        return True


@pytest.mark.parametrize(("name", "value"), [("NO_COLOR", "1"), ("TERM", "dumb")])
def test_a_terminal_without_colour_gets_no_control_characters(name, value, monkeypatch):
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setattr(sys, "stdout", Terminal())
    monkeypatch.setattr(sys, "stderr", Terminal())
    assert demo_view.View().colour
    monkeypatch.setenv(name, value)
    view = demo_view.View()
    assert not view.colour
    monkeypatch.setattr("torch.get_num_threads", lambda: 1)
    view.header("model", "auto", 8)
    with view.stream(ByteTokenizer(), []) as show:
        show(event("ab", 0, "c"))
    assert "[-a-]c" in sys.stdout.getvalue()
    assert ", 1 thread; drafter auto" in " ".join(sys.stdout.getvalue().split())
    assert not ESCAPES.search(sys.stdout.getvalue())


def test_a_table_row_shows_the_words_of_the_design():
    stats = DecodeStats(runs=1, target_calls=8, emitted=20, drafted=30, verified=16, accepted=12)
    row = ComparedRow("code", 21, stats, 10.0, 25.0, None)
    assert [cell.plain for cell in demo_view.cells(row)] == [
        *("code", "21", "8", "2.50", "0.75", "10.0", "25.0", "2.50", "yes")
    ]
