"""Answers to one prompt, which are drafted from each other while they are generated."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ngramspec._native.store_ring import LEAST_CODES, StoreRing
from ngramspec._native.store_stream import StoreStream
from ngramspec.stores.shared_request import SharedRequest

MOST_READ = 8  # other answers that an answer is drafted from; not tuned
MOST_TOKENS = 1 << 13  # of an answer that the others find: the latest ones


class Siblings:
    """The texts of several answers to one prompt: at most 28 bytes for each token.

    There are ``count`` answers of at most ``tokens`` tokens. Each reads the texts of the MOST_READ
    answers after it, and of the first ones after the last one. Nothing outlives the answers.
    Thread-safe.
    """

    def __init__(self, count: int, tokens: int) -> None:
        capacity = min(max(tokens, LEAST_CODES), MOST_TOKENS) + 1  # and its border
        self._rings = [StoreRing(capacity) for _ in range(count)]

    def answer(self, index: int) -> SiblingAnswer:
        """One of the answers, to be passed in ``extra_stores``."""
        return SiblingAnswer(self, index)

    def written(self, index: int) -> SharedRequest:
        """Where an answer's text is added."""
        return SharedRequest(StoreStream(self._rings[index]), "outputs", True)

    def read(self, index: int, limit: int) -> tuple[SharedRequest, ...]:
        """What an answer is drafted from; ``limit`` is the bound of the token ids."""
        others = self._rings[index + 1 :] + self._rings[:index]
        return tuple(
            SharedRequest(StoreStream(ring, limit), "none", True) for ring in others[:MOST_READ]
        )


@dataclass(frozen=True, slots=True)
class SiblingAnswer:
    """One of several answers to a prompt."""

    siblings: Siblings
    index: int

    def check_tokenizer(self, tokenizer: Any) -> None:
        """Its text is the target's own."""
