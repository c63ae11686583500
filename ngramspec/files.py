"""Regular files, and files that are replaced atomically.

The new content is written to a temporary file ``.NAME.xxxxxxxx.new`` in the same folder, which is
renamed to NAME at the end. The writer holds an exclusive ``flock`` on the temporary file until it
is renamed or removed. The kernel releases the lock when the writer's process ends for any reason. A
temporary file that can be locked therefore belongs to no writer, and the next writer of NAME
removes it.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import re
import secrets
import stat
from collections.abc import Iterator
from contextlib import AbstractContextManager
from os import PathLike
from pathlib import Path
from typing import BinaryIO

KINDS = {
    stat.S_IFDIR: "a directory",
    stat.S_IFIFO: "a FIFO",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a character device",
    stat.S_IFBLK: "a block device",
}


def open_regular(path: str | PathLike[str]) -> BinaryIO:
    """Open a regular file, or a symbolic link to one; others are refused before they are opened.

    Opening a FIFO waits for a writer, and opening a device can have side effects.
    """
    check_regular(path, os.stat(path).st_mode)
    return open(path, "rb", opener=_open_at_once)


def _open_at_once(path: str, flags: int) -> int:
    descriptor = os.open(path, flags | os.O_NONBLOCK)  # it may be a FIFO since
    try:
        check_regular(path, os.fstat(descriptor).st_mode)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def check_regular(path: str | PathLike[str], mode: int) -> None:
    """Raise an OSError if the mode is not that of a regular file."""
    if not stat.S_ISREG(mode):
        kind = KINDS.get(stat.S_IFMT(mode), "of an unknown type")
        raise OSError(errno.EINVAL, f"not a regular file but {kind}", str(path))


@contextlib.contextmanager
def replaced(path: Path) -> Iterator[BinaryIO]:
    """A new file that replaces ``path`` if the block succeeds, and is removed if it raises."""
    with contextlib.suppress(FileNotFoundError):  # renaming would replace a device or a FIFO
        check_regular(path, os.stat(path).st_mode)
    remove_stale(path)
    temporary, file = _create(path)
    with file:
        try:
            yield file
            file.flush()
            os.fsync(file.fileno())
            temporary.replace(path)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
    _sync_folder(path.parent)


def written(path: Path) -> AbstractContextManager[BinaryIO]:
    """Like ``replaced``; a link, a device or a FIFO is written to in place."""
    if path.is_symlink() or (path.exists() and not path.is_file()):
        return open(path, "wb")
    return replaced(path)


def write_text(path: Path, text: str) -> None:
    """Write a whole file as ``written``, in UTF-8."""
    with written(path) as file:
        file.write(text.encode())


def remove_stale(path: Path) -> None:
    """Remove the temporary files of ``path`` that can be locked: they belong to no writer."""
    name = re.compile(rf"\.{re.escape(path.name)}\.[0-9a-f]{{8}}\.new")
    with contextlib.suppress(OSError):
        for entry in list(os.scandir(path.parent)):
            if name.fullmatch(entry.name) and entry.is_file(follow_symlinks=False):
                with contextlib.suppress(OSError):
                    _remove_unlocked(Path(entry.path))


def _remove_unlocked(temporary: Path) -> None:
    """Remove a temporary file under its lock; an OSError if it is locked, or cannot be removed."""
    # NFS grants exclusive locks only on files that are open for writing.
    descriptor = os.open(temporary, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if _is_file_at(descriptor, temporary):
            temporary.unlink()
    finally:
        os.close(descriptor)


def _create(path: Path) -> tuple[Path, BinaryIO]:
    """A new temporary file of ``path``, locked if the file system has ``flock``."""
    while True:
        temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}.new")
        file = open(temporary, "xb")  # noqa: SIM115 - the caller closes it
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:  # another process is removing it
            file.close()
            continue
        except OSError:  # without flock, no other process can lock and remove it either
            return temporary, file
        if _is_file_at(file.fileno(), temporary):
            return temporary, file
        file.close()


def _is_file_at(descriptor: int, path: Path) -> bool:
    """Whether an open regular file is the one at a path."""
    opened = os.fstat(descriptor)
    try:
        found = os.lstat(path)
    except FileNotFoundError:
        return False
    return stat.S_ISREG(opened.st_mode) and os.path.samestat(opened, found)


def _sync_folder(folder: Path) -> None:
    """Make a rename durable, where folders can be opened."""
    with contextlib.suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
