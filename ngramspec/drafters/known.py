"""Drafters that know the text, draft at random, or draft nothing: bounds of drafting."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ngramspec.draft import EMPTY_DRAFT, NO_TOKENS, Draft, Float32, Int32
from ngramspec.drafters.base import Drafter, DraftSession
from ngramspec.errors import check_int

MAX_VOCAB = 2**31 - 1


class OracleSession(DraftSession):
    """Drafts the rest of a text while the sequence is a prefix of it."""

    def __init__(self, texts: Sequence[Int32], tokens: Int32) -> None:
        self.texts = texts
        self.tokens = tokens

    def propose(self, gamma: int, cost: Float32 | None = None, *, tree: bool = False) -> Draft:
        return self.propose_after(NO_TOKENS, gamma)

    def propose_after(self, drafted: Int32, gamma: int) -> Draft:
        so_far = np.concatenate((self.tokens, drafted))
        n = len(so_far)
        for text in self.texts:
            if len(text) > n and np.array_equal(text[:n], so_far):
                return Draft(text[n : n + gamma].copy()) if gamma > 0 else EMPTY_DRAFT
        return EMPTY_DRAFT

    def extend(self, tokens: Int32) -> None:
        self.tokens = np.concatenate((self.tokens, tokens))


class OracleDrafter(Drafter):
    """Drafts the known continuation: the upper bound for any drafter.

    Args:
        texts: whole sequences of token ids, each a prompt and its continuation. Sequences that
            begin like none of them are not drafted for. O(length) a draft.
    """

    source_names = ("oracle",)

    def __init__(self, texts: Sequence[Sequence[int] | Int32]) -> None:
        self.texts = [np.asarray(text, np.int32).ravel() for text in texts]

    def start(self, tokens: Int32) -> DraftSession:
        return OracleSession(self.texts, tokens)


class RandomSession(DraftSession):
    """Drafts uniformly random token ids."""

    def __init__(self, vocab: int, seed: int) -> None:
        self.vocab = vocab
        self.rng = np.random.default_rng(seed)

    def propose(self, gamma: int, cost: Float32 | None = None, *, tree: bool = False) -> Draft:
        return self.propose_after(NO_TOKENS, gamma)

    def propose_after(self, drafted: Int32, gamma: int) -> Draft:
        return Draft(self.rng.integers(0, self.vocab, gamma).astype(np.int32))

    def extend(self, tokens: Int32) -> None:
        return None


class RandomDrafter(Drafter):
    """Drafts at random: the cost of drafting when it never helps (Leviathan et al. 2023, 3.6).

    Args:
        vocab: size of the target's vocabulary, >= 1.
        seed: seed of every session.
    """

    source_names = ("random",)

    def __init__(self, vocab: int, seed: int = 0) -> None:
        self.vocab = check_int("vocab", vocab, 1, MAX_VOCAB)
        self.seed = check_int("seed", seed, 0)
        self.spec = f"random(vocab={vocab},seed={seed})"

    def start(self, tokens: Int32) -> DraftSession:
        return RandomSession(self.vocab, self.seed)


class NullSession(DraftSession):
    """Drafts nothing, so that every step is a plain step."""

    def propose(self, gamma: int, cost: Float32 | None = None, *, tree: bool = False) -> Draft:
        return EMPTY_DRAFT

    def extend(self, tokens: Int32) -> None:
        return None


class NullDrafter(Drafter):
    """Drafts nothing."""

    source_names = ("none",)
    spec = "none"

    def start(self, tokens: Int32) -> DraftSession:
        return NullSession()
