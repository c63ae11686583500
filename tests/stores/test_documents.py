"""Files and folders become documents; what is left out is said."""

from __future__ import annotations

import os
import subprocess
import sys
from functools import partial

import pytest
from hostile_files import memory_below

from ngramspec.stores import documents
from ngramspec.stores.documents import BINARY_CHECK_BYTES, MAX_IGNORE_BYTES, find_files, read_texts

pytest.importorskip("pathspec")
TREE = {
    **{"a.py": "a", "b.txt": "b", "build/c.py": "c", "deep/build/d.py": "d", "secret.py": "i"},
    **{"deep/keep.log": "e", "deep/other.log": "f", "deep/er/g.py": "g", ".git/config": "h"},
    **{".git/info/exclude": "secret.py\n", ".gitignore": "*.log\n/build/\n"},
    "deep/.gitignore": "!keep.log\n/er/*.py\n",
}
DEEP = ["deep/.gitignore", "deep/build/d.py", "deep/keep.log"]  # of it, not ignored


@pytest.fixture
def tree(tmp_path):
    for name, text in TREE.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return tmp_path


def found(tree, places=None, globs=()):
    left_out = {}
    files = find_files(
        places or [tree],
        globs,
        lambda path, why: left_out.update({path.relative_to(tree).as_posix(): why}),
    )
    return [path.relative_to(tree).as_posix() for path in files], left_out


def test_gitignore_is_respected(tree):
    files, left_out = found(tree)
    assert files == [".gitignore", "a.py", "b.txt", *DEEP]
    assert left_out == dict.fromkeys(
        ["build", "deep/er/g.py", "deep/other.log", "secret.py"], ".gitignore"
    )


def test_a_folder_inside_a_repository_has_the_rules_above(tree):
    assert found(tree, [tree / "deep"])[0] == DEEP


def test_globs_match_names_and_paths(tree):
    assert found(tree, globs=["*.py"])[0] == ["a.py", "deep/build/d.py"]
    assert found(tree, globs=["deep/*"])[0] == DEEP


def test_a_file_that_is_named_is_taken(tree):
    assert found(tree, [tree / "deep/other.log"])[0] == ["deep/other.log"]
    with pytest.raises(FileNotFoundError, match="there is no regular file or folder .*nothing"):
        found(tree, [tree / "nothing"])


def test_symbolic_links_are_not_followed(tmp_path):
    (tmp_path / "a").write_text("a")
    (tmp_path / "circle").symlink_to(tmp_path)
    (tmp_path / "link").symlink_to(tmp_path / "a")
    assert found(tmp_path) == (["a"], {"circle": "symbolic link", "link": "symbolic link"})


def test_what_is_no_text_is_left_out(tmp_path):
    contents = {"a": b"text\n", "b": b"x\0y", "c": b"caf\xe9", "d": b"", "e": b"\xef\xbb\xbfx"}
    for name, content in contents.items():
        (tmp_path / name).write_bytes(content)
    left_out = []
    files = [*sorted(tmp_path.iterdir()), tmp_path / "gone"]
    assert list(read_texts(files, skipped=left_out_in(left_out))) == ["text\n", "x"]
    assert left_out[:-1] == [("b", "binary"), ("c", "not UTF-8"), ("d", "empty")]
    assert left_out[-1][0] == "gone"


def left_out_in(found):
    return lambda path, why: found.append((path.name, why))


def test_of_files_that_are_left_out_no_more_than_8_kib_are_read(tmp_path):
    """Sparse files of 256 MiB: one looks like weights, one like text."""
    for name, begin in (("weights", b"GGUF\0"), ("text", b"x" * BINARY_CHECK_BYTES)):
        with open(tmp_path / name, "wb") as file:
            file.write(begin)
            file.truncate(256 << 20)
    left_out = []
    paths = [tmp_path / "weights", tmp_path / "text"]
    with memory_below(1 << 20):
        assert list(read_texts(paths, None, left_out_in(left_out))) == []
    assert left_out == [("weights", "binary"), ("text", "larger than --max-file 64 MiB")]


def test_a_file_that_grows_while_it_is_read_is_left_out(tmp_path, monkeypatch):
    path, left_out = tmp_path / "growing", []
    path.write_bytes(b"x" * (1 << 20))
    assert [*map(len, read_texts([path], None, left_out_in(left_out), 1))] == [1 << 20]
    path.write_bytes(b"x" * ((1 << 20) + 1))
    size_before = os.stat(__file__)
    monkeypatch.setattr(documents, "open_regular", partial(open, mode="rb"))
    monkeypatch.setattr(documents.os, "fstat", lambda descriptor: size_before)
    assert list(read_texts([path], None, left_out_in(left_out), 1)) == []
    assert left_out == [("growing", "larger than --max-file 1 MiB")]


def test_a_fifo_is_left_out(tmp_path):
    os.mkfifo(tmp_path / "fifo")
    left_out = []
    assert list(read_texts([tmp_path / "fifo"], None, left_out_in(left_out))) == []
    assert left_out == [("fifo", "not a regular file but a FIFO")]
    with pytest.raises(FileNotFoundError, match="there is no regular file or folder"):
        list(find_files([tmp_path / "fifo"]))


def test_json_lines(tmp_path):
    path = tmp_path / "lines.jsonl"
    path.write_text('{"text": "one", "id": 1}\n\n{"text": "two"}\n')
    assert list(read_texts([path], "text")) == ["one", "two"]
    path.write_text('{"text": "a\u2028b"}\r\n{"text": "c"}\n', newline="")
    assert list(read_texts([path], "text")) == ["a\u2028b", "c"]
    for line, says in (
        ("{", "not JSON"),
        ("[1]", "has no text 'text'"),
        ('{"text": 1}', "no text"),
        ('{"text": ' + "[" * 100_000, ""),
    ):
        path.write_text('{"text": "one"}\n' + line)
        with pytest.raises(ValueError, match=f"line 2: .*{says}"):
            list(read_texts([path], "text"))


def test_without_pathspec_the_error_says_how_to_get_it(tree, monkeypatch):
    monkeypatch.setitem(sys.modules, "pathspec", None)
    with pytest.raises(ImportError, match=r"gitignore needs pathspec: .*\[corpus\]|exclude needs"):
        found(tree)


def test_folders_may_be_nested_deeply(tmp_path):
    folder = tmp_path
    here = os.open(tmp_path, os.O_RDONLY)
    for _ in range(1500):  # more than calls may be nested, and a longer path than a call takes
        os.mkdir("d", dir_fd=here)
        inner = os.open("d", os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = inner
    os.close(here)
    folder.joinpath("a.txt").write_text("text")
    skipped = []
    try:
        found = list(find_files([tmp_path], skipped=lambda path, why: skipped.append(why)))
    finally:  # pytest's own removal is recursive
        subprocess.run(["rm", "-rf", str(tmp_path / "d")], check=True)
    assert [each.name for each in found] == ["a.txt"]
    assert set(skipped) <= {"File name too long"}


def test_a_file_of_patterns_has_a_limit(tmp_path):
    with (tmp_path / ".gitignore").open("wb") as file:
        file.truncate(MAX_IGNORE_BYTES + 1)
    with pytest.raises(ValueError, match=r"\.gitignore must have at most 1048576 bytes"):
        list(find_files([tmp_path]))
