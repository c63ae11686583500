"""Broken store files: mutations with wrong checksums and with right ones, truncations."""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np

from ngramspec.stores.file_format import FileKind, Section, checksum

Use = Callable[[Path, np.random.Generator], str]


def first_section(kind: FileKind) -> int:
    """Where the first section's numbers lie in the header."""
    return kind.layout.size - 24 * len(kind.sections)


def sections(content: bytes, kind: FileKind) -> list[Section]:
    """Where the header says that the sections lie."""
    numbers = struct.unpack_from("<" + "QQQ" * len(kind.sections), content, first_section(kind))
    return [Section(*numbers[3 * i : 3 * i + 3]) for i in range(len(kind.sections))]


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
    """The content with another number in the header."""
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


def attack(
    content: bytes, kind: FileKind, use: Use, path: Path, times: int, seed: int
) -> dict[str, int]:
    """Use so many broken files; how they ended."""
    rng = np.random.default_rng(seed)
    ends: dict[str, int] = {}
    for _ in range(times):
        broken = mutated(content, kind, rng)
        way = rng.integers(0, 4)
        if way == 0:
            broken = broken[: rng.integers(0, len(broken))]
        elif way == 1:
            broken = bytearray(sealed(broken, kind))
        elif way == 2:
            broken = bytearray(made_right(broken, kind))
        path.write_bytes(broken)
        end = use(path, rng)
        ends[end] = ends.get(end, 0) + 1
    return ends
