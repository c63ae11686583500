"""Corpora that follow their files, and servers that follow their corpora."""

from __future__ import annotations

import os
import threading

import pytest
from serving import letters

from ngramspec import Corpus
from ngramspec.stores.corpus import Shelf, watch


@pytest.fixture
def watched(tmp_path, monkeypatch):
    """Watch a folder, in which ``change`` is called as soon as changes are seen."""
    watchfiles = pytest.importorskip("watchfiles", reason="pip install 'ngramspec[serve]'")
    notify, stop = watchfiles.main.RustNotify, threading.Event()

    def run(change, rebuild):
        def begun(*given):
            watcher = notify(*given)
            change()
            return watcher

        monkeypatch.setattr(watchfiles.main, "RustNotify", begun)
        watch([tmp_path], tmp_path / "own.ngc", lambda: rebuild(stop), stop=stop, quiet=50)

    return run


def test_a_change_rebuilds_and_an_error_does_not_end_the_watch(watched, tmp_path, caplog):
    rebuilt = []

    def change():
        (tmp_path / "a.py").write_text(str(len(rebuilt)))

    def rebuild(stop):
        rebuilt.append(1)
        change()
        if len(rebuilt) == 2:
            raise ValueError("there is nothing to build from")
        if len(rebuilt) == 3:
            stop.set()

    watched(change, rebuild)
    assert "nothing to build from" in caplog.text


def test_the_corpus_itself_starts_nothing(watched, tmp_path, caplog):
    def change():
        for name in ("own.ngc", "own.ngc.tmp", "a.py"):
            (tmp_path / name).write_text("x")

    caplog.set_level("DEBUG", "watchfiles.main")
    watched(change, lambda stop: stop.set())
    assert "a.py" in caplog.text
    assert "own.ngc" not in caplog.text


def test_a_replaced_corpus_is_opened_again(tmp_path, caplog):
    pytest.importorskip("pydivsufsort")
    path = tmp_path / "own.ngc"
    tokenizer = letters()

    def build(text):
        return Corpus.build([text], path, tokenizer=tokenizer)

    shelf = Shelf({"own": build("the first text")}, tokenizer)
    first = shelf["own"]
    assert shelf["own"] is first
    build("another text, which is longer")
    assert len(shelf["own"]) == len("another text, which is longer")
    assert len(first) == len("the first text")
    longer = shelf["own"]
    Corpus.build(["the text of another model"], path, tokenizer=letters(fim=False))
    assert shelf["own"] is longer
    assert "another tokenizer" in caplog.text
    path.with_suffix(".new").write_bytes(b"no corpus")
    os.replace(path.with_suffix(".new"), path)
    assert len(shelf["own"]) > len(first)
    assert "cannot be opened again" in caplog.text
    path.unlink()
    assert len(shelf["own"]) > len(first)
    assert list(shelf) == ["own"]
