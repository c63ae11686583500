"""The commands ``bench``, ``explain`` and ``wrap``."""

from __future__ import annotations

import json
from html.parser import HTMLParser
from io import StringIO

import pytest
from command import exit_code
from forced_text import IDS, tiny_loaded
from rich.console import Console
from wrapping import save_tiny

from benchmarks.__main__ import main as bench_main
from ngramspec import Speculator
from ngramspec.cli import main
from ngramspec.cli.options import stages
from ngramspec.measure.calls import PLAIN
from ngramspec.measure.tasks import NOTHING


@pytest.fixture
def loaded(monkeypatch):
    loaded = tiny_loaded()
    monkeypatch.setattr("ngramspec.measure.models.load", lambda *args, **kwargs: loaded)
    return loaded


def test_bench_prints_and_writes(loaded, tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "150")
    traces, out = tmp_path / "t.jsonl", tmp_path / "o.json"
    lines = [{"group": group, "id": 0, "prompt": list(IDS)} for group in ("chat", "summarization")]
    traces.write_text("\n".join(map(json.dumps, lines)))
    command = ["bench", "--prompts", str(traces), "--tasks", "summarization", "nothing"]
    command += ["--lengths", "30", "90", "--repeats", "1", "--max-new-tokens", "24", "--least", "9"]
    command += ["--lookup", "5", "--speculator", '{"gamma": 3}']
    command += ["--speculator", '{"drafter": "mtp"}']
    assert main([*command, "--json", str(out)]) == 0
    printed = capsys.readouterr().out
    assert "skipped: ngramspec, drafter mtp: " in printed
    assert "tokens/s  speedup  median  worst  tokens/forward  mean cost  of limit  peak" in printed
    for word in ("summarization, 1 prompt of 90", "prompt lookup 5", "ngramspec, gamma 3"):
        assert word in printed
    assert "chat," not in printed
    written = json.loads(out.read_text())
    assert {row["length"] for row in written["summary"]} == {30, 90}
    assert {row["task"] for row in written["summary"]} == {"summarization", NOTHING}
    assert {each["way"] for each in written["calls"]} == {
        *(PLAIN, "prompt lookup 5", "ngramspec", "ngramspec, gamma 3")
    }
    assert all(row["same"] == row["prompts"] for row in written["summary"])
    assert written["command"].startswith("ngramspec")
    assert written["settings"]["repeats"] == 1


def test_bench_has_texts_of_its_own(loaded, capsys):
    command = ["bench", "--tasks", "code_edit", "--repeats", "1", "--max-new-tokens", "9"]
    assert main([*command, "--least", "200", "--lookup"]) == 0
    assert "code_edit: 1 prompt left out" in capsys.readouterr().out


@pytest.mark.parametrize(("columns", "wide"), [(80, []), (120, []), (80, ["--wide"])])
def test_bench_has_columns_for_the_screen(loaded, tmp_path, capsys, monkeypatch, columns, wide):
    """Without random texts, which are made on request."""
    monkeypatch.setenv("COLUMNS", str(columns))
    path = tmp_path / "p.jsonl"
    path.write_text(f"{[*IDS]}\n")
    command = ["bench", "any", "--prompts", str(path), "--lookup", "10", *wide]
    speculator = '{"gamma": 8, "policy": "priority", "drafter": "copy+ngram"}'
    command += ["--speculator", speculator, "--max-new-tokens", "4", "--repeats", "1"]
    assert main(command) == 0
    _, title, heads, *rows = capsys.readouterr().out.splitlines()
    shown = ["tokens/s", "speedup", "worst", "tokens/forward", "same", "text"]
    if wide or columns == 120:
        more = ["median", "mean", "cost", "of", "limit", "peak", "MB"]
        shown = [*shown[:2], more[0], *shown[2:4], *more[1:], *shown[4:]]
    assert (title, heads.split()) == ("p, 1 prompt", shown)
    assert NOTHING not in "".join(rows)
    assert all(len(row) <= (150 if wide else columns) and "…" not in row for row in rows)


