"""Opening regular files and no other kind."""

from __future__ import annotations

import errno
import os
import stat
from os import PathLike
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

    Opening a FIFO waits for a writer, and opening a device can have side effects. If the path is
    replaced after the check, ``O_NONBLOCK`` makes the call return at once, and the opened file is
    checked again. The flag has no effect on regular files.
    """
    check_regular(path, os.stat(path).st_mode)
    return open(path, "rb", opener=_open_at_once)


def _open_at_once(path: str, flags: int) -> int:
    descriptor = os.open(path, flags | os.O_NONBLOCK)
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
