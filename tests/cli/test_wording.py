"""Numbers and nouns agree in what commands print."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from ngramspec import DecodeStats
from ngramspec.cli import bench
from ngramspec.cli.demo_view import View
from ngramspec.cli.options import counted


def test_a_noun_agrees_with_its_number():
    assert counted(0, "prompt") == "0 prompts"
    assert counted(1, "prompt") == "1 prompt"
    assert counted(1234, "target call") == "1,234 target calls"


def test_the_report_of_whole_calls(capsys):
    from ngramspec.cli.options import console

    measured = SimpleNamespace(skipped={}, compiling={"plain": 1}, left_out={"edit": 1, "chat": 2})
    bench.show(console(), [], measured)
    assert capsys.readouterr().out.splitlines() == [
        "plain: 1 call repeated, something was compiled in them",
        "edit: 1 prompt left out because the plain output is too short",
        "chat: 2 prompts left out because the plain output is too short",
    ]


@pytest.mark.parametrize(
    ("different", "total", "line"),
    [
        (1, 1, "In float16, 1 of 1 text differs from plain generate."),
        (2, 4, "In float16, 2 of 4 texts differ from plain generate."),
    ],
)
def test_the_verdict_of_the_demo(capsys, different, total, line):
    View().verdict("float16", different, total)
    assert capsys.readouterr().out.strip() == line


def test_the_counts_of_the_demo(capsys):
    stats = DecodeStats()
    stats.emitted, stats.target_calls = 1, 1
    view = View()
    view.outcome(stats)
    view.title("A title", "a prompt", 1)
    printed = capsys.readouterr().out
    assert "1 token, 1 target call, " in printed
    assert "(prompt of 1 token)" in printed
