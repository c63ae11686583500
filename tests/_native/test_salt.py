"""Texts crafted against the hash tables: harmless under a salt that their author does not know.

Probes and bytes are counted, never seconds. The floods are crafted for salt 0.
"""

from __future__ import annotations

import random
import subprocess
import sys
from collections.abc import Iterable
from functools import cache
from itertools import chain, count, islice

import numpy as np
import pytest
import xxhash
from native_strategies import int32, salted

from ngramspec._native import common
from ngramspec._native.copyindex import CopyIndex
from ngramspec._native.ngram import NGramTable
from ngramspec._native.value import Calibration, ValueEngine
from tests import twins as reference

FLOOD = 400  # things that meet
SALTS = [*(random.Random(each).getrandbits(64) for each in range(4)), common.salt()]

WORD = 2**64
P1, P2, P3 = 0x9E3779B185EBCA87, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9
P4, P5 = 0x85EBCA77C2B2AE63, 0x27D4EB2F165667C5


def rotated(x: int, left: int) -> int:
    left %= 64
    return (x << left | x >> (64 - left)) % WORD


def unshifted(x: int, shift: int) -> int:
    """Undo x ^= x >> shift."""
    y = x
    for _ in range(64 // shift):
        y = x ^ y >> shift
    return y


def over(x: int, factor: int) -> int:
    return x * pow(factor, -1, WORD) % WORD


def tokens_of(lane: int) -> list[int] | None:
    """The two tokens of a lane, if they are ids."""
    tokens = [lane % 2**32, lane >> 32]
    return tokens if max(tokens) < 2**31 else None


def round_of(lane: int) -> int:
    return rotated(lane * P2 % WORD, 31) * P1 % WORD


def lane_of(round: int) -> int:
    return over(rotated(over(round, P1), -31), P2)


def context_of(key: int, seed: int) -> list[int] | None:
    """The two tokens whose unsalted key is ``key``, if they are ids: XXH64 backwards."""
    h = over(unshifted(key, 32), P3)
    h = unshifted(over(unshifted(h, 29), P2), 33)
    h = rotated(over((h - P4) % WORD, P1), -27)
    return tokens_of(lane_of(h ^ (seed + P5 + 8) % WORD))


@cache
def contexts(first: int, last: int, n: int = FLOOD) -> list[list[int]]:
    """Contexts of two tokens whose unsalted keys begin and end with so many zeros, in bits."""
    rng = random.Random(0)
    found: list[list[int]] = []
    while len(found) < n:
        context = context_of(rng.getrandbits(64 - first - last) << last, 3)
        if context is not None:
            found.append(context)
    return found


@cache
def tokens(base: int = 0) -> list[int]:
    """Tokens that, XORed with ``base``, go to the same four of 4096 places."""

    def place(x: int) -> int:
        x = x * P2 % WORD
        x = (x ^ x >> 29) * P3 % WORD
        return (x ^ x >> 32) % 4096

    return list(islice((token for token in count() if place(base ^ token) < 4), FLOOD))


def extended(structure, text: Iterable[int]):
    structure.extend(int32(list(text)))
    return structure


def crafted_contexts():
    """Contexts that begin in one slot; each is followed by a 7."""
    return extended(NGramTable(3), chain(*([*context, 7] for context in contexts(0, 24))))


def crafted_continuations():
    """Continuations of one context that begin in one place of the ranks' index."""
    hub = reference.context_key((7,), 0)
    return extended(NGramTable(2), chain(*([7, token] for token in tokens(hub))))


def crafted_edges():
    """Distinct tokens: each adds an edge to the root, source 0."""
    return extended(CopyIndex(), tokens())


def crafted_slots():
    """Contexts that begin in one slot of the value engine's table."""
    return extended(ValueEngine(Calibration()), chain(*([*each, 7] for each in contexts(0, 24))))


@pytest.mark.parametrize(
    "flood", [crafted_contexts, crafted_continuations, crafted_edges, crafted_slots]
)
def test_a_flood_meets_only_under_the_salt_it_was_crafted_for(flood):
    with salted(0):
        known = flood()
    assert known.check_integrity() > 300  # slots inspected to find one thing
    for salt in SALTS:
        with salted(salt):
            unknown = flood()
        assert unknown.check_integrity() <= 100  # by chance more in less than one run in a million


# Contexts with one key.


def one_key() -> tuple[list[int], list[int]]:
    """Two contexts of four tokens with one XXH64, whatever its seed.

    The first lanes' rounds differ in the bit that the next multiplication makes the highest, and
    only it; so do the second lanes', which takes it back.
    """

    def lanes(bit: int) -> tuple[list[int], list[int]]:
        rng = random.Random(bit)
        while True:
            lane = rng.getrandbits(63)
            both = tokens_of(lane), tokens_of(lane_of(round_of(lane) ^ 1 << bit))
            if both[0] is not None and both[1] is not None:
                return both[0], both[1]

    first, second = lanes(63 - 27), lanes(63)
    return first[0] + second[0], first[1] + second[1]


def test_contexts_that_share_a_key_under_every_seed_do_not_under_a_salt():
    one, other = one_key()
    for seed in (5, 77):
        assert len({xxhash.xxh64_intdigest(int32(each), seed) for each in (one, other)}) == 1
    for salt, met in [(0, True), *((salt, False) for salt in SALTS)]:
        with salted(salt):
            table = NGramTable(5)
        table.extend(int32([*one, 8, 9, 10, 11, *other, 12]))
        assert table.total(int32(one)) == (2 if met else 1)
        assert (reference.context_key(one, salt) == reference.context_key(other, salt)) is met


# What is answered does not depend on the salt.


def answers(salt: int) -> list[object]:
    rng = np.random.default_rng(3)
    text = np.tile(rng.integers(0, 60, 1500), 3).astype(np.int32)
    text = np.where(rng.random(len(text)) < 0.1, rng.integers(0, 5000, len(text)), text)
    with salted(salt):
        table, window, index = NGramTable(5), NGramTable(4, window=700), CopyIndex()
        counts, engine = NGramTable(1), ValueEngine(Calibration())
    said: list[object] = []
    for part in np.array_split(text.astype(np.int32), 300):
        for structure in (table, window, index, counts, engine):
            structure.extend(part)
        said += [each.tolist() for each in (*table.draft(9), *window.draft(9), *engine.draft(9))]
        said += [each.tolist() for each in (index.draft(9)[0], *engine.draft_tree(24))]
        said += [counts.top_k(part[:0], 99), table.top_k(part[:1], 99), window.top_k(part[:1], 99)]
    for structure in (table, window, index, counts, engine):
        structure.check_integrity()
    return said


def test_answers_do_not_depend_on_the_salt():
    expected = answers(0)
    for salt in SALTS:
        assert answers(salt) == expected


def test_each_process_draws_its_own_salt():
    code = "from ngramspec._native import common; print(common.salt())"
    drawn = {
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout
        for _ in range(2)
    }
    assert len(drawn) == 2
    assert all(0 <= int(each) < 2**64 for each in drawn)
