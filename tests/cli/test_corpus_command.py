"""The command ``corpus``."""

from __future__ import annotations

import json

import pytest
from command import exit_code
from tiny_tokenizers import Letters

from ngramspec.measure import models
from ngramspec.stores import Corpus
from ngramspec.stores import corpus as corpora
from ngramspec.stores.corpus import KIND

pytest.importorskip("pydivsufsort")
pytest.importorskip("pathspec")
pytest.importorskip("rich")


@pytest.fixture(autouse=True)
def tokenizer(monkeypatch):
    letters = Letters('\n abcdefghijklmnopqrstuvwxyz.{}":')
    monkeypatch.setattr(models, "locate", lambda model: None)
    monkeypatch.setattr(models, "load_tokenizer", lambda source: letters)


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
    monkeypatch.setattr(corpora, "watch", lambda paths, corpus, rebuild: rebuild())
    assert exit_code(["corpus", "watch", str(out), *arguments]) == 0
    assert Corpus.open(out).recipe()["max_file"] == max_file


def test_verify_finds_what_is_broken(project, tmp_path, capsys):
    out = tmp_path / "own.ngc"
    exit_code(["corpus", "build", str(out), str(project)])
    content = bytearray(out.read_bytes())
    content[KIND.header_size] ^= 1
    out.write_bytes(content)
    capsys.readouterr()
    assert exit_code(["corpus", "verify", str(out)]) == 1
    assert "is broken" in capsys.readouterr().out
