"""The command ``corpus``."""

from __future__ import annotations

import json

import numpy as np
import pytest
from command import exit_code

from ngramspec.cli import corpus as command
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
        (["build", "{out}", "{nothing}"], "there is no file or folder"),
        (["build", "{out}", "{project}", "--glob", "*.rs"], "at least one token, got none"),
        (["build", "{nothing}/x.ngc", "{project}"], "No such file"),
        (["build", "{out}", "{project}/a.py", "--jsonl", "text"], "line 1: not JSON"),
        (["info", "{nothing}"], "No such file"),
        (["info", "{project}/a.py"], "is no ngramspec corpus"),
        (["verify", "{project}/a.py"], "is no ngramspec corpus"),
        (["update", "{plain}"], "was not built by ngramspec corpus build"),
    ],
)
def test_bad_arguments_are_one_line(project, tmp_path, arguments, message, capsys):
    Corpus.build([np.arange(9, dtype=np.int32)], tmp_path / "plain.ngc")
    places = {
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