def test_prompts_of_a_length_are_chosen(loaded, tmp_path, capsys):
    path, out = tmp_path / "p.jsonl", tmp_path / "o.json"
    path.write_text(f"[1, 2, 3]\n{[*IDS]}\n")
    command = ["bench", "--prompts", str(path), "--tasks", "p", "--prompt-tokens", "9", "99"]
    command += ["--max-new-tokens", "4", "--least", "2", "--lookup", "--json", str(out)]
    assert main(command) == 0
    path.write_text('{"id": 3, "prompt": [1, 2]}\n[3]\n{"id": 3, "prompt": [4]}\n')
    assert main(command) == 2
    assert "--prompts: 2 prompts of p have the id 3" in capsys.readouterr().err
    assert {each["prompt"] for each in json.loads(out.read_text())["calls"]} == {"2"}


VOID = {"meta"}


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


def test_explain_prints_and_writes(loaded, tmp_path, capsys):
    prompts, out, html = (tmp_path / name for name in ("p.jsonl", "o.json", "o.html"))
    prompts.write_text('"one two one two one"\n{"prompt": "abcabc", "group": "g"}\n')
    command = ["explain", "--prompts", str(prompts), "--tokens", "12", "--repeats", "2"]
    command += ["--count", "2", "--json", str(out), "--html", str(html)]
    assert main(command) == 0
    told = capsys.readouterr()
    for word in ("Theorem 3.8", "cost(n)", "measured", "position 1"):
        assert word in told.out
    # Without a terminal, progress is a line for each stage.
    assert told.err.splitlines() == ["prompt 1 of 2", "prompt 2 of 2"]
    assert "\r" not in told.out + told.err
    written = json.loads(out.read_text())
    assert len(written["steps"]) == len([step for step in written["steps"] if step["width"]])
    assert {step["prompt"] for step in written["steps"]} == {0, 1}
    assert written["same_text"] == [True, True]
    parser = Balanced()
    parser.feed(html.read_text())
    assert parser.open == []
    assert parser.classes.count("step") == len(written["steps"])
    assert bench_main(["plot", str(out), "--plots", str(tmp_path / "plots")]) == 0


def test_progress_is_one_line_on_a_terminal(capsys):
    file = StringIO()
    with stages(Console(file=file, force_terminal=True)) as on_stage:
        on_stage("one")
    assert capsys.readouterr().err == ""
    assert file.getvalue()


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return save_tiny(tmp_path_factory.mktemp("saved") / "tiny")


def test_the_command_says_what_it_wrote_and_how_to_use_it(folder, tmp_path, capsys):
    out = tmp_path / "a model"
    arguments = ["--gamma", "3", "--gamma-max", "9", "--drafter", "copy", "--policy", "priority"]
    assert exit_code(["wrap", str(folder), str(out), *arguments]) == 0
    printed = capsys.readouterr().out
    assert f"{out}: LlamaForCausalLM, speculative\n" in printed
    assert "1 file, hard links" in printed
    assert f"AutoModelForCausalLM.from_pretrained('{out}', trust_remote_code=True)" in printed
    assert f"transformers serve '{out}' --trust-remote-code" in printed
    assert "without trust_remote_code, the model generates without speculation" in printed
    settings = {"drafter": "copy", "gamma": 3, "gamma_max": 9, "policy": "priority"}
    assert json.loads((out / "custom_generate/ngramspec.json").read_text()) == settings
    assert exit_code(["wrap", str(folder), str(tmp_path / "b"), "--copy"]) == 0
    assert "1 file, copies" in capsys.readouterr().out


def test_stores_by_option(folder, tmp_path, capsys):
    out = tmp_path / "shared"
    assert exit_code(["wrap", str(folder), str(out), "--shared"]) == 0
    assert "stores [{'namespace': 'default', 'write': 'outputs'}]" in capsys.readouterr().out
    speculator = Speculator.from_pretrained(out)
    assert repr(speculator.stores) == "(SharedStore()['default'],)"
    assert speculator.to_dict()["stores"] == [{"namespace": "default", "write": "outputs"}]
    arguments = ["--corpus", str(tmp_path / "none.ngc")]
    assert exit_code(["wrap", str(folder), str(tmp_path / "b"), *arguments]) == 2
    assert "there is no file" in capsys.readouterr().err
