"""The command ``explain``: tables, JSON, and the page in a browser."""

from __future__ import annotations

import json
from html.parser import HTMLParser
from io import StringIO

import pytest
from forced_text import tiny_loaded
from rich.console import Console

from benchmarks.__main__ import main as bench_main
from ngramspec.cli import main
from ngramspec.cli.options import stages

SHORT = ["--tokens", "12", "--repeats", "2", "--count", "2"]
VOID = {"meta"}


@pytest.fixture
def loaded(monkeypatch):
    loaded = tiny_loaded()
    monkeypatch.setattr("ngramspec.measure.models.load", lambda *args, **kwargs: loaded)
    return loaded


@pytest.fixture
def prompts(tmp_path):
    path = tmp_path / "p.jsonl"
    path.write_text('"one two one two one"\n{"prompt": "abcabc", "group": "g"}\n')
    return ["--prompts", str(path)]


class Balanced(HTMLParser):
    """Every element that is opened is closed, in order."""

    def __init__(self):
        super().__init__()
        self.open = []
        self.classes = []

    def handle_starttag(self, tag, attrs):
        self.classes.append(dict(attrs).get("class"))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert tag in VOID or self.open.pop() == tag


def test_explain_prints_and_writes(loaded, prompts, tmp_path, capsys):
    out, html = tmp_path / "o.json", tmp_path / "o.html"
    command = ["explain", *prompts, *SHORT, "--json", str(out), "--html", str(html)]
    assert main(command) == 0
    printed = capsys.readouterr().out
    for word in ("Theorem 3.8", "cost(n)", "measured", "position 1"):
        assert word in printed
    written = json.loads(out.read_text())
    assert len(written["steps"]) == len([step for step in written["steps"] if step["width"]])
    assert {step["prompt"] for step in written["steps"]} == {0, 1}
    assert written["same_text"] == [True, True]
    parser = Balanced()
    parser.feed(html.read_text())
    assert parser.open == []
    assert parser.classes.count("step") == len(written["steps"])
    assert bench_main(["plot", str(out), "--plots", str(tmp_path / "plots")]) == 0


def test_progress_is_a_line_for_each_stage_without_a_terminal(loaded, prompts, capsys):
    assert main(["explain", *prompts, *SHORT]) == 0
    told = capsys.readouterr()
    assert told.err.splitlines() == ["prompt 1 of 2", "prompt 2 of 2"]
    assert "\r" not in told.out + told.err


def test_progress_is_one_line_on_a_terminal(capsys):
    file = StringIO()
    with stages(Console(file=file, force_terminal=True)) as on_stage:
        on_stage("one")
    assert capsys.readouterr().err == ""
    assert file.getvalue()
