"""The command ``corpus``."""

from __future__ import annotations

import json
import os

import numpy as np
import pytest
from command import exit_code

from ngramspec.cli import corpus as command
from ngramspec.server import settings
from ngramspec.stores import Corpus
from ngramspec.stores.corpus import KIND

pytest.importorskip("pydivsufsort")
pytest.importorskip("pathspec")
pytest.importorskip("rich")


class Words:
    """A tokenizer of letters, in place of a model's."""

    letters = '\n abcdefghijklmnopqrstuvwxyz.{}":'

    def get_vocab(self):
        return {letter: i for i, letter in enumerate(self.letters)}

    def encode(self, text, add_special_tokens):
        return [self.letters.index(letter) for letter in text]


@pytest.fixture(autouse=True)
def tokenizer(monkeypatch):
    monkeypatch.setattr(command, "load_tokenizer", lambda model: Words())


@pytest.fixture
def project(tmp_path):
    folder = tmp_path / "project"
    (folder / "sub").mkdir(parents=True)
    (folder / "a.py").write_text("one two three")
    (folder / "sub/b.py").write_text("one two four")
    (folder / "c.txt").write_text("five")
    (folder / "image.py").write_bytes(b"\0\1")
    (folder / "ignored.py").write_text("six")
    (folder / ".gitignore").write_text("ignored.py")
    return folder


def test_build_info_verify_update(project, tmp_path, capsys):
    out = tmp_path / "own.ngc"
    assert exit_code(["corpus", "build", str(out), str(project), "--glob", "*.py"]) == 0
    said = capsys.readouterr()
    assert f"{out}: 25 tokens of 2 documents" in said.out
    assert "left out, binary: 1" in said.err.replace("\n", "")
    assert "left out, .gitignore: 1" in said.err.replace("\n", "")

    assert exit_code(["corpus", "info", str(out)]) == 0
    info = json.loads(capsys.readouterr().out)
    assert (info["tokens"], info["documents"], info["vocabulary"]) == (25, 2, 33)
    assert info["recipe"]["paths"] == [str(project)]

    assert exit_code(["corpus", "verify", str(out)]) == 0
    assert "25 tokens, nothing broken" in capsys.readouterr().out

    (project / "d.py").write_text("seven")
    assert exit_code(["corpus", "update", str(out)]) == 0
    assert "30 tokens of 3 documents" in capsys.readouterr().out
    assert len(Corpus.open(out)) == 30


def test_names_of_files_do_not_control_the_terminal(project, tmp_path, capsys):
    (project / "\x1b]0;title\x1b\\\x1b[31m.bin").write_bytes(b"\0")
    assert exit_code(["corpus", "build", str(tmp_path / "own.ngc"), str(project)]) == 0
    said = capsys.readouterr().err.replace("\n", "")
    assert "title" in said
    assert "\x1b" not in said


def test_large_files_are_left_out_when_built_and_when_built_again(project, tmp_path, capsys):
    out, large = tmp_path / "own.ngc", project / "large.txt"
    large.write_bytes(b"a" * ((1 << 20) + 1))
    build = ["corpus", "build", str(out), str(project), "--glob", "*.txt"]
    assert exit_code([*build, "--max-file", "1"]) == 0
    assert Corpus.open(out).recipe()["max_file"] == 1
    told = capsys.readouterr()
    assert f"{out}: 4 tokens of 1 document," in told.out
    assert "left out, larger than --max-file 1 MiB: 1" in told.err.replace("\n", " ")
    for arguments, documents, max_file in (
        ([], 1, 1),
        (["--max-file", "2"], 2, 2),
        ([], 2, 2),
        (["--max-file", "1"], 1, 1),
    ):
        assert exit_code(["corpus", "update", str(out), *arguments]) == 0
        assert Corpus.open(out).info().documents == documents
        assert Corpus.open(out).recipe()["max_file"] == max_file


