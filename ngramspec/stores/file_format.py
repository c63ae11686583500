"""Files of sections behind a checked header, written whole or not at all.

    header      fixed size, little-endian: what it is, sizes, and where each section lies
    sections    each at a multiple of 64 bytes, in order, with a checksum of its own

The header's own checksum is its last eight bytes. Checksums are XXH3 with 64 bits: they find
accidents, not attackers; who can write a file can make its checksums right. So nothing that is read
later is trusted for its checksum.
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from ngramspec.stores.regular_file import open_regular
from ngramspec.stores.replaced_file import replaced

ORDER = 0x0A0B0C0D  # reads as another number on a machine of the other byte order
ALIGNED = 64
WRITTEN = 1 << 24  # bytes at a time
READ = 1 << 20
Content = bytes | memoryview | mmap.mmap
INSTALL = "pip install numpy xxhash"


class StoreFileError(ValueError):
    """A file that is no store, or a broken one; the message names it and says what is wrong."""


@dataclass(frozen=True, slots=True)
class FileKind:
    """What a file says it is.

    Attributes:
        magic: its first eight bytes.
        name: what it is called in messages.
        version: of the format.
        fields: struct codes of the numbers and bytes in the header, of one kind of file.
        sections: their names, in order.
    """

    magic: bytes
    name: str
    version: int
    fields: str
    sections: tuple[str, ...]

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
    """Where a section lies: bytes from the file's start, its size in bytes, its checksum."""

    offset: int
    size: int
    checksum: int


def aligned(size: int) -> int:
    """The next multiple of 64."""
    return -(-size // ALIGNED) * ALIGNED


def write_file(
    path: Path, kind: FileKind, fields: Sequence[object], sections: Sequence[Sequence[Any]]
) -> None:
    """Write a file of ``kind`` beside ``path`` and rename it into place.

    A crash at any moment leaves the old file or the new one. Who has mapped the old one keeps it.

    Args:
        path: the file.
        kind: of file.
        fields: the header's own values.
        sections: the parts of each section, bytes-like.

    Raises:
        OSError: it cannot be written; nothing is left behind.
    """
    with replaced(path) as file:
        file.seek(kind.header_size)
        written = [_write_section(file, parts) for parts in sections]
        numbers = [each for s in written for each in (s.offset, s.size, s.checksum)]
        header = kind.layout.pack(
            kind.magic, kind.version, ORDER, kind.header_size, *fields, *numbers
        ).ljust(kind.header_size - 8, b"\0")
        file.seek(0)
        file.write(header + struct.pack("<Q", checksum(header)))


def read_header(
    path: Path, kind: FileKind, header: bytes, file_size: int
) -> tuple[tuple[Any, ...], list[Section]]:
    """The header's own values and the sections of a file, checked against each other.

    Args:
        path: of the file, for messages.
        kind: of file.
        header: its first ``kind.header_size`` bytes, or all of a shorter file.
        file_size: in bytes.

    Raises:
        StoreFileError: the file is none of this kind, or its header is broken.
        ImportError: xxhash is not installed.
    """
    if header[:8] != kind.magic:
        raise StoreFileError(f"{path} is no {kind.name}: it begins with {header[:8]!r}")
    if len(header) < kind.header_size:
        raise StoreFileError(f"{path} ends in its header, after {file_size} bytes")
    version, order, size = struct.unpack_from("<III", header, 8)
    if order != ORDER:
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


def map_file(path: Path) -> mmap.mmap:
    """A file's content, mapped for reading: pages are shared between all that map it.

    Raises:
        OSError: it cannot be read, or is not a regular file.
        StoreFileError: it cannot be mapped, for example because it is empty.
    """
    with open_regular(path) as file:
        try:
            return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except ValueError as error:
            raise StoreFileError(f"{path} cannot be mapped: {error}") from error


def chunks_of(path: Path, file: BinaryIO, section: Section) -> Iterator[bytes]:
    """A section's bytes, read in pieces of ``READ`` bytes.

    Raises:
        StoreFileError: the file ends in the section, because it was truncated while it was read.
    """
    for begin in range(0, section.size, READ):
        file.seek(section.offset + begin)
        wanted = min(READ, section.size - begin)
        chunk = file.read(wanted)
        if len(chunk) < wanted:
            raise StoreFileError(f"{path} was truncated while it was read")
        yield chunk


def checksum(content: Content) -> int:
    """XXH3 of bytes, 64 bits."""
    return _checksum_of([content])


def _checksum_of(parts: Iterable[Content]) -> int:
    """XXH3 of the parts one after the other, 64 bits."""
    digest = _new_digest()
    for part in parts:
        digest.update(part)
    return int(digest.intdigest())


def _new_digest() -> Any:
    """An XXH3 digest of 64 bits, of nothing yet.

    Raises:
        ImportError: xxhash is not installed; the message says how to install it.
    """
    try:
        from xxhash import xxh3_64
    except ImportError as error:
        raise ImportError(f"files of stores need xxhash: {INSTALL}") from error
    return xxh3_64()


def check_checksums(
    path: Path,
    kind: FileKind,
    sections: Sequence[Section],
    read: Callable[[Section], Iterable[Content]],
) -> None:
    """Raise a StoreFileError that names the first section with other bytes than were written.

    Args:
        path: of the file, for messages.
        kind: of file.
        sections: as the header has them.
        read: gives a section's bytes, in pieces.
    """
    for name, section in zip(kind.sections, sections, strict=True):
        if _checksum_of(read(section)) != section.checksum:
            raise StoreFileError(f"{path}: section {name} is broken: its checksum is another")


def _write_section(file: BinaryIO, parts: Sequence[Any]) -> Section:
    file.seek(aligned(file.tell()))
    offset, size, digest = file.tell(), 0, _new_digest()
    for part in parts:
        view = memoryview(part).cast("B") if memoryview(part).nbytes else memoryview(b"")
        for begin in range(0, len(view), WRITTEN):
            file.write(view[begin : begin + WRITTEN])
            digest.update(view[begin : begin + WRITTEN])
        size += len(view)
    return Section(offset, size, int(digest.intdigest()))


def _check_sections(path: Path, kind: FileKind, sections: Sequence[Section], size: int) -> None:
    end = kind.header_size
    for name, section in zip(kind.sections, sections, strict=True):
        if section.offset != aligned(end) or section.size > size - section.offset:
            raise StoreFileError(
                f"{path}: section {name} of {section.size} bytes at {section.offset} does not fit"
                f" into {size} bytes behind {end}"
            )
        end = section.offset + section.size
    if end != size:
        raise StoreFileError(f"{path} has {size} bytes, its sections end at {end}")
