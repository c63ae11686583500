"""Corpora that follow their files, and servers that follow their corpora."""

from __future__ import annotations

import os
import threading

import pytest
from serving import letters

from ngramspec import Corpus
from ngramspec.server.settings import Shelf, watch

LONG = 60  # seconds: only against hanging for ever


@pytest.fixture
def watching(tmp_path):
    """A watch of a folder: the folder, and an event that each rebuild sets."""
    pytest.importorskip("watchfiles", reason="pip install 'ngramspec[serve]'")
    source, rebuilt, stop = tmp_path / "source", threading.Event(), threading.Event()
    source.mkdir()
    failing = []

    def rebuild():
        rebuilt.set()
        if failing:
            raise ValueError("there is nothing to build from")

    arguments = ([source], source / "own.ngc", rebuild)
    thread = threading.Thread(target=watch, args=arguments, kwargs={"stop": stop, "quiet": 50})
    thread.start()
    yield source, rebuilt, failing
    stop.set()
    thread.join(LONG)
    assert not thread.is_alive()


def changed(source, rebuilt, name="a.py"):
    """Change a file until the watch, which may not have begun, has seen it."""
    for count in range(LONG * 5):
        (source / name).write_text(str(count))
        if rebuilt.wait(0.2):
            rebuilt.clear()
            return
    raise AssertionError("never rebuilt")


def test_a_change_rebuilds_and_an_error_does_not_end_the_watch(watching, caplog):
    source, rebuilt, failing = watching
    changed(source, rebuilt)
    failing.append(True)
    changed(source, rebuilt)
    failing.clear()
    changed(source, rebuilt)
    assert "nothing to build from" in caplog.text


def test_the_corpus_itself_starts_nothing(watching):
    source, rebuilt, _ = watching
    changed(source, rebuilt)
    rebuilt.wait(1)
    rebuilt.clear()
    (source / "own.ngc").write_text("x")
    (source / "own.ngc.tmp").write_text("x")
    assert not rebuilt.wait(1)


def test_a_replaced_corpus_is_opened_again(tmp_path, caplog):
    pytest.importorskip("pydivsufsort")
    path = tmp_path / "own.ngc"
    tokenizer = letters()

    def build(text):
        return Corpus.build([text], path, tokenizer=tokenizer)

    shelf = Shelf({"own": build("the first text")})
    first = shelf["own"]
    assert shelf["own"] is first
    build("another text, which is longer")
    assert len(shelf["own"]) == len("another text, which is longer")
    assert len(first) == len("the first text")
    path.with_suffix(".new").write_bytes(b"no corpus")
    os.replace(path.with_suffix(".new"), path)
    assert len(shelf["own"]) > len(first)
    assert "cannot be opened again" in caplog.text
    path.unlink()
    assert len(shelf["own"]) > len(first)
    assert list(shelf) == ["own"]