@pytest.mark.parametrize(("arguments", "max_file"), [([], 64), (["--max-file", "3"], 3)])
def test_watch_builds_with_the_largest_file_that_it_is_given(
    project, tmp_path, monkeypatch, arguments, max_file
):
    out = tmp_path / "own.ngc"
    exit_code(["corpus", "build", str(out), str(project)])
    monkeypatch.setattr(settings, "watch", lambda paths, corpus, rebuild: rebuild())
    assert exit_code(["corpus", "watch", str(out), *arguments]) == 0
    assert Corpus.open(out).recipe()["max_file"] == max_file


def test_a_corpus_whose_recipe_has_no_largest_file(project, tmp_path):
    recipe = {"tokenizer": None, "paths": [str(project)], "glob": [], "jsonl": None}
    Corpus.build([np.arange(9, dtype=np.int32)], tmp_path / "old.ngc", recipe=recipe)
    assert exit_code(["corpus", "update", str(tmp_path / "old.ngc")]) == 0
    assert Corpus.open(tmp_path / "old.ngc").recipe()["max_file"] == 64


def test_one_token_of_one_document(tmp_path, capsys):
    out = str(tmp_path / "c.ngc")
    (tmp_path / "a.txt").write_text("a")
    assert exit_code(["corpus", "build", out, str(tmp_path / "a.txt")]) == 0
    assert exit_code(["corpus", "verify", out]) == 0
    told = capsys.readouterr().out
    assert ": 1 token of 1 document," in told
    assert ": 1 token, nothing broken" in told


def test_json_lines(tmp_path, capsys):
    lines = tmp_path / "lines.jsonl"
    lines.write_text('{"text": "one"}\n{"text": "two"}\n')
    arguments = ["corpus", "build", str(tmp_path / "c.ngc"), str(lines), "--jsonl", "text"]
    assert exit_code(arguments) == 0
    assert "6 tokens of 2 documents" in capsys.readouterr().out


def test_verify_finds_what_is_broken(project, tmp_path, capsys):
    out = tmp_path / "own.ngc"
    exit_code(["corpus", "build", str(out), str(project)])
    content = bytearray(out.read_bytes())
    content[KIND.header_size] ^= 1
    out.write_bytes(content)
    capsys.readouterr()
    assert exit_code(["corpus", "verify", str(out)]) == 1
    assert "is broken" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["build", "{out}"], "the following arguments are required: PATH"),
        (["build", "{out}", "{nothing}"], "there is no regular file or folder"),
        (["build", "{out}", "{project}", "--glob", "*.rs"], "at least one token, got none"),
        (["build", "{nothing}/x.ngc", "{project}"], "No such file"),
        (["build", "{out}", "{project}/a.py", "--jsonl", "text"], "line 1: not JSON"),
        (
            ["build", "{out}", "{project}", "--max-file", "0"],
            "--max-file must be in 1..1048576, got 0",
        ),
        (["info", "{fifo}"], "not a regular file but a FIFO"),
        (["verify", "{fifo}"], "not a regular file but a FIFO"),
        (["info", "{nothing}"], "No such file"),
        (["info", "{project}/a.py"], "is no ngramspec corpus"),
        (["verify", "{project}/a.py"], "is no ngramspec corpus"),
        (["update", "{plain}"], "was not built by ngramspec corpus build"),
    ],
)
def test_bad_arguments_are_one_line(project, tmp_path, arguments, message, capsys):
    Corpus.build([np.arange(9, dtype=np.int32)], tmp_path / "plain.ngc")
    os.mkfifo(tmp_path / "fifo")
    places = {
        "fifo": tmp_path / "fifo",
        "out": tmp_path / "out.ngc",
        "project": project,
        "nothing": tmp_path / "nothing",
        "plain": tmp_path / "plain.ngc",
    }
    assert exit_code(["corpus", *(each.format(**places) for each in arguments)]) == 2
    said = capsys.readouterr()
    assert message in said.err
    assert said.out == ""
    assert not (tmp_path / "out.ngc").exists()
