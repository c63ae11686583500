"""Broken store files.

Mutations with wrong checksums and with right ones, truncations, sections of other sizes and with
other content, sparse files of many GiB, and what is not a regular file.
"""

from __future__ import annotations

import json
import os
import socket
import struct
import tracemalloc
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from ngramspec.stores.files import FileKind, FileSection, aligned, checksum

Use = Callable[[Path, np.random.Generator], str]


@contextmanager
def memory_below(most: int) -> Iterator[None]:
    """Python's memory is never higher by this many bytes meanwhile, whatever is raised."""
    tracemalloc.start()
    try:
        yield
    finally:
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < most, f"{peak} bytes"


def first_section(kind: FileKind) -> int:
    """Where the first section's numbers lie in the header."""
    return kind.layout.size - 24 * len(kind.sections)


def sections(content: bytes, kind: FileKind) -> list[FileSection]:
    numbers = struct.unpack_from("<" + "QQQ" * len(kind.sections), content, first_section(kind))
    return [FileSection(*numbers[3 * i : 3 * i + 3]) for i in range(len(kind.sections))]


def made_right(content: bytearray, kind: FileKind) -> bytes:
    """The content with all checksums as they should be, where the sections lie inside."""
    for i, section in enumerate(sections(bytes(content), kind)):
        part = bytes(content[section.offset : section.offset + section.size])
        struct.pack_into("<Q", content, first_section(kind) + 24 * i + 16, checksum(part))
    return sealed(content, kind)


def sealed(content: bytearray, kind: FileKind) -> bytes:
    """The content with the header's checksum as it should be."""
    end = kind.header_size
    content[end - 8 : end] = struct.pack("<Q", checksum(bytes(content[: end - 8])))
    return bytes(content)


def with_number(content: bytes, kind: FileKind, at: int, code: str, value: int) -> bytes:
    broken = bytearray(content)
    struct.pack_into("<" + code, broken, at, value)
    return sealed(broken, kind)


def mutated(content: bytes, kind: FileKind, rng: np.random.Generator) -> bytearray:
    """A few bytes, or a run of them, are others."""
    broken = bytearray(content)
    way = rng.integers(0, 4)
    where = rng.integers(0, kind.header_size if way == 0 else len(broken), rng.integers(1, 6))
    for at in where:
        if way == 3:  # a number becomes an extreme one
            at -= at % 4
            value = rng.choice([0, 1, 2**31 - 1, 2**31, 2**32 - 1])
            broken[at : at + 4] = struct.pack("<I", int(value))
        else:
            broken[at] = int(rng.integers(0, 256))
    return broken[: len(content)]


def laid_out(content: bytes, kind: FileKind, parts: Sequence[bytes]) -> bytes:
    """A file with the header's values of ``content`` and these sections, its checksums right."""
    broken = bytearray(content[: kind.header_size])
    for i, part in enumerate(parts):
        broken += bytes(aligned(len(broken)) - len(broken))
        struct.pack_into(
            "<QQQ", broken, first_section(kind) + 24 * i, len(broken), len(part), checksum(part)
        )
        broken += part
    return sealed(broken, kind)


def parts_of(content: bytes, kind: FileKind) -> list[bytes]:
    return [content[each.offset : each.offset + each.size] for each in sections(content, kind)]


def lines_of(values: Iterable[object]) -> bytes:
    """Lines of JSON, as a shared store's section of names has them."""
    return b"".join(json.dumps(each).encode() + b"\n" for each in values)


