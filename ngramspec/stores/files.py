"""Files of stores: a checked header and sections.

    header      fixed size, little-endian: kind, sizes, and the location of each section
    sections    in order, each at a multiple of 64 bytes and with its own checksum

The header's own checksum is its last eight bytes. Checksums are XXH3 with 64 bits. They detect
accidents, not attackers, because anyone who can write a file can also write matching checksums.
Content is therefore still checked before it is used.
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from ngramspec.files import replaced

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
class FileSection:
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
) -> tuple[tuple[Any, ...], list[FileSection]]:
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
    found = [FileSection(*numbers[3 * i : 3 * i + 3]) for i in range(count)]
    _check_sections(path, kind, found, file_size)
    return values[4 : -3 * count], found


def read_section(file: BinaryIO, section: FileSection) -> bytes:
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
    path: Path, kind: FileKind, sections: Sequence[FileSection], contents: Iterable[Content]
) -> None:
    """Compare the contents of the sections with their checksums."""
    for name, section, content in zip(kind.sections, sections, contents, strict=True):
        if checksum(content) != section.checksum:
            raise StoreFileError(f"{path}: section {name} is broken: its checksum is another")


def _write_section(file: BinaryIO, parts: Sequence[Any]) -> FileSection:
    offset, digest = aligned(file.tell()), _new_digest()
    file.seek(offset)
    file.truncate()  # an empty section at the end begins there, too
    for part in parts:
        view = memoryview(part).cast("B") if memoryview(part).nbytes else memoryview(b"")
        for begin in range(0, len(view), WRITE_CHUNK_BYTES):
            chunk = view[begin : begin + WRITE_CHUNK_BYTES]
            file.write(chunk)
            digest.update(chunk)
    return FileSection(offset, file.tell() - offset, int(digest.intdigest()))


def _check_sections(path: Path, kind: FileKind, sections: Sequence[FileSection], size: int) -> None:
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
