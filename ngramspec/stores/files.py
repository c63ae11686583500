"""Files of stores: a checked header and sections, in a regular file that is replaced atomically.

    header      fixed size, little-endian: kind, sizes, and the location of each section
    sections    in order, each at a multiple of 64 bytes and with its own checksum

The header's own checksum is its last eight bytes. Checksums are XXH3 with 64 bits. They detect
accidents, not attackers, because anyone who can write a file can also write matching checksums.
Content is therefore still checked before it is used.

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
import mmap
import os
import re
import secrets
import stat
import struct
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any, BinaryIO

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


BYTE_ORDER_MARK = 0x0A0B0C0D  # reads as a different number on a machine of the other byte order
ALIGNMENT_BYTES = 64
WRITE_CHUNK_BYTES = 1 << 24  # bytes per write
Content = bytes | memoryview | mmap.mmap
INSTALL = "pip install numpy xxhash"


class StoreFileError(ValueError):
    """A file that is not a store, or is broken; the message names the file and the fault."""


@dataclass(frozen=True, slots=True)
class FileKind:
    """A kind of file."""

    magic: bytes  # its first eight bytes
    name: str  # in messages
    version: int  # of the format
    fields: str  # struct codes of the header fields that are specific to this kind
    sections: tuple[str, ...]  # names, in order

    @property
    def layout(self) -> struct.Struct:
        """The header without its checksum."""
        return struct.Struct(f"<8sIII{self.fields}" + "QQQ" * len(self.sections))

    @property
    def header_size(self) -> int:
        """Bytes before the first section."""
        return aligned(self.layout.size + 8)


@dataclass(frozen=True, slots=True)
class Section:
    """A section's location: offset in the file and size, in bytes, and its checksum."""

    offset: int
    size: int
    checksum: int


def aligned(size: int) -> int:
    """``size`` rounded up to a multiple of 64."""
    return -(-size // ALIGNMENT_BYTES) * ALIGNMENT_BYTES


def write_file(
    path: Path, kind: FileKind, fields: Sequence[object], sections: Sequence[Sequence[Any]]
) -> None:
    """Write a file of ``kind``; ``sections`` holds the parts of each section, bytes-like."""
    with replaced(path) as file:
        file.seek(kind.header_size)
        written = [_write_section(file, parts) for parts in sections]
        numbers = [each for s in written for each in (s.offset, s.size, s.checksum)]
        header = kind.layout.pack(
            kind.magic, kind.version, BYTE_ORDER_MARK, kind.header_size, *fields, *numbers
        ).ljust(kind.header_size - 8, b"\0")
        file.seek(0)
        file.write(header + struct.pack("<Q", checksum(header)))


def read_header(
    path: Path, kind: FileKind, header: bytes, file_size: int
) -> tuple[tuple[Any, ...], list[Section]]:
    """Read the fields and sections from a file's header and check them against its size in bytes.

    ``header`` holds the first ``kind.header_size`` bytes, or all of a shorter file.
    """
    if header[:8] != kind.magic:
        raise StoreFileError(f"{path} is no {kind.name}: it begins with {header[:8]!r}")
    if len(header) < kind.header_size:
        raise StoreFileError(f"{path} ends in its header, after {file_size} bytes")
    version, order, size = struct.unpack_from("<III", header, 8)
    if order != BYTE_ORDER_MARK:
        raise StoreFileError(f"{path} was written on a machine of the other byte order")
    if version != kind.version:
        raise StoreFileError(
            f"{path} has format {version}, this is for format {kind.version}: build it again"
        )
    if size != kind.header_size or checksum(header[:-8]) != struct.unpack("<Q", header[-8:])[0]:
        raise StoreFileError(f"{path} has a broken header")
    values = kind.layout.unpack_from(header)
    count = len(kind.sections)
    numbers = values[-3 * count :]
    found = [Section(*numbers[3 * i : 3 * i + 3]) for i in range(count)]
    _check_sections(path, kind, found, file_size)
    return values[4 : -3 * count], found


def read_section(file: BinaryIO, section: Section) -> bytes:
    """A section's bytes."""
    file.seek(section.offset)
    content = file.read(section.size)
    if len(content) < section.size:
        raise StoreFileError(f"{file.name} was truncated while it was read")
    return content


def checksum(content: Content) -> int:
    """XXH3 of bytes, 64 bits."""
    return int(_new_digest(content).intdigest())


def _new_digest(content: Content = b"") -> Any:
    """An XXH3 digest of 64 bits; an ImportError says how to install xxhash."""
    try:
        from xxhash import xxh3_64
    except ImportError as error:
        raise ImportError(f"files of stores need xxhash: {INSTALL}") from error
    return xxh3_64(content)


def check_checksums(
    path: Path, kind: FileKind, sections: Sequence[Section], contents: Iterable[Content]
) -> None:
    """Compare the contents of the sections with their checksums."""
    for name, section, content in zip(kind.sections, sections, contents, strict=True):
        if checksum(content) != section.checksum:
            raise StoreFileError(f"{path}: section {name} is broken: its checksum is another")


def _write_section(file: BinaryIO, parts: Sequence[Any]) -> Section:
    offset, digest = aligned(file.tell()), _new_digest()
    file.seek(offset)
    file.truncate()  # an empty section at the end begins there, too
    for part in parts:
        view = memoryview(part).cast("B") if memoryview(part).nbytes else memoryview(b"")
        for begin in range(0, len(view), WRITE_CHUNK_BYTES):
            chunk = view[begin : begin + WRITE_CHUNK_BYTES]
            file.write(chunk)
            digest.update(chunk)
    return Section(offset, file.tell() - offset, int(digest.intdigest()))


def _check_sections(path: Path, kind: FileKind, sections: Sequence[Section], size: int) -> None:
    end = kind.header_size
    for name, section in zip(kind.sections, sections, strict=True):
        if section.offset != aligned(end) or section.size > size - section.offset:
            raise StoreFileError(
                f"{path}: section {name} of {section.size} bytes at {section.offset} does not fit"
                f" into {size} bytes after {end}"
            )
        end = section.offset + section.size
    if end != size:
        raise StoreFileError(f"{path} has {size} bytes, its sections end at {end}")