def resized(content: bytes, kind: FileKind, rng: np.random.Generator) -> bytes:
    """One or two sections have another size, or another content."""
    parts = parts_of(content, kind)
    for i in rng.integers(0, len(parts), rng.integers(1, 3)):
        size = int(rng.choice([0, 1, 4, 63, 64, 4096, 1 << 16, 1 << 20, 3 << 20]))
        parts[i] = [
            lambda part, size: part[: size % (len(part) + 1)],
            lambda part, size: part[: -size % 4096] * 3,
            lambda part, size: bytes(size),
            lambda part, size: b"\xff" * size,
            lambda part, size: struct.pack("<i", 2**31 - 1) * (size // 4),
            lambda part, size: rng.integers(0, 256, size, np.uint8).tobytes(),
            lambda part, size: bytes(parts[int(rng.integers(0, len(parts)))]),
            lambda part, size: hostile_names(size, rng),
        ][rng.integers(0, 8)](parts[i], size)
    return laid_out(content, kind, parts)


def hostile_names(size: int, rng: np.random.Generator) -> bytes:
    """Lines of JSON of about ``size`` bytes, which a shared store's section of names may hold."""
    count = size // 24 + 1
    entries = [
        lambda i: [str(i), 0, 0, 0, 0, 0],
        lambda i: ["", 0, 0, 0, 0, 0],
        lambda i: ["\U0001f600" * 256, i, 0, 0, 0, 0],
        lambda i: ["a" * 5000, 0, 0, 0, 0, 0],
        lambda i: [],
        lambda i: {"a": i},
        lambda i: [[str(i)], 2**62 - 1, 2**62, -1, 1.5, None],
    ]
    chosen = entries[rng.integers(0, len(entries))]
    text = lines_of(chosen(i) for i in range(min(count, 20_000)))
    if rng.integers(0, 4) == 0:
        text = b"[" * size
    return text[: int(rng.choice([len(text), size + 2]))]


def write_sparse(path: Path, content: bytes, kind: FileKind, rng: np.random.Generator) -> None:
    """A file of many GiB that takes no room: its sections are where the header says."""
    parts = parts_of(content, kind)
    header = bytearray(content[: kind.header_size])
    grown = int(rng.integers(0, len(parts)))
    end, where = len(header), []
    for i, part in enumerate(parts):
        begin = aligned(end)
        end = begin + (int(rng.integers(1 << 22, 1 << 36)) & ~63 if i == grown else len(part))
        struct.pack_into(
            "<QQQ", header, first_section(kind) + 24 * i, begin, end - begin, checksum(part)
        )
        where.append(begin)
    with open(path, "wb") as file:
        file.write(sealed(header, kind))
        for begin, part in zip(where, parts, strict=True):
            file.seek(begin)
            file.write(part)
        file.truncate(end)


SPECIAL: dict[str, Callable[[Path], object]] = {
    "FIFO": os.mkfifo,
    "directory": Path.mkdir,
    "socket": lambda path: socket.socket(socket.AF_UNIX).bind(os.fspath(path)),
    "link to a device": lambda path: path.symlink_to("/dev/zero"),
    "link to a directory": lambda path: path.symlink_to("/"),
    "link to itself": lambda path: path.symlink_to(path),
    "link to nothing": lambda path: path.symlink_to("nothing"),
}


def write_broken(path: Path, content: bytes, kind: FileKind, rng: np.random.Generator) -> None:
    way = rng.integers(0, 40)
    if way == 0:
        write_sparse(path, content, kind, rng)
    elif way < 10:
        path.write_bytes(resized(content, kind, rng))
    else:
        broken = mutated(content, kind, rng)
        if way < 18:
            broken = broken[: rng.integers(0, len(broken))]
        elif way < 25:
            broken = bytearray(sealed(broken, kind))
        elif way < 33:
            broken = bytearray(made_right(broken, kind))
        path.write_bytes(broken)


def attack(
    content: bytes, kind: FileKind, use: Use, path: Path, times: int, seed: int
) -> dict[str, int]:
    """Use so many broken files; how they ended. Each is made from its own seed."""
    ends: dict[str, int] = {}
    for number in range(seed, seed + times):
        rng = np.random.default_rng(number)
        write_broken(path, content, kind, rng)
        try:
            end = use(path, rng)
        except Exception as error:
            raise AssertionError(f"broken file of seed {number}: {error!r}") from error
        ends[end] = ends.get(end, 0) + 1
    return ends
