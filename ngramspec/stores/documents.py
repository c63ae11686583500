"""Texts from files and folders, with reports of what was left out and why."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from ngramspec.files import open_regular

IGNORED = ".gitignore"
MAX_IGNORE_BYTES = 1 << 20  # of a file of patterns
MAX_FILE_MIB = 64  # default limit of a file's size, in MiB
BINARY_CHECK_BYTES = 8192  # first bytes searched for a zero, which marks binary files, as git does

Skipped = Callable[[Path, str], None]


def find_files(
    places: Iterable[Path], globs: Sequence[str] = (), skipped: Skipped = lambda path, why: None
) -> Iterator[Path]:
    """Find the files in the given files and folders, each folder's in order of name.

    In folders, ``.git`` folders, symbolic links and the files excluded by the repository's
    ``.gitignore`` files are left out. If there are ``globs``, at least one must match the name of a
    file in a folder, or its relative path. ``skipped`` is called with each path that was left out
    and the reason.
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
    max_file: int = MAX_FILE_MIB,
) -> Iterator[str]:
    """The text of each file. Files without text and files over ``max_file`` MiB are left out.

    With ``field``, every line of a file is a JSON object, whose field of that name is a document.
    """
    for path in files:
        try:
            text = _content(path, max_file).decode("utf-8-sig")
        except OSError as error:
            skipped(path, error.strerror or "cannot be read")
        except UnicodeDecodeError:
            skipped(path, "not UTF-8")
        except ValueError as error:
            skipped(path, str(error))
        else:
            yield from [text] if field is None else _fields(path, text, field)


def _content(path: Path, max_file: int) -> bytes:
    """A file's content; a ValueError says if it is empty, binary or too large."""
    max_bytes = max_file << 20
    with open_regular(path) as file:
        content = file.read(BINARY_CHECK_BYTES)
        if not content:
            raise ValueError("empty")
        if b"\0" in content:
            raise ValueError("binary")
        if os.fstat(file.fileno()).st_size <= max_bytes:
            content += file.read(max_bytes + 1 - len(content))  # the file may be growing
            if len(content) <= max_bytes:
                return content
        raise ValueError(f"larger than --max-file {max_file} MiB")


def _fields(path: Path, lines: str, field: str) -> Iterator[str]:
    """The text in a field of the JSON object in each line."""
    for number, line in enumerate(lines.split("\n"), 1):  # JSON strings may hold U+2028
        if not line.strip():
            continue
        where = f"{path}, line {number}"
        try:
            value = json.loads(line)
        except ValueError as error:
            raise ValueError(f"{where}: not JSON: {error}") from error
        except RecursionError as error:
            raise ValueError(f"{where}: nested too deeply") from error
        text = value.get(field) if isinstance(value, dict) else None
        if not isinstance(text, str):
            raise ValueError(f"{where}: has no text {field!r}")
        yield text


# A folder and its .gitignore patterns; rules of deeper folders come later and take precedence.
IgnoreRule = tuple[Path, Any]


def _walk(
    folder: Path, top: Path, rules: Sequence[IgnoreRule], globs: Sequence[str], skipped: Skipped
) -> Iterator[Path]:
    folders = [_listed(folder, rules, skipped)]  # from the top to the one that is being read
    while folders:
        entries, rules = folders[-1]
        entry = next(entries, None)
        if entry is None:
            folders.pop()
            continue
        path = Path(entry.path)
        if entry.is_symlink():
            skipped(path, "symbolic link")
        elif entry.name == ".git":
            continue
        elif _excluded(path, entry.is_dir(), rules):
            skipped(path, IGNORED)
        elif entry.is_dir():
            folders.append(_listed(path, rules, skipped))
        elif not entry.is_file():
            skipped(path, "no regular file")
        elif not globs or _matches(path, top, globs):
            yield path


def _listed(
    folder: Path, rules: Sequence[IgnoreRule], skipped: Skipped
) -> tuple[Iterator[os.DirEntry[str]], Sequence[IgnoreRule]]:
    """A folder's entries by name, and the rules that hold for them."""
    try:
        entries = sorted(os.scandir(folder), key=lambda each: each.name)
    except OSError as error:
        skipped(folder, error.strerror or "cannot be read")
        return iter(()), rules
    return iter(entries), [*rules, *_rules(folder)]


def _matches(path: Path, top: Path, globs: Sequence[str]) -> bool:
    names = path.name, path.relative_to(top).as_posix()
    return any(fnmatch(name, glob) for glob in globs for name in names)


def _above(folder: Path) -> list[Path]:
    """The folders above one in its repository, from the top; none outside a repository."""
    for depth, here in enumerate((folder, *folder.parents)):
        if (here / ".git").exists():
            return list(reversed(folder.parents[:depth]))
    return []


def _rules(folder: Path) -> list[IgnoreRule]:
    files = [folder / ".git" / "info" / "exclude", folder / IGNORED]
    return [(folder, _spec(file)) for file in files if file.is_file()]


def _spec(file: Path) -> Any:
    try:
        from pathspec import GitIgnoreSpec
    except ImportError as error:
        raise ImportError(f"reading {file} needs pathspec: pip install pathspec") from error
    with open_regular(file) as opened:
        content = opened.read(MAX_IGNORE_BYTES + 1)
    if len(content) > MAX_IGNORE_BYTES:
        raise ValueError(f"{file} must have at most {MAX_IGNORE_BYTES} bytes")
    try:
        return GitIgnoreSpec.from_lines(content.decode(errors="replace").splitlines())
    except ValueError as error:
        raise ValueError(f"{file}: {error}") from error


def _excluded(path: Path, folder: bool, rules: Sequence[IgnoreRule]) -> bool:
    for where, spec in reversed(rules):
        name = path.relative_to(where).as_posix() + ("/" if folder else "")
        included = spec.check_file(name).include
        if included is not None:
            return bool(included)  # True: included among the ignored files
    return False
