"""Files are replaced whole, and temporary files of writers that were killed are removed."""

from __future__ import annotations

import fcntl
import os
from argparse import Namespace
from pathlib import Path

import pytest
from hostile_files import SPECIAL

from ngramspec.cli.options import write_json
from ngramspec.costs.saved import SavedCosts
from ngramspec.files import remove_stale, replaced, write_text
from ngramspec.measure.traces import write_traces

TEMPORARY = ".s.ngs.0123abcd.new"


def names(folder):
    return sorted(each.name for each in folder.iterdir())


def write(path, content=b"content"):
    with replaced(path) as file:
        file.write(content)


OTHERS = (
    *(".s.ngs.0123abcd.new.py", ".sxngs.0123abcd.new", ".s.ngs.new", ".s.ngs.0123ABCD.new"),
    *("s.ngs.0123abcd.new", ".t.ngs.0123abcd.new"),
)


def test_other_names_are_kept(tmp_path):
    for name in OTHERS:
        (tmp_path / name).write_bytes(b"")
    write(tmp_path / "s.ngs")
    assert names(tmp_path) == sorted([*OTHERS, "s.ngs"])


def test_what_is_no_regular_file_is_kept(tmp_path):
    os.mkfifo(tmp_path / TEMPORARY)
    (tmp_path / ".s.ngs.00000000.new").mkdir()
    (tmp_path / "other").write_bytes(b"")
    (tmp_path / ".s.ngs.11111111.new").symlink_to(tmp_path / "other")
    remove_stale(tmp_path / "s.ngs")
    assert len(names(tmp_path)) == 4


def test_a_writer_in_this_process_keeps_its_file(tmp_path):
    path = tmp_path / "s.ngs"
    with replaced(path) as file:
        file.write(b"first")
        write(path, b"second")
        assert path.read_bytes() == b"second"
        assert len(names(tmp_path)) == 2
    assert path.read_bytes() == b"first"
    assert names(tmp_path) == ["s.ngs"]


def test_a_file_that_fails_leaves_the_old_one(tmp_path, monkeypatch):
    def full(*_):
        raise OSError("no space left")

    path = tmp_path / "s.ngs"
    with pytest.raises(TypeError, match="bytes-like"):
        write(path, "text")
    assert names(tmp_path) == []
    write(path)
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="no space left"):
        write(path, b"other")
    assert path.read_bytes() == b"content"
    assert names(tmp_path) == ["s.ngs"]


@pytest.mark.parametrize("moment", ["before", "after"])
def test_a_file_that_is_removed_before_it_is_locked_is_written_again(tmp_path, monkeypatch, moment):
    """Another writer may come between the creation of a temporary file and its lock."""
    path, lock, calls = tmp_path / "s.ngs", fcntl.flock, []

    def flock(file, operation):
        calls.append(operation)
        if len(calls) == 1 and moment == "before":
            remove_stale(path)
            assert names(tmp_path) == []
        if len(calls) == 1 and moment == "after":  # while the other one holds the lock
            raise BlockingIOError
        lock(file, operation)

    monkeypatch.setattr(fcntl, "flock", flock)
    write(path)
    assert path.read_bytes() == b"content"
    monkeypatch.undo()
    write(path)
    assert names(tmp_path) == ["s.ngs"]


def test_where_files_cannot_be_locked_nothing_is_removed(tmp_path, monkeypatch):
    def flock(file, operation):
        raise OSError("no locks available")

    monkeypatch.setattr(fcntl, "flock", flock)
    (tmp_path / TEMPORARY).write_bytes(b"half")
    write(tmp_path / "s.ngs")
    assert names(tmp_path) == [TEMPORARY, "s.ngs"]


def test_the_file_is_locked_until_it_is_renamed(tmp_path, monkeypatch):
    path, replace = tmp_path / "s.ngs", Path.replace

    def renamed(temporary, to):
        remove_stale(path)
        return replace(temporary, to)

    monkeypatch.setattr(Path, "replace", renamed)
    write(path)
    assert names(tmp_path) == ["s.ngs"]


@pytest.mark.parametrize("kind", ["FIFO", "socket", "directory", "link to a device"])
def test_what_is_no_regular_file_is_not_replaced(tmp_path, kind):
    """A user who may write to /dev must not replace /dev/null by saving to it."""
    path = tmp_path / "special"
    SPECIAL[kind](path)
    before = os.lstat(path)
    with pytest.raises(OSError, match="not a regular file but a"):
        write(path)
    assert os.path.samestat(before, os.lstat(path))
    assert names(tmp_path) == ["special"]


WRITERS = {
    "text": lambda path: write_text(path, "new"),
    "costs": lambda path: SavedCosts({}, {}).write(path),
    "traces": lambda path: write_traces(path, []),
    "json": lambda path: write_json(Namespace(json=path, command_line=""), {}),
}


@pytest.mark.parametrize("writer", WRITERS.values(), ids=WRITERS)
def test_a_file_is_replaced_and_what_a_link_or_a_fifo_leads_to_is_written(
    writer, tmp_path, monkeypatch
):
    path, link = tmp_path / "old", tmp_path / "link"
    path.write_bytes(b"old")
    link.symlink_to(path)
    before = path.stat()
    writer(link)
    assert link.is_symlink()
    content = path.read_bytes()
    assert content != b"old"
    assert os.path.samestat(before, path.stat())
    writer(path)
    assert path.read_bytes() == content
    assert not os.path.samestat(before, path.stat())
    monkeypatch.setattr(os, "fsync", lambda _: 1 // 0)
    path.write_bytes(b"old")
    with pytest.raises(ZeroDivisionError):
        writer(path)
    assert path.read_bytes() == b"old"
    assert names(tmp_path) == ["link", "old"]
    writer(Path(os.devnull))
    assert Path(os.devnull).is_char_device()
