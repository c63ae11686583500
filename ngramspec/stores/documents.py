"""Texts from files and folders, and what was left out of them and why."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from ngramspec.stores.regular_file import open_regular

IGNORED = ".gitignore"
MAX_FILE = 64  # MiB of a file
LOOKED_AT = 8192  # bytes, for a zero among them: as git tells binary files

Skipped = Callable[[Path, str], None]


def find_files(
    places: Iterable[Path], globs: Sequence[str] = (), skipped: Skipped = lambda path, why: None
) -> Iterator[Path]:
    """The files that are meant by files and folders, each folder's in order of name.

    In a folder, what its ``.gitignore`` files and those of the folders above it in its repository
    exclude is left out, and so are ``.git`` folders and symbolic links. A file that is named itself
    is taken as it is.

    Args:
        places: files and folders.
        globs: patterns; of a folder's files, one must match the name or the path in the folder.
        skipped: called with what was left out, and why.

    Raises:
        FileNotFoundError: a place is not there.
        ImportError: there is a .gitignore, and pathspec is not installed.
    """
    for place in places:
        if place.is_file():
            yield place
        elif place.is_dir():
            folder = Path(os.path.abspath(place))
            rules = [rule for each in _above(folder) for rule in _rules(each)]
            yield from _walk(folder, folder, rules, globs, skipped)
        else:
            raise FileNotFoundError(f"there is no regular file or folder {place}")


def read_texts(
    files: Iterable[Path],
    field: str | None = None,
    skipped: Skipped = lambda path, why: None,
    max_file: int = MAX_FILE,
) -> Iterator[str]:
    """The text of each file; files that hold none, and larger files, are left out.

    Of a file that is left out, at most its first 8 KiB are read, unless it is not UTF-8.

    Args:
        files: as ``find_files`` gives them.
        field: None: a file is one document. A name: every line is a JSON object, and its field of
            that name is a document.
        skipped: called with a file that was left out, and why.
        max_file: MiB of a file that is read, >= 1.

    Raises:
        ValueError: a line that is no such object; the message has its number.
    """
    for path in files:
        text = _read(path, skipped, max_file)
        if text is None:
            continue
        if field is None:
            yield text
        else:
            for number, line in enumerate(text.splitlines(), 1):
                if line.strip():
                    yield _field(line, field, f"{path}, line {number}")


def _read(path: Path, skipped: Skipped, max_file: int) -> str | None:
    try:
        content = _content(path, max_file)
    except OSError as error:
        skipped(path, error.strerror or "cannot be read")
        return None
    except ValueError as error:
        skipped(path, str(error))
        return None
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError:
        skipped(path, "not UTF-8")
        return None


def _content(path: Path, max_file: int) -> bytes:
    """A file's content.

    Raises:
        OSError: it cannot be read.
        ValueError: it is empty, binary or too large; the message says which.
    """
    most = max_file << 20
    with open_regular(path) as file:
        content = file.read(LOOKED_AT)
        if not content:
            raise ValueError("empty")
        if b"\0" in content:
            raise ValueError("binary")
        if os.fstat(file.fileno()).st_size <= most:
            content += file.read(most + 1 - len(content))  # the file may be growing
            if len(content) <= most:
                return content
        raise ValueError(f"larger than --max-file {max_file} MiB")


def _field(line: str, field: str, where: str) -> str:
    try:
        value = json.loads(line)
    except ValueError as error:
        raise ValueError(f"{where}: not JSON: {error}") from error
    text = value.get(field) if isinstance(value, dict) else None
    if not isinstance(text, str):
        raise ValueError(f"{where}: has no text {field!r}")
    return text


# A rule is a folder and what its .gitignore says; the deeper one, which comes later, decides.
Rule = tuple[Path, Any]


def _walk(
    folder: Path, top: Path, rules: Sequence[Rule], globs: Sequence[str], skipped: Skipped
) -> Iterator[Path]:
    rules = [*rules, *_rules(folder)]
    try:
        entries = sorted(os.scandir(folder), key=lambda each: each.name)
    except OSError as error:
        skipped(folder, error.strerror or "cannot be read")
        return
    for entry in entries:
        path = Path(entry.path)
        if entry.is_symlink():
            skipped(path, "symbolic link")
        elif entry.name == ".git":
            continue
        elif _excluded(path, entry.is_dir(), rules):
            skipped(path, IGNORED)
        elif entry.is_dir():
            yield from _walk(path, top, rules, globs, skipped)
        elif not entry.is_file():
            skipped(path, "no regular file")
        elif not globs or any(_matches(path, top, glob) for glob in globs):
            yield path


def _matches(path: Path, top: Path, glob: str) -> bool:
    return fnmatch(path.name, glob) or fnmatch(path.relative_to(top).as_posix(), glob)


def _above(folder: Path) -> list[Path]:
    """The folders above one in its repository, from the top; none outside of a repository."""
    folders: list[Path] = []
    here = folder
    while not (here / ".git").exists():
        if here.parent == here:
            return []
        here = here.parent
        folders.insert(0, here)
    return folders


def _rules(folder: Path) -> list[Rule]:
    files = [folder / ".git" / "info" / "exclude", folder / IGNORED]
    return [(folder, _spec(file)) for file in files if file.is_file()]


def _spec(file: Path) -> Any:
    try:
        from pathspec import GitIgnoreSpec
    except ImportError as error:
        raise ImportError(
            f"reading {file} needs pathspec: pip install 'ngramspec[corpus]'"
        ) from error
    return GitIgnoreSpec.from_lines(file.read_text(errors="replace").splitlines())


def _excluded(path: Path, folder: bool, rules: Sequence[Rule]) -> bool:
    for where, spec in reversed(rules):
        name = path.relative_to(where).as_posix() + ("/" if folder else "")
        included = spec.check_file(name).include
        if included is not None:
            return bool(included)  # of what is ignored
    return False
