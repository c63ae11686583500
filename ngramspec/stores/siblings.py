"""Answers to one prompt, which are drafted from each other while they are generated."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ngramspec._native.store_ring import LEAST_CODES, StoreRing, StoreStream
from ngramspec.stores.shared_request import SharedRequest

MOST_READ = 8  # other answers that an answer is drafted from; not tuned
MOST_TOKENS = 1 << 13  # of an answer that the others find: the latest ones


@dataclass(frozen=True, slots=True, eq=False)
class SiblingAnswer:
    """One of several answers to a prompt, to be passed in ``extra_stores``. Thread-safe."""

    own: StoreRing  # its text
    others: Sequence[StoreRing]  # the texts that it is drafted from

    def written(self) -> SharedRequest:
        """Where the answer's text is added."""
        return SharedRequest(StoreStream(self.own), "outputs", True)

    def read(self, limit: int) -> list[SharedRequest]:
        """What the answer is drafted from; ``limit`` is the bound of the token ids."""
        return [SharedRequest(StoreStream(ring, limit), "none", True) for ring in self.others]

    def check_tokenizer(self, tokenizer: Any) -> None:
        """Its text is the target's own."""


def sibling_answers(count: int, tokens: int) -> list[SiblingAnswer]:
    """``count`` answers of at most ``tokens`` tokens, at most 28 bytes for each token.

    Each reads the texts of the MOST_READ answers after it, and of the first ones after the last
    one. Nothing outlives the answers.
    """
    capacity = min(max(tokens, LEAST_CODES), MOST_TOKENS) + 1  # and its border
    rings = [StoreRing(capacity) for _ in range(count)]
    return [
        SiblingAnswer(ring, (rings[index + 1 :] + rings[:index])[:MOST_READ])
        for index, ring in enumerate(rings)
    ]
