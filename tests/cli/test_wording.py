"""Numbers and nouns agree in what commands print."""

from __future__ import annotations

from types import SimpleNamespace

from ngramspec.cli import bench
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
