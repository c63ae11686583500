"""What the twins share: token input and context keys.

The twins compute what the native structures compute, without how those do it fast. Each has its
native sibling's name, public methods, arguments and results, and takes any sequence of ints for
tokens; arguments are not checked. They are the oracle of the tests and readable documentation;
nothing at run time uses them.
One thread at a time.
"""

from __future__ import annotations

import itertools
import operator
import struct
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import xxhash

Tokens = Sequence[int] | npt.NDArray[np.int32]
Context = tuple[int, ...]


def ints(tokens: Tokens | None) -> list[int]:
    """Tokens as a list of plain ints; None: no tokens."""
    return [] if tokens is None else [operator.index(token) for token in tokens]


def context_key(context: Context, salt: int) -> int:
    """A context's key: XXH64 of its little-endian uint32 tokens, seeded with the n-gram's order.

    Tokens and seed are XORed with the salt's eight bytes first, so that nobody without it can tell
    which contexts meet in a hash table.
    """
    data = struct.pack(f"<{len(context)}I", *context)
    pad = itertools.cycle(salt.to_bytes(8, "little"))
    salted = bytes(a ^ b for a, b in zip(data, pad, strict=False))
    return xxhash.xxh64_intdigest(salted, seed=(len(context) + 1) ^ salt)
